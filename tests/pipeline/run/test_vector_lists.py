"""`pooling: none`: the vectors of a text's tokens as a list in its row, compared with the rows of a token view."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from corpora import random_lines
from repository import DATA

import layerbeam
from layerbeam.pipeline.cli.main import main
from layerbeam.transforms.parts import parquet
from layerbeam.transforms.views.columns import splits_by
from layerbeam.transforms.views.number_types import as_arrays

SETTINGS = {
    "plain": {"layers": [-1, 0]},
    "inner": {"layers": [2], "special_tokens": False},
    "short": {"layers": [1, 2], "combine": "sum", "truncate_dim": 7, "normalize": True},
    "half": {"layers": [3], "dtype": "float16"},
    "codes": {"layers": [-1, 1], "dtype": "int8"},
}
VIEWS = {f"{name}_tokens": {"level": "token"} | own for name, own in SETTINGS.items()}
VIEWS |= {name: {"level": "text", "pooling": "none"} | own for name, own in SETTINGS.items()}
VIEWS |= {f"{name}_mean": {"level": "text"} | own for name, own in SETTINGS.items()}
OTHER_FORMATS = {
    f"{name}_{format_}": VIEWS[name] | {"format": format_}
    for format_ in ("tfrecord", "jsonl")
    for name in ("plain", "inner", "codes")
}
# The text in line 1 has no tokens but [CLS] and [SEP].
LINES = ["a river bank", "\ufffd", *random_lines(40)]
# A text, a sentence in its record, or one longer than a window.
UNITS = {
    "records": {},
    "windows": {"encoder": {"max_seq_length": 16, "long_text": "window", "window_overlap": 4}},
    "context": {"input": {"unit": "sentence"}, "encoder": {"context": "record"}},
}


@pytest.fixture
def run(workplace):
    workplace.finished({"a.txt": "\n".join(LINES), "b.txt": "\n".join(LINES[:9])}, views=VIEWS | OTHER_FORMATS)
    return layerbeam.open_run("out")


def of_texts(run, name, column, *, codes=False):
    """{(file, line, sentence): the values of the text's rows} of a token view."""
    view = run[f"{name}_tokens"]
    places = view.to_arrow(["file", "line", "sentence"])
    splits = splits_by(places, places.column_names)
    values = np.split(view.to_numpy(column, codes=codes), splits[1:-1])
    return dict(zip(map(tuple, places.take(splits[:-1]).to_pandas().to_numpy().tolist()), values, strict=True))


@pytest.mark.parametrize("unit", UNITS)
def test_a_list_has_the_rows_of_a_token_view(workplace, unit):
    lines = [f"{line}. {line.capitalize()}. The end of it." if unit == "context" else line for line in LINES]
    workplace.finished({"a.txt": "\n".join(lines)}, views=VIEWS, **UNITS[unit])
    run = layerbeam.open_run("out")
    for name in SETTINGS:
        view, pooled = run[name], run[f"{name}_mean"]
        others = [column for column in pooled.schema.names if column not in pooled.vectors]
        assert view.to_arrow(others).equals(pooled.to_arrow(others))
        assert view.has_vector_lists
        assert len(view) > 30
        places = list(zip(*(view.to_numpy(column).tolist() for column in ("file", "line", "sentence")), strict=True))
        for column in view.vectors:
            rows = of_texts(run, name, column)
            found = view.to_numpy(column)
            assert found.shape == (len(view),)
            assert {vectors.shape[1] for vectors in found} == {7 if name == "short" else 64}
            assert found[0].dtype == (np.float16 if name == "half" else np.float32)
            for place, vectors in zip(places, found, strict=True):
                if place in rows:
                    np.testing.assert_array_equal(vectors, rows.pop(place))
                else:
                    assert not len(vectors)
            assert not rows
    lengths = [len(vectors) for vectors in run["inner"].to_numpy("layer_2")]
    assert lengths == run["inner"].to_numpy("num_tokens").tolist()
    assert max(lengths) > (16 if unit == "windows" else 10)
    assert "pass" in workplace.verify("--sample", "100").out


def test_a_text_without_tokens(run):
    assert [len(run["inner"].to_numpy("layer_2")[line]) for line in (0, 1)] == [3, 0]
    assert [len(run["plain"].to_numpy("layer_3")[line]) for line in (0, 1)] == [5, 2]
    assert run["inner"].to_numpy("text")[1] == "\ufffd"


def test_ways_to_read(run):
    view = run["codes"]
    vectors, codes = view.to_numpy("layer_3"), view.to_numpy("layer_3", codes=True)
    scales = view.to_numpy("layer_3_scale", codes=True)
    tokens = run["codes_tokens"]
    np.testing.assert_array_equal(np.concatenate(list(codes)), tokens.to_numpy("layer_3", codes=True))
    np.testing.assert_array_equal(np.concatenate(list(scales)), tokens.to_numpy("layer_3_scale", codes=True))
    np.testing.assert_array_equal(np.concatenate(list(vectors)), tokens.to_numpy("layer_3"))
    assert codes[0].dtype == np.int8
    assert str(view.schema.field("layer_3").type) == (
        "list<element: fixed_size_list<element: float not null>[64] not null>"
    )
    assert str(view.to_arrow(codes=True)["layer_3_scale"].type) == "list<element: float not null>"
    assert view.to_arrow(["layer_3"])["layer_3"].to_pylist() == [list(map(list, rows.tolist())) for rows in vectors]
    frame = view.to_pandas(["layer_3", "text"])
    assert [np.stack(rows).tolist() for rows in frame["layer_3"]] == [rows.tolist() for rows in vectors]
    batches = [row for batch in view.iter_batches(["layer_3"], batch_rows=7) for row in batch["layer_3"].to_pylist()]
    assert batches == [rows.tolist() for rows in vectors]
    some = view.read(view.parts[0], ["layer_3"], np.array([0, 1, 4]))["layer_3"].to_pylist()
    assert some == [vectors[row].tolist() for row in (0, 1, 4)]
    out = np.empty(len(view), object)
    assert view.to_numpy("layer_3", out=out)[4].tolist() == vectors[4].tolist()
    assert "42 rows" in repr(run["codes"]) or "rows, one per text; layer_3, layer_1, each lists of 64 x int8" in repr(
        view
    )


def test_tf_data(run):
    view = run["inner"]
    dataset = view.to_tf_dataset(["layer_2", "text", "line"])
    assert dataset.cardinality() == len(view)
    found = list(dataset.as_numpy_iterator())
    assert [text["text"].decode() for text in found] == view.to_numpy("text").tolist()
    for text, vectors in zip(found, view.to_numpy("layer_2"), strict=True):
        np.testing.assert_array_equal(text["layer_2"], vectors)
    (batch,) = view.to_tf_dataset(["layer_2"]).take(4).padded_batch(4)
    assert batch["layer_2"].shape[0::2] == (4, 64)
    assert list(view.to_tf_dataset(["line"]).take(1).as_numpy_iterator()) == [{"line": 0}]
    codes = next(run["codes"].to_tf_dataset(["layer_3_scale", "layer_3"], codes=True).as_numpy_iterator())
    assert (codes["layer_3"].shape, codes["layer_3_scale"].shape) == ((5, 64), (5,))


@pytest.mark.parametrize("name", ["plain", "inner", "half", "codes"])
def test_other_readers_of_parquet(run, name):
    view = run[name].stored
    column = view.vectors[0]
    expected = [rows.tolist() for rows in view.to_numpy(column)]
    paths = list(view.paths)
    frames = pd.concat(map(pd.read_parquet, paths))
    assert [[row.tolist() for row in rows] for rows in frames[column]] == expected
    table = pl.concat(map(pl.read_parquet, paths))
    assert table[column].to_list() == expected
    number = {"half": pl.Float16, "codes": pl.Int8}.get(name, pl.Float32)
    assert table.schema[column] == pl.List(pl.Array(number, 64))
    rows = [row[0] for path in paths for row in duckdb.sql(f"SELECT {column} FROM '{path}'").fetchall()]
    assert rows == expected
    group = pq.read_metadata(paths[0]).row_group(0)
    leaves = {leaf.path_in_schema: leaf for leaf in map(group.column, range(group.num_columns))}
    encodings = leaves[f"{column}.list.element.list.element"].encodings
    assert ("RLE_DICTIONARY" in encodings) == (name == "codes")


def test_row_groups(workplace, monkeypatch):
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 64 * 4 * 100)
    views = {name: VIEWS[name] for name in ("inner", "inner_tokens")}
    workplace.prepare("\n".join(LINES), views=views)
    workplace.drive()
    run = layerbeam.open_run("out")
    (path,) = run["inner"].paths
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups > 3
    np.testing.assert_array_equal(
        np.concatenate(list(run["inner"].to_numpy("layer_2"))), run["inner_tokens"].to_numpy("layer_2")
    )


@pytest.mark.parametrize("name", ["plain", "inner", "codes"])
def test_json_lines(run, name):
    rows = [
        json.loads(line)
        for path in run[f"{name}_jsonl"].paths
        for line in gzip.decompress(Path(path).read_bytes()).splitlines()
    ]
    stored = run[name].to_arrow(codes=True)
    assert [list(row) for row in rows] == [stored.column_names] * len(stored)
    for column in run[name].vectors:
        for row, vectors in zip(rows, run[name].to_numpy(column, codes=True), strict=True):
            np.testing.assert_allclose(np.reshape(row[column], vectors.shape), vectors, atol=1e-6)
            assert len(row[column]) == len(vectors)
    if name == "codes":
        assert [row["layer_3_scale"] for row in rows] == stored["layer_3_scale"].to_pylist()


@pytest.mark.parametrize("name", ["plain", "inner"])
def test_tfrecord(run, name):
    column = run[name].vectors[0]
    features = {
        column: tf.io.FixedLenSequenceFeature([64], tf.float32, allow_missing=True),
        "text": tf.io.FixedLenFeature([], tf.string),
        "num_tokens": tf.io.FixedLenFeature([], tf.int64),
    }
    records = tf.data.TFRecordDataset(run[f"{name}_tfrecord"].paths, "GZIP")
    found = [tf.io.parse_single_example(record, features) for record in records]
    assert [text["text"].numpy().decode() for text in found] == run[name].to_numpy("text").tolist()
    assert [int(text["num_tokens"]) for text in found] == run[name].to_numpy("num_tokens").tolist()
    for text, vectors in zip(found, run[name].to_numpy(column), strict=True):
        np.testing.assert_array_equal(text[column], vectors)


def test_codes_in_tfrecord(run):
    features = {
        "layer_3": tf.io.FixedLenFeature([], tf.string),
        "layer_3_scale": tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True),
    }
    records = tf.data.TFRecordDataset(run["codes_tfrecord"].paths, "GZIP")
    found = [tf.io.parse_single_example(record, features) for record in records]
    codes = [tf.reshape(tf.io.decode_raw(text["layer_3"], tf.int8), [-1, 64]).numpy() for text in found]
    np.testing.assert_array_equal(np.concatenate(codes), run["codes_tokens"].to_numpy("layer_3", codes=True))
    np.testing.assert_array_equal(
        np.concatenate([text["layer_3_scale"] for text in found]),
        run["codes_tokens"].to_numpy("layer_3_scale", codes=True),
    )


def test_what_our_own_reader_finds(run):
    for name, settings in OTHER_FORMATS.items():
        view, expected = run[name].stored, run[name.partition("_")[0]].to_arrow(codes=True)
        found = pa.concat_tables([view.read(part) for part in view.parts])
        assert sorted(found.column_names) == sorted(expected.column_names)
        for column in expected.column_names:
            if settings["format"] == "jsonl" and column in view.vectors:
                for one, other in zip(as_arrays(found[column]), as_arrays(expected[column]), strict=True):
                    np.testing.assert_allclose(one, other, atol=1e-6)
            else:
                assert found[column].equals(expected[column])


def test_every_format_passes_verify(run, workplace):
    verdict = json.loads(workplace.verify("--sample", "100", "--json").out)
    assert verdict["result"] == "pass"
    rows = {(column["view"], column["column"]): column["rows"] for column in verdict["columns"]}
    for name in ("plain", "plain_jsonl", "plain_tfrecord"):
        assert rows[name, "layer_3"] == rows["plain_tokens", "layer_3"] == len(run["plain_tokens"])


def test_show_prints_the_first_vector(run, workplace):
    shown = workplace.show().out
    assert re.search(r"inner +47 .* layer_2: lists of 64 x float32", shown)
    first = "  ".join(f"{value:+.3f}" for value in run["inner"].to_numpy("layer_2")[0][0][:3])
    assert "layer_2[0], 3 of 64" in shown
    assert first in shown


def test_report_has_the_lengths_only(workplace, capsys):
    workplace.finished("\n".join(LINES), views={"inner": VIEWS["inner"]})
    assert main(["report", "out", "--json"], version="test") == 0
    sections = json.loads(capsys.readouterr().out)["sections"]
    assert sections["lengths"]["figures"]["texts"] == 39
    assert sections["layers"]["figures"] == {}


def test_equal_bytes_with_two_workers(workplace):
    views = {name: (VIEWS | OTHER_FORMATS)[name] for name in ("plain", "codes", "inner_jsonl", "codes_tfrecord")}
    workplace.prepare("\n".join(LINES), views=views, input={"slice_bytes": 600})
    workplace.drive()
    workplace.run("--workers", "2", "--output", "two")
    assert workplace.files("two") == workplace.files()
    assert len(layerbeam.open_run("out")["plain"].parts) > 2


def test_rows_are_copied(workplace):
    """Those of a file with another name, and those of a pack of which one file has changed."""
    files = {f"{number:02}.txt": "\n".join(LINES[number : number + 5]) for number in range(20)}
    views = {name: (VIEWS | OTHER_FORMATS)[name] for name in ("inner", "codes", "inner_jsonl", "codes_tfrecord")}
    workplace.prepare(files, views=views)
    workplace.drive()
    assert len(list(layerbeam.open_run("out").blocks())) == 1
    workplace.write("corpus/07.txt", "another text")
    workplace.write("corpus/copy.txt", files["03.txt"])
    printed = workplace.drive().err
    assert (
        "20 files changed or moved, or packed with such; rows of bytes or texts that the folder has are copied\n"
        in printed
    )
    before = {name: layerbeam.open_run("out")[name].num_rows for name in views}
    workplace.drive("--output", "fresh")
    assert before == {name: layerbeam.open_run("fresh")[name].num_rows for name in views}
    assert "pass" in workplace.verify("--sample", "200").out


def test_blocks_end_as_those_of_tokens(workplace):
    views = {"texts": VIEWS["plain"]}
    parts = {}
    for name, given in (("lists", views), ("tokens", {"texts": VIEWS["plain_tokens"]})):
        workplace.prepare("\n".join(LINES), views=given, output={"path": name, "target_part_bytes": 60_000})
        workplace.drive()
        parts[name] = [block.files[0].num_lines for block in layerbeam.open_run(name).blocks()]
    assert parts["lists"] == parts["tokens"]
    assert len(parts["lists"]) > 3


def test_plan_counts_vectors(workplace):
    workplace.prepare("\n".join(LINES), views={name: VIEWS[name] for name in ("inner", "codes", "codes_tokens")})
    plan = json.loads(workplace.plan("--json").out)
    printed = workplace.drive().err
    run = layerbeam.open_run("out")
    num_inner, num_tokens = (sum(map(len, run[name].to_numpy(run[name].vectors[0]))) for name in ("inner", "codes"))
    assert plan["views"]["inner"]["rows"] == plan["views"]["codes"]["rows"] == len(run["inner"])
    assert plan["views"]["inner"]["vector_bytes"] == num_inner * 64 * 4
    assert plan["views"]["codes"]["vector_bytes"] == num_tokens * 2 * (64 + 4)
    assert plan["views"]["codes"]["vector_bytes"] == plan["views"]["codes_tokens"]["vector_bytes"]
    assert f"`inner`: {num_inner} tokens x 64 x 4 bytes" in printed
    size = run.manifest["views"]["inner"]["bytes"]
    assert 0.7 * size < plan["views"]["inner"]["bytes"] < 1.4 * size


def test_verify_finds_a_wrong_vector_and_a_missing_one(workplace):
    workplace.prepare("\n".join(LINES), views={"plain": VIEWS["plain"]})
    workplace.drive()
    (path,) = layerbeam.open_run("out")["plain"].paths

    def replaced(table, rows):
        field = table.schema.field("layer_3")
        return table.set_column(table.schema.get_field_index("layer_3"), field, pa.array(rows, field.type))

    original = pq.read_table(path)
    rows = original["layer_3"].to_pylist()
    rows[4][2][5] += 0.01
    pq.write_table(replaced(original, rows), path)
    found = workplace.verify("--sample", "100", status=1).out
    assert "line 4, row 2 of the text: off by 0.01" in found
    rows = original["layer_3"].to_pylist()
    del rows[4][2]
    pq.write_table(replaced(original, rows), path)
    found = workplace.verify("--sample", "100", status=1).out
    assert "have other values in length of layer_3 (the first at line 4)" in found


def test_encode():
    views = {name: VIEWS[name] for name in ("inner", "inner_tokens", "codes", "codes_tokens")}
    texts = ["a river bank", "\ufffd", "the bank"]
    handle = str(DATA / "hf_uncased")
    tables = layerbeam.encode(texts, encoder=handle, views=views, output="arrow")
    assert str(tables["inner"]["layer_2"].type).startswith("list<element: fixed_size_list<element: float not null>[64]")
    arrays = layerbeam.encode(texts, encoder=handle, views=views)
    assert [rows.shape for rows in arrays["inner"]["layer_2"]] == [(3, 64), (0, 64), (2, 64)]
    np.testing.assert_array_equal(np.concatenate(list(arrays["inner"]["layer_2"])), arrays["inner_tokens"]["layer_2"])
    for column in ("layer_3", "layer_3_scale"):
        whole = np.concatenate(list(arrays["codes"][column]))
        np.testing.assert_array_equal(whole, arrays["codes_tokens"][column])
    assert arrays["inner"]["text"].tolist() == texts


def test_other_levels_have_no_such_pooling():
    with pytest.raises(ValueError, match="pooling: is none; level word allows first, last, mean, sum, max"):
        layerbeam.encode(["a"], views={"v": {"level": "word", "layers": [1], "pooling": "none"}})
