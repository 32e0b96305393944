"""`layerbeam compare` against plain NumPy, over runs with other blocks, widths, formats and tokenizers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vector_tables import WIDTH, a_view, in_parts, random_vectors
from written_run import write_run

from layerbeam.pipeline.compare.compare import Comparison, compare
from layerbeam.pipeline.errors import UsageError

ROWS = 300
# A step of the histogram.
OF_DISTANCE = 0.0101
# Of sums of products in float32 and float64 of vectors at unit length.
ROUNDING = 1e-6


def of(a: Path, b: Path, **settings: Any) -> Comparison:
    given = {"view": None, "sample": 2000, "seed": 0, "count": 5} | settings
    return compare((str(a), str(b)), **given)


def write(path: Path, vectors: np.ndarray, sizes: list[int], **settings: Any) -> Path:
    view = a_view(hidden_size=vectors.shape[1], **settings)
    write_run(path, view, in_parts(view, vectors, sizes))
    return path


def unit(vectors: np.ndarray) -> np.ndarray:
    vectors = vectors.astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (unit(one) * unit(other)).sum(axis=1)


def nearest(vectors: np.ndarray) -> list[set[int]]:
    near = unit(vectors) @ unit(vectors).T
    np.fill_diagonal(near, -2)
    return [set(np.argsort(-row)[:10].tolist()) for row in near]


def cka(one: np.ndarray, other: np.ndarray) -> float:
    """Kornblith's linear CKA with the unbiased estimator of HSIC by Song et al., from its formula."""

    def hsic(k: np.ndarray, m: np.ndarray) -> float:
        k, m, n = k - np.diag(np.diag(k)), m - np.diag(np.diag(m)), len(k)
        ones = np.ones(n)
        middle = ones @ k @ ones * (ones @ m @ ones) / ((n - 1) * (n - 2))
        return (np.trace(k @ m) + middle - 2 / (n - 2) * (ones @ k @ m @ ones)) / (n * (n - 3))

    k, m = (side.astype(np.float64) @ side.T.astype(np.float64) for side in (one, other))
    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_a_run_compared_with_itself_is_one_everywhere(tmp_path, dtype, format_):
    vectors = random_vectors(1, 40)
    path = write(tmp_path / "a", vectors, [15, 25], dtype=dtype, format=format_)
    (view,) = of(path, path).views
    assert (view.rows, view.only, view.sample, view.joined_by[:2]) == (40, (0, 0), 40, ["file", "line"])
    for column in view.columns:
        assert [value for name, value in column.items() if name not in "ab"] == [1] * 8
    assert np.diag(view.cka) == pytest.approx([1, 1], abs=ROUNDING)
    assert [row["cosine"] for row in view.moved] == [1] * 5


def test_cosines_are_those_of_numpy(tmp_path):
    vectors = random_vectors(1, ROWS)
    noise = random_vectors(2, ROWS) * np.linspace(0, 1, ROWS)[:, None]
    other = vectors + noise.astype(np.float32)
    a, b = write(tmp_path / "a", vectors, [100, 200]), write(tmp_path / "b", other, [30, 150, 120])
    (view,) = of(a, b).views
    expected = np.sort(cosines(vectors, other))
    for column in view.columns:
        assert column["mean"] == pytest.approx(expected.mean(), abs=ROUNDING)
        assert column["least"] == pytest.approx(expected[0], abs=ROUNDING)
        for found, percent in ((column["median"], 50), (column["p5"], 5), (column["p1"], 1)):
            rank = ROWS * percent // 100
            low, high = 1 - expected[rank - 1], 1 - expected[rank]
            assert high * (1 - OF_DISTANCE) <= 1 - found <= low * (1 + OF_DISTANCE)
    lines = np.argsort(cosines(vectors, other))[:5].tolist()
    assert [row["line"] for row in view.moved] == lines
    assert [row["text"] for row in view.moved] == [f"text {line}" for line in lines]


def test_neighbours_and_layers_are_those_of_numpy(tmp_path):
    vectors = random_vectors(1, ROWS)
    other = vectors + 0.7 * random_vectors(2, ROWS)
    a, b = write(tmp_path / "a", vectors, [ROWS]), write(tmp_path / "b", other, [150, 150])
    (view,) = of(a, b).views
    kept = np.mean([len(x & y) / 10 for x, y in zip(nearest(vectors), nearest(other), strict=True)])
    assert 0.2 < kept < 0.8
    assert view.columns[1]["kept"] == pytest.approx(kept, abs=1e-9)
    assert view.cka_rows == ROWS
    assert view.cka[1][1] == pytest.approx(cka(vectors, other), abs=ROUNDING)
    assert cka(vectors, random_vectors(3, ROWS)) == pytest.approx(0, abs=0.1)


def test_a_rotation_is_found_and_is_not_fitted_to_the_rows_that_judge_it(tmp_path):
    vectors = random_vectors(1, ROWS)
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(WIDTH, WIDTH)))[0]
    a = write(tmp_path / "a", vectors, [ROWS])
    b = write(tmp_path / "b", (vectors @ rotation).astype(np.float32), [ROWS])
    unrelated = write(tmp_path / "c", random_vectors(9, ROWS), [ROWS])
    column = of(a, b).views[0].columns[1]
    assert column["rotated"] == pytest.approx(1, abs=ROUNDING)
    assert column["kept"] == 1
    assert abs(column["mean"]) < 0.5
    # 12 dimensions, 150 rows: the cosine by chance has a standard error of 0.29 / sqrt(150).
    assert abs(of(a, unrelated).views[0].columns[1]["rotated"]) < 0.25


def test_vectors_of_other_widths_are_padded(tmp_path):
    vectors = random_vectors(1, ROWS)
    wide = np.hstack([vectors, np.zeros((ROWS, 4), np.float32)])
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(WIDTH + 4, WIDTH + 4)))[0]
    a = write(tmp_path / "a", vectors, [ROWS])
    b = write(tmp_path / "b", (wide @ rotation).astype(np.float32), [ROWS])
    for one, other in ((a, b), (b, a)):
        view = of(one, other).views[0]
        column = view.columns[1]
        assert (column["mean"], column["median"], column["p5"], column["p1"], column["least"]) == (None,) * 5
        assert column["rotated"] == pytest.approx(1, abs=ROUNDING)
        assert column["kept"] == 1
        assert view.moved_by == "layer_2, rotated"
        assert [row["cosine"] for row in view.moved] == pytest.approx([1] * 5, abs=ROUNDING)


def test_rows_of_one_run_only_are_counted(tmp_path):
    vectors = random_vectors(1, ROWS)
    a, b = write(tmp_path / "a", vectors[:200], [90, 110]), write(tmp_path / "b", vectors, [ROWS])
    view = of(a, b).views[0]
    assert (view.rows, view.only, view.columns[0]["least"]) == (200, (0, 100), 1)
    assert of(b, a).views[0].only == (100, 0)


def test_the_sample_depends_on_the_seed_and_not_on_blocks(tmp_path):
    vectors, other = random_vectors(1, ROWS), random_vectors(1, ROWS) + random_vectors(2, ROWS)
    a = write(tmp_path / "a", vectors, [ROWS])
    b, c = write(tmp_path / "b", other, [ROWS]), write(tmp_path / "c", other, [7, 193, 100])
    d = write(tmp_path / "d", vectors, [50] * 6)
    one, two, three = of(a, b, sample=60), of(d, c, sample=60), of(a, b, sample=60, seed=1)
    assert one.views[0].sample == 60
    first, other_blocks, other_seed = (found.views[0].columns[0] for found in (one, two, three))
    assert (first["rotated"], first["kept"]) == (other_blocks["rotated"], other_blocks["kept"])
    assert first["mean"] == pytest.approx(other_blocks["mean"], abs=1e-8)  # a sum in another order
    assert first["rotated"] != other_seed["rotated"]
    assert first["mean"] == other_seed["mean"]


def test_runs_without_common_rows_are_refused(tmp_path):
    a = write(tmp_path / "a", random_vectors(1, 20), [20])
    view = a_view()
    write_run(tmp_path / "b", view, [t.slice(100) for t in in_parts(view, random_vectors(1, 120), [120])])
    with pytest.raises(UsageError, match=r"have 0 rows of view texts in common, by file, line, .*The first rows are"):
        of(a, tmp_path / "b")


def test_runs_of_two_encoders(workplace):
    """Tokens of two tokenizers have their places in common, and words are joined by theirs."""
    corpus = "".join(f"The bank of river {n} is steep. Money no. {n % 7}!\n" for n in range(12))
    views = {
        "words": {"level": "word", "layers": "all"},
        "tokens": {"level": "token", "layers": [-1]},
        "texts": {"level": "text", "layers": [-1], "pooling": "mean"},
        "types": {"level": "word_type", "layers": [1]},
        "lists": {"level": "text", "layers": [-1], "pooling": "none"},
    }
    workplace.prepare(corpus, views=views)
    workplace.drive()
    encoder = {"max_seq_length": 12, "special_in_text": "token"}
    other = {**views, "texts": {"level": "text", "layers": [2], "pooling": "cls", "truncate_dim": 16}}
    workplace.configure(views=other, encoder=encoder, output={"path": "other"})
    workplace.drive()
    page = workplace.folder / "page.html"
    printed = workplace._call("compare", "out", "other", "--html", str(page), status=0).out
    assert re.search(r"differ in +encoder\.max_seq_length: 128 -> 12", printed)
    assert "left out  lists, types:" in printed
    assert "moved most, by layer_3 and layer_2, rotated:" in printed
    html = page.read_text()
    assert html.count("<section") == 3
    assert "<script" not in html
    assert "encoder.max_seq_length: 128 -&gt; 12" in html
    found = json.loads(workplace._call("compare", "out", "other", "--json", "--view", "words", status=0).out)
    (view,) = found["views"]
    assert view["rows"] + view["only"][0] == workplace.rows("words").num_rows
    assert view["only"][0] > 0 == view["only"][1]
    assert [(c["a"], c["b"]) for c in view["columns"]] == [(f"layer_{k}", f"layer_{k}") for k in range(4)]
    assert view["columns"][0]["least"] == 1  # the embedding layer knows no other words
    assert view["columns"][3]["least"] < 1
    (moved, *_) = view["moved"]
    assert moved["word"] in moved["text"]


def test_ids_join_rows_of_other_files(workplace):
    lines = [json.dumps({"key": f"k{n}", "text": f"The bank of river {n} is steep."}) for n in range(12)]
    views = {"texts": {"level": "text", "layers": [-1]}}
    given = {"format": "jsonl", "id_field": "key"}
    workplace.prepare({"a.jsonl": "\n".join(lines)}, views=views, input=given)
    workplace.drive()
    workplace.write("corpus/a.jsonl", "")
    (workplace.folder / "corpus/a.jsonl").unlink()
    workplace.prepare({"b.jsonl": "\n".join(lines[::-1])}, views=views, input=given, output={"path": "other"})
    workplace.drive()
    found = json.loads(workplace._call("compare", "out", "other", "--json", status=0).out)
    (view,) = found["views"]
    assert (view["joined_by"][0], view["rows"], view["columns"][0]["kept"]) == ("id", 12, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--view", "textz"),
            "--view textz: out has no such view with a vector and a place per row; did you mean `texts`",
        ),
        (("--view", "texts=other"), "--view texts=other: out has no such view"),
        (("--view", "texts=words"), "no view of the same name and level has a vector per row: out has texts (text)"),
        (("--sample", "0"), "argument --sample: '0' is not a positive integer"),
        (("--html", "nowhere/page.html"), "--html nowhere/page.html: the folder nowhere does not exist"),
    ],
)
def test_wrong_usage(workplace, arguments, message):
    views = {"texts": {"level": "text", "layers": [-1]}, "words": {"level": "word", "layers": [-1]}}
    workplace.finished("the bank\nmoney\nthe end\nbank by bank\n", views=views)
    assert message in workplace._call("compare", "out", "out", *arguments, status=2).err
