"""`View.nearest`, compared with all rows in NumPy, in float64."""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from object_store import upload
from vector_tables import WIDTH, a_view, in_parts, random_vectors, table_of
from written_run import write_run

import layerbeam
from layerbeam.pipeline.dataset import nearest
from layerbeam.pipeline.dataset.view import View as ReadView
from layerbeam.transforms.parts import parquet
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.number_types import as_matrix, in_lists

METRICS = ("cosine", "dot", "l2")
FORMATS = [("parquet", "float32"), ("parquet", "float16"), ("parquet", "int8")]
FORMATS += [("tfrecord", "float32"), ("tfrecord", "int8")]
FORMATS += [("jsonl", "float32"), ("jsonl", "float16"), ("jsonl", "int8")]


def scores_of(vectors: np.ndarray, query: np.ndarray, metric: str) -> np.ndarray:
    """[n] in float64: the metric's definition."""
    vectors, query = vectors.astype(np.float64), np.asarray(query, np.float64)
    if metric == "l2":
        return np.linalg.norm(vectors - query, axis=1)
    products = vectors @ query
    if metric == "dot":
        return products
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    return np.divide(products, norms, out=np.zeros(len(vectors)), where=norms > 0)


def judge(vectors: np.ndarray, query: np.ndarray, k: int, metric: str) -> tuple[list[int], np.ndarray]:
    """The best rows and their scores, from all of them but those of zeros."""
    scores = scores_of(vectors, query, metric)
    best = np.argsort(scores if metric == "l2" else -scores, kind="stable")
    best = best[vectors[best].any(axis=1)][:k]
    return best.tolist(), scores[best]


def stored_vectors(view: ReadView, column: str) -> np.ndarray:
    """All vectors of a view in any format, as they are read."""
    return np.concatenate([as_matrix(view.read(part, [column])[column]) for part in view.parts])


def assert_nearest(view: ReadView, queries: np.ndarray, k: int, metric: str, **settings: Any) -> pa.Table:
    """The rows of the last layer and their scores are those of the judge."""
    column = view.vectors[-1]
    vectors = stored_vectors(view, column)
    found = view.nearest(queries, k, layer=column, metric=metric, **settings)
    assert found["query"].to_pylist() == [q for q in range(len(queries)) for _ in range(min(k, len(vectors)))]
    for number, query in enumerate(queries):
        own = found.filter(pc.equal(found["query"], number))
        rows, scores = judge(vectors, query, k, metric)
        assert own["line"].to_pylist() == rows
        scale = max(np.abs(scores_of(vectors, query, metric)).max(), np.abs(vectors).max())
        np.testing.assert_allclose(own["score"].to_numpy(), scores, rtol=1e-6, atol=1e-6 * scale)
    return found


# --- compared with all rows ---


@pytest.mark.parametrize(("format_", "dtype"), FORMATS)
def test_every_format_and_number_type(tmp_path, format_, dtype):
    view = a_view(format=format_, dtype=dtype)
    read = write_run(tmp_path, view, in_parts(view, random_vectors(1, 300), [130, 1, 169]))["texts"]
    others = [name for name in read.schema.names if not name.startswith("layer_")]
    for metric in METRICS:
        found = assert_nearest(read, random_vectors(2, 3), 7, metric)
        assert found.column_names == ["query", *others, "score"]
        line = found["line"][0].as_py()
        assert (found["text"][0].as_py(), found["year"][0].as_py()) == (f"text {line}", 1990 + line % 7)


@pytest.mark.parametrize("seed", range(6))
def test_random_sizes_and_hostile_numbers(tmp_path, monkeypatch, seed):
    """Also vectors of zeros, equal ones, and such as are too large or too small for products in float32."""
    random = np.random.default_rng(seed)
    monkeypatch.setattr(nearest, "_VALUES", int(random.choice([1, 100, 1 << 21])))
    sizes = random.integers(1, 60, 8).tolist()
    vectors = random_vectors(seed, sum(sizes))
    scales = random.choice([0, 1, 1, 1, 1 + 1e-6, 1e-22, 1e-38, 1e15, 1e19, 1e37], len(vectors))
    vectors = (vectors * scales[:, None]).astype(np.float32)
    vectors[random.integers(0, len(vectors), 40)] = vectors[random.integers(0, len(vectors), 40)]
    queries = np.concatenate([random_vectors(seed + 50, 3), vectors[[0, 1]], np.zeros((1, WIDTH), np.float32)])
    queries *= random.choice([1e-30, 1, 1e18], len(queries)).astype(np.float32)[:, None]
    view = a_view(layers=(1,))
    read = write_run(tmp_path, view, in_parts(view, vectors, sizes))["texts"]
    for metric in METRICS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = read.nearest(queries, 9, metric=metric)
        for number, query in enumerate(queries.astype(np.float64)):
            own = found.filter(pc.equal(found["query"], number))
            rows, scores = judge(vectors, query, 9, metric)
            exact = scores_of(vectors, query, metric)
            # Scores that float64 cannot tell apart may be in another order.
            near = {"rtol": 1e-9, "atol": 1e-12 * np.abs(exact).max()}
            np.testing.assert_allclose(exact[own["line"].to_numpy()], scores, **near)
            np.testing.assert_allclose(own["score"].to_numpy(), scores, **near)
            assert len(set(rows)) == len({*own["line"].to_pylist()}) == 9


def test_rows_that_float32_cannot_tell_apart(tmp_path):
    """Cosines that differ by 1e-9, in reverse order of the rows."""
    angles = 1e-4 + 1e-5 * np.arange(400)[::-1]
    vectors = np.zeros((400, WIDTH), np.float32)
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    view = a_view(layers=(1,))
    read = write_run(tmp_path, view, in_parts(view, vectors, [200, 200]))["texts"]
    query = np.eye(WIDTH)[:1]
    rows, scores = judge(vectors, query[0], 20, "cosine")
    assert np.ptp(scores) < 1e-7
    found = read.nearest(query, 20)
    assert found["line"].to_pylist() == rows
    np.testing.assert_allclose(found["score"].to_numpy(), scores, rtol=1e-12)


def test_equal_scores_are_in_the_order_of_the_rows(tmp_path):
    """Equal vectors at different places of different matrices, where products may have other last bits."""
    vectors = random_vectors(3, 900)
    equal = np.flatnonzero(np.arange(900) % 7 == 3)
    vectors[equal] = vectors[equal[0]]
    view = a_view(layers=(1,))
    read = write_run(tmp_path, view, in_parts(view, vectors, [1, 2, 3, 94, 500, 300]))["texts"]
    for metric in METRICS:
        found = read.nearest(vectors[equal[0]], 50, metric=metric)
        if metric != "dot":  # a longer vector has a larger product
            assert found["line"].to_pylist() == equal[:50].tolist()
        assert_nearest(read, vectors[equal[:1]], 140, metric)
    assert read.nearest(np.zeros(WIDTH), 5)["line"].to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_rows_of_zeros_are_never_returned(tmp_path, dtype):
    vectors = np.float32([[1, 1], [0, 0], [-1, 0], [0, 0], [0, 2]])
    view = a_view(layers=(1,), hidden_size=2, dtype=dtype)
    read = write_run(tmp_path, view, in_parts(view, vectors, [5]))["texts"]
    found = read.nearest([0, 3], 9)
    assert found["line"].to_pylist() == [4, 0, 2]
    assert found["score"].to_pylist() == pytest.approx([1, 2**-0.5, 0], abs=1e-2)
    assert [read.nearest([-2, 0], 9, metric=metric)["line"].to_pylist() for metric in ("dot", "l2")] == [
        [2, 4, 0],
        [2, 4, 0],
    ]


def test_many_small_parts_in_a_store(tmp_path, memory):
    view = a_view(layers=(1,), dtype="int8")
    write_run(tmp_path, view, in_parts(view, random_vectors(4, 210), [3] * 70))
    upload(tmp_path, "memory://bucket/out")
    read = layerbeam.open_run("memory://bucket/out")["texts"]
    assert len(read.parts) == 70
    assert_nearest(read, random_vectors(5, 4), 10, "cosine")
    found = read.nearest(random_vectors(5, 4), 210, columns=["line"])
    assert sorted(found["line"].to_pylist()) == sorted([*range(210)] * 4)
    some = read.nearest(random_vectors(5, 1), 210, columns=["line"], where=pc.field("line") >= 207)
    assert sorted(some["line"].to_pylist()) == [207, 208, 209]


def test_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1000)
    view = a_view()
    read = write_run(tmp_path, view, in_parts(view, random_vectors(6, 200), [150, 50]))["texts"]
    assert_nearest(read, random_vectors(7, 2), 5, "l2")


def test_lines_of_extract_features(tmp_path):
    """Their files hold line, token and vectors only."""
    view = a_view(name="tokens", level="token", format="jsonl", fields=(), given_layers=(1, 2))
    read = write_run(tmp_path, view, in_parts(view, random_vectors(8, 90), [40, 50]))["tokens"]
    found = assert_nearest(read, random_vectors(9, 2), 4, "cosine")
    assert found.column_names == ["query", "line", "sentence", "token", "score"]
    narrowed = read.nearest(random_vectors(9, 1), 4, layer=2, where=pc.field("token") == "token 7")
    assert narrowed["line"].to_pylist() == [7]


def test_a_run_without_rows(tmp_path):
    view = a_view()
    read = write_run(tmp_path, view, [])["texts"]
    found = read.nearest(random_vectors(0, 2), layer=1)
    assert (found.num_rows, found.column_names[0], found.column_names[-1]) == (0, "query", "score")
    assert "text" in found.column_names


def test_no_vectors(tmp_path):
    view = a_view()
    read = write_run(tmp_path, view, in_parts(view, random_vectors(0, 3), [3]))["texts"]
    assert read.nearest(np.zeros((0, WIDTH)), layer=1, columns=["line"]).to_pydict() == {
        "query": [],
        "line": [],
        "score": [],
    }


def test_another_number_of_rows_than_listed(tmp_path):
    view = a_view()
    read = write_run(tmp_path, view, in_parts(view, random_vectors(0, 3), [3]))["texts"]
    other = dataclasses.replace(read, parts=[dataclasses.replace(read.parts[0], rows=4)])
    with pytest.raises(ValueError, match=r"\.parquet: has 3 rows, not 4 as listed$"):
        other.nearest([1] * WIDTH, layer=1)


@pytest.mark.parametrize("vectors", [pa.array([[1.0]] * 3), pa.array([[1.0] * 9] * 3, pa.list_(pa.float32(), 9))])
def test_a_part_of_another_program(tmp_path, vectors):
    view = a_view()
    read = write_run(tmp_path, view, in_parts(view, random_vectors(0, 3), [3]))["texts"]
    table = pq.read_table(read.paths[0])
    pq.write_table(table.set_column(table.schema.get_field_index("layer_1"), "layer_1", vectors), read.paths[0])
    other = dataclasses.replace(read, parts=[dataclasses.replace(read.parts[0], sha256="")])
    with pytest.raises(ValueError, match=rf"parquet: layer_1 is of type .*, not of {WIDTH} numbers"):
        other.nearest([1] * WIDTH, layer=1)


# --- which rows and columns ---


@pytest.mark.parametrize(("format_", "dtype"), [("parquet", "float32"), ("parquet", "int8"), ("tfrecord", "float32")])
def test_where(tmp_path, format_, dtype):
    view = a_view(layers=(1,), format=format_, dtype=dtype)
    read = write_run(tmp_path, view, in_parts(view, random_vectors(10, 210), [70] * 3))["texts"]
    (query,) = random_vectors(11, 1)
    where = (pc.field("year") >= 1993) & (pc.field("party") == "a") & (pc.field("line") < 140)
    allowed = [n for n in range(140) if n % 7 >= 3 and n % 2 == 0 and n % 5]
    rows, scores = judge(stored_vectors(read, "layer_1")[allowed], query, 10, "dot")
    found = read.nearest(query, 10, metric="dot", where=where)
    assert found["line"].to_pylist() == [allowed[row] for row in rows]
    np.testing.assert_allclose(found["score"].to_numpy(), scores, rtol=1e-5)
    assert read.nearest(query, 3, where=pc.field("line") == 999).num_rows == 0
    # A null is neither equal nor different.
    assert sum(read.nearest(query, 999, where=pc.field("party") != value).num_rows for value in "ab") == 210 * 4 // 5


def test_vectors_without_matching_rows_are_not_read(tmp_path, monkeypatch):
    view = a_view(layers=(1,))
    read = write_run(tmp_path, view, in_parts(view, random_vectors(10, 60), [20] * 3))["texts"]
    parts = []
    monkeypatch.setattr(ReadView, "read", lambda view, part, *given: parts.append(part) or original(view, part, *given))
    assert read.nearest(random_vectors(1, 1), 5, where=pc.field("line") == 41)["line"].to_pylist() == [41]
    assert parts == [read.parts[2]] * 2


original = ReadView.read


def test_columns(tmp_path):
    view = a_view()
    read = write_run(tmp_path, view, in_parts(view, random_vectors(12, 40), [40]))["texts"]
    (query,) = random_vectors(13, 1)
    found = read.nearest(query, 2, layer=2, columns=["layer_1", "line"])
    assert found.column_names == ["query", "layer_1", "line", "score"]
    vectors = as_matrix(found["layer_1"])
    np.testing.assert_array_equal(vectors, -random_vectors(12, 40)[found["line"].to_numpy()])
    rows, _ = judge(-random_vectors(12, 40), query, 2, "dot")
    assert read.nearest(query, 2, layer="layer_1", metric="dot")["line"].to_pylist() == rows


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layer": None}, "layer is missing; view texts has layer_1, layer_2"),
        ({"layer": 3}, "layer_3: view texts has no such vectors; it has layer_1, layer_2"),
        ({"layer": "text"}, "text: view texts has no such vectors"),
        ({"k": 0}, "k is 0; allowed: 1 or more"),
        ({"metric": "euclid"}, "metric is 'euclid'; allowed: cosine, dot, l2"),
        ({"vectors": [1.0, 2]}, "vectors are float64 [2]; give numbers, [12] or [n, 12]"),
        ({"vectors": [["a"] * WIDTH]}, "vectors are <U1 [1, 12]; give numbers"),
        ({"vectors": [float("nan")] * WIDTH}, "vectors have values that are not finite in float32"),
        ({"vectors": [1e39] * WIDTH}, "vectors have values that are not finite in float32"),
        ({"columns": ["txt"]}, "'txt': view texts of "),
        ({"columns": "text"}, "columns is 'text'; give a list"),
        ({"where": "line == 1"}, "where is 'line == 1'; give an expression"),
        ({"where": pc.field("yaer") == 1}, "where: yaer is no column; view texts has file, year, party,"),
        ({"where": pc.field("layer_1") == 1}, "where: layer_1 is no column"),
        ({"where": pc.field("year") == "x"}, "where: Function 'equal' has no kernel"),
        ({"where": pc.field("year") + 1}, "where: is of type int64; give a comparison"),
    ],
)
def test_wrong_arguments(tmp_path, given, message):
    view = a_view()
    read = write_run(tmp_path, view, in_parts(view, random_vectors(14, 3), [3]))["texts"]
    arguments = {"vectors": [1] * WIDTH, "layer": 1} | given
    with pytest.raises((ValueError, TypeError, KeyError), match=re.escape(message)):
        read.nearest(arguments.pop("vectors"), **arguments)


def test_columns_named_like_those_of_the_result(tmp_path):
    view = a_view(fields=(("score", "float64"),))
    read = write_run(tmp_path, view, in_parts(view, random_vectors(14, 3), [3]))["texts"]
    with pytest.raises(ValueError, match="the result has a column score of its own; name the other columns"):
        read.nearest([1] * WIDTH, layer=1)
    assert read.nearest([1] * WIDTH, layer=1, columns=["text"]).column_names == ["query", "text", "score"]


def test_lists_of_vectors_are_refused(tmp_path):
    view = a_view(layers=(1,), pooling="none", fields=())
    flat = table_of(a_view(layers=(1,), fields=()), random_vectors(15, 4))
    columns = {name: flat[name] for name in schema(view).names}
    columns["layer_1"] = in_lists(flat["layer_1"].combine_chunks(), np.array([0, 2, 2, 3, 4]))
    read = write_run(tmp_path, view, [pa.table(columns, schema(view))])["texts"]
    with pytest.raises(ValueError, match=r"view texts has a list of vectors in each row \(pooling: none\)"):
        read.nearest([1] * WIDTH)


def test_a_damaged_part(tmp_path):
    view = a_view(layers=(1,))
    read = write_run(tmp_path, view, in_parts(view, random_vectors(14, 6), [3, 3]))["texts"]
    with open(read.paths[1], "r+b") as file:
        file.write(b"damaged")
    for where in (None, pc.field("line") == 4):
        with pytest.raises((ValueError, OSError), match=r"cannot be read .*; if it is damaged, delete it and run the"):
            read.nearest([1] * WIDTH, where=where)
