"""TFRecord and JSON Lines: what other readers and our own find in the files."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from layerbeam.transforms.parts import read_tables
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.tfrecord import examples, parse_example
from layerbeam.transforms.parts.write import write_part
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.view import ViewSpec

FIELDS = (("id", "string"), ("year", "int64"), ("weight", "float64"), ("good", "bool"))
TEXTS = ("the café, “quoted”", "", "a")
PLACES = ((3, 0, 4), (3, 1, 2), (9, 0, 3))  # line, sentence, tokens


def view(level: str, **settings) -> ViewSpec:
    given = {"layers": (3, 1), "hidden_size": 5, "given_layers": (-1, 1), "format": "tfrecord", "fields": FIELDS}
    return ViewSpec(name="v", level=level, **given | settings)


def table(view: ViewSpec) -> pa.Table:
    """Three texts in two lines; the second has only nulls in the fields."""
    counts = [tokens if view.level == "token" else 1 for _, _, tokens in PLACES]
    total = sum(counts)
    text = np.repeat([0, 1, 2], counts)
    columns = {
        "file": ["corpus/ä.txt"] * total,
        "id": [["A-1", None, "ü" * 200][t] for t in text],
        "year": [[-5, None, 2**40][t] for t in text],
        "weight": [[0.5, None, -2.0][t] for t in text],
        "good": [[True, None, False][t] for t in text],
        "a": [["", None, "\0"][t] for t in text],
        "m": [[None, 1e30, float("nan")][t] for t in text],
        "z": [[-0.0, 0.1, None][t] for t in text],
        "line": [PLACES[t][0] for t in text],
        "sentence": [PLACES[t][1] for t in text],
        "start": [-1 if row % 2 else 1000 * row for row in range(total)],
        "end": [-1 if row % 2 else 1000 * row + 7 for row in range(total)],
        "token_index": list(range(total)),
        "word_index": [row - 1 for row in range(total)],
        "token": [["[CLS]", "é", "##b", "", '"'][row % 5] for row in range(total)],
        "token_id": [30521 * row for row in range(total)],
        "segment_id": [row % 2 for row in range(total)],
        "text": [TEXTS[t] for t in text],
        "num_tokens": [12 * row for row in range(total)],
        "num_dropped": [0] * total,
        "num_unknown": [0] * total,
        "word": [["café", "“", "", "naïve", "a"][row % 5] for row in range(total)],
        "num_texts": [row + 1 for row in range(total)],
    }
    random = np.random.default_rng(1)
    for name in view.vector_columns:
        values = random.normal(size=(total, view.width)).astype(view.dtype)
        values[0, 0] = -4e-5
        field = schema(view).field(name)
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=field.type)
    return pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in schema(view)], schema=schema(view))


def written(folder: Path, view: ViewSpec, rows: pa.Table | None = None) -> Path:
    rows = table(view) if rows is None else rows
    part = write_part(Output(str(folder), "f"), view, "a-0000000000000000-000000000000", rows)
    path = folder / part.path
    assert path.stat().st_size == part.bytes
    assert not list(folder.rglob("_unfinished*"))
    return path


VIEWS = [
    view("token"),
    view("token", compress=False),
    view("token", combine="sum", fields=()),
    view("text", combine="concat"),
    view("text", pooling="pooler", layers=(), truncate_dim=3),
]


@pytest.mark.parametrize("view", VIEWS)
def test_examples_are_those_of_protobuf(view):
    rows = table(view)
    records = list(examples(view, rows))
    assert len(records) == 3
    for record in records:
        example = tf.train.Example.FromString(record)
        assert example.ByteSize() == len(record)  # nothing that protobuf does not know
        names = [name.encode() for name in example.features.feature]
        assert [record.index(b"\x0a" + bytes([len(name)]) + name) for name in sorted(names)] == sorted(
            record.index(b"\x0a" + bytes([len(name)]) + name) for name in names
        )
        ours = parse_example(record)
        assert set(ours) == set(example.features.feature)
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            values = list(getattr(feature, kind).value)
            assert values == [v.encode() for v in ours[name]] if kind == "bytes_list" else values == list(ours[name])
    example = tf.train.Example.FromString(records[0]).features.feature
    assert example["file"].bytes_list.value == ["corpus/ä.txt".encode()]
    assert example["line"].int64_list.value == [3]
    if view.fields:
        assert example["year"].int64_list.value == [-5]
        assert "year" not in tf.train.Example.FromString(records[1]).features.feature
    if view.level == "token":
        assert example["start"].int64_list.value == [0, -1, 2000, -1]
        assert [value.decode() for value in example["token"].bytes_list.value] == ["[CLS]", "é", "##b", ""]


PINNED = [
    (view("token"), "87c4fe7d11b0bb22f66977173dc9d631d1c9464760a46f1ece8e211fe342a169"),
    (
        view("token", combine="sum", fields=(), special_tokens=False),
        "1fcf5301f1d3c5e7536c70d14d3bddf4d97503c9167bfff2c49f30ee7095a320",
    ),
    (
        view("token", include_text=True, fields=(("a", "string"), ("z", "float64"), ("m", "float64"))),
        "ed62b2459153fcd66cb86b67072acc0169dbbc1973d92d03343b04c7813fd249",
    ),
    (view("word"), "eb2cb22ca22e020ed3af19fc4bf1f716710e8ab23036c565c73370a638719c69"),
    (view("text", combine="concat"), "aa73990c297efc2d9746da7a10edb3e42e7a5028998a066a0ee1e6fa2f3da2e8"),
    (
        view("text", pooling="pooler", layers=(), truncate_dim=3),
        "937c550cb4793cd7767aa45c688c7b1dfa76d2813363c458fab393731f3f2dfb",
    ),
    (
        view("record", fields=(("weight", "float64"), ("id", "string"))),
        "ff6e74e30bc62b0de189df0fd57d1b64d687b201252f72f5517ab70e81642b36",
    ),
]


@pytest.mark.parametrize(("view", "sha256"), PINNED, ids=lambda value: getattr(value, "level", ""))
def test_the_bytes_of_examples_do_not_change(view, sha256):
    """Files written by an earlier version and files written now have the same hashes in `parts.jsonl`."""
    records = list(examples(view, table(view)))
    assert hashlib.sha256(b"".join(len(record).to_bytes(4, "big") + record for record in records)).hexdigest() == sha256


@pytest.mark.parametrize("compress", [True, False])
def test_tf_data_reads_tokens(tmp_path, compress):
    tokens = view("token", compress=compress)
    path = written(tmp_path, tokens)
    assert path.name.endswith(".tfrecord.gz" if compress else ".tfrecord")
    features = {
        "file": tf.io.FixedLenFeature([], tf.string),
        "line": tf.io.FixedLenFeature([], tf.int64),
        "year": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "token": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
        "start": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
        "layer_3": tf.io.FixedLenSequenceFeature([5], tf.float32, allow_missing=True),
        "layer_1": tf.io.FixedLenSequenceFeature([5], tf.float32, allow_missing=True),
    }
    dataset = tf.data.TFRecordDataset(str(path), compression_type="GZIP" if compress else "")
    texts = list(dataset.map(lambda record: tf.io.parse_single_example(record, features)).as_numpy_iterator())
    assert [text["layer_3"].shape for text in texts] == [(4, 5), (2, 5), (3, 5)]
    expected = table(tokens)
    for name in ("layer_3", "layer_1"):
        values = np.concatenate([text[name] for text in texts]).reshape(-1)
        np.testing.assert_array_equal(values, expected[name].combine_chunks().flatten().to_numpy())
    assert [text["year"] for text in texts] == [-5, 0, 2**40]
    assert np.concatenate([text["start"] for text in texts]).tolist() == expected["start"].to_pylist()
    assert b"".join(t for text in texts for t in text["token"]).decode() == "".join(expected["token"].to_pylist())


def test_tf_data_reads_texts(tmp_path):
    texts = view("text")
    features = {
        "text": tf.io.FixedLenFeature([], tf.string),
        "layer_3": tf.io.FixedLenFeature([5], tf.float32),
        "num_tokens": tf.io.FixedLenFeature([], tf.int64),
    }
    dataset = tf.data.TFRecordDataset(str(written(tmp_path, texts)), compression_type="GZIP")
    got = list(dataset.map(lambda record: tf.io.parse_single_example(record, features)).as_numpy_iterator())
    assert [text["text"].decode() for text in got] == list(TEXTS)
    values = np.stack([text["layer_3"] for text in got]).reshape(-1)
    np.testing.assert_array_equal(values, table(texts)["layer_3"].combine_chunks().flatten().to_numpy())


def test_token_lines_are_those_of_extract_features(tmp_path):
    tokens = view("token", format="jsonl", compress=False)
    lines = [json.loads(line) for line in written(tmp_path, tokens).read_text().splitlines()]
    assert [list(line) for line in lines] == [["linex_index", "features"]] * 3
    assert [line["linex_index"] for line in lines] == [3, 3, 9]
    assert [len(line["features"]) for line in lines] == [4, 2, 3]
    first = lines[0]["features"][0]
    assert list(first) == ["token", "layers"]
    assert [list(layer) for layer in first["layers"]] == [["index", "values"]] * 2
    assert [layer["index"] for layer in first["layers"]] == [-1, 1]
    values = [feature["layers"][0]["values"] for line in lines for feature in line["features"]]
    expected = table(tokens)["layer_3"].to_pylist()
    assert values == [[round(value, 6) for value in row] for row in expected]


@pytest.mark.parametrize(("level", "combine"), [("token", "sum"), ("text", "separate"), ("text", "concat")])
def test_other_lines_are_one_object_per_row(tmp_path, level, combine):
    rows = view(level, combine=combine, format="jsonl")
    with gzip.open(written(tmp_path, rows), "rt") as file:
        lines = [json.loads(line) for line in file]
    expected = table(rows)
    assert len(lines) == expected.num_rows
    for line, row in zip(lines, expected.to_pylist(), strict=True):
        for name in rows.vector_columns:
            row[name] = [round(value, 6) for value in row[name]]
        assert line == row
        assert list(line) == expected.column_names


def test_half_precision_in_json_lines(tmp_path):
    halves = view("text", format="jsonl", dtype="float16")
    (got,) = read_tables(str(written(tmp_path, halves)), schema(halves))
    assert got.equals(table(halves))


def read(path: Path, view: ViewSpec) -> pa.Table:
    return pa.concat_tables(read_tables(str(path), schema(view)))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("format", ["parquet", "tfrecord"])
def test_what_is_written_is_read_back(tmp_path, view, format):
    view = dataclasses.replace(view, format=format)
    got = read(written(tmp_path, view), view)
    assert got.equals(table(view))


@pytest.mark.parametrize("view", VIEWS)
def test_json_lines_are_read_back(tmp_path, view):
    view = dataclasses.replace(view, format="jsonl")
    got, expected = read(written(tmp_path, view), view), table(view)
    if view.level == "token" and view.combine == "separate":
        assert got.column_names == ["line", "sentence", "token", "layer_3", "layer_1"]
        expected = expected.select(got.column_names)
    for name in got.column_names:
        if name in view.vector_columns:
            values, exact = (t[name].combine_chunks().flatten().to_numpy() for t in (got, expected))
            np.testing.assert_allclose(values, exact, rtol=0, atol=6e-7)
        else:
            assert got[name].equals(expected[name])


@pytest.mark.parametrize("format", ["tfrecord", "jsonl"])
def test_equal_rows_give_equal_bytes_without_a_clock(tmp_path, monkeypatch, format):
    some = view("token", format=format)
    first = written(tmp_path / "one", some).read_bytes()
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert written(tmp_path / "two", some).read_bytes() == first
    assert first[3:8] == bytes(5)  # no name, no time
    assert len(gzip.decompress(first)) > len(first)


@pytest.mark.parametrize("format", ["tfrecord", "jsonl"])
@pytest.mark.parametrize("compress", [True, False])
def test_empty_part(tmp_path, format, compress):
    some = view("token", format=format, compress=compress)
    path = written(tmp_path, some, schema(some).empty_table())
    assert list(read_tables(str(path), schema(some))) == []
    if format == "tfrecord":
        dataset = tf.data.TFRecordDataset(str(path), compression_type="GZIP" if compress else "")
        assert list(dataset) == []


def damaged(path: Path, view: ViewSpec) -> Iterator[pa.Table]:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return read_tables(str(path), schema(view))


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("format", ["tfrecord", "jsonl"])
def test_half_a_part_is_noticed(tmp_path, format, compress):
    some = view("token", format=format, compress=compress)
    with pytest.raises(OSError, match=r"ends in the middle|is truncated"):
        list(damaged(written(tmp_path, some), some))


@pytest.mark.parametrize("missing", range(1, 5))
def test_a_part_without_the_end_of_its_last_checksum(tmp_path, missing):
    some = view("token", format="tfrecord", compress=False)
    path = written(tmp_path, some)
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(OSError, match="ends in the middle of a record"):
        list(read_tables(str(path), schema(some)))


@pytest.mark.parametrize("line", ["[1]", '{"linex_index": 0}', '{"linex_index": 0, "features": [1]}', "{", '{"a": 1}'])
def test_lines_of_another_form(tmp_path, line):
    some = view("token", format="jsonl", compress=False)
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"."):
        list(read_tables(str(path), schema(some)))


def test_integers_of_any_length():
    values = [0, 1, 127, 128, 16383, 16384, 2**31, -1, -128, 2**63 - 1, -(2**63)]
    texts = view("text", fields=(("year", "int64"),))
    rows = pa.concat_tables([table(texts)] * 4).slice(0, len(values))
    rows = rows.set_column(rows.column_names.index("year"), "year", pa.array(values))
    records = list(examples(texts, rows))
    expected = [tf.train.Int64List(value=[value]).SerializeToString() for value in values]
    assert all(data in record for data, record in zip(expected, records, strict=True))
    assert [len(data) - 2 for data in expected] == [1, 1, 1, 2, 2, 3, 5, 10, 10, 9, 10]
    assert [parse_example(record)["year"].tolist() for record in records] == [[value] for value in values]


def test_no_warning_and_no_rows_without_special_tokens():
    tokens = view("token")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(examples(tokens, schema(tokens).empty_table())) == []
