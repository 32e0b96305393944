"""TFRecord and JSON Lines written next to Parquet, from the same forward pass."""

from __future__ import annotations

import gzip
import hashlib
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from corpora import random_lines
from weights import vectors

VIEWS = {
    "parquet": {"level": "token", "layers": [-1, 0]},
    "records": {"level": "token", "layers": [-1, 0], "format": "tfrecord"},
    "raw": {"level": "text", "layers": [-1, 1], "combine": "concat", "format": "tfrecord", "compress": False},
    "lines": {"level": "token", "layers": [-1, 0], "format": "jsonl"},
    "objects": {"level": "text", "layers": [2], "format": "jsonl", "compress": False, "dtype": "float16"},
    "texts": {"level": "text", "layers": [2], "dtype": "float16"},
}


def several(workplace) -> None:
    lines = random_lines(120)
    workplace.write("corpus/a.txt", "\n".join(lines[:80]) + "\n")
    workplace.write("corpus/b.txt", "\n".join(lines[80:]) + "\n")
    workplace.configure(input={"slice_bytes": 3000}, views=VIEWS)


def test_all_formats_contain_same_rows(workplace):
    several(workplace)
    printed = workplace.drive().err
    folder = workplace.folder / "out"
    parts = {name: sorted((folder / name).iterdir()) for name in VIEWS}
    assert {len(paths) for paths in parts.values()} == {len(parts["parquet"])}
    assert len(parts["parquet"]) > 3
    for name, ending in (("records", ".tfrecord.gz"), ("raw", ".tfrecord"), ("lines", ".jsonl.gz")):
        block = parts["parquet"][0].name.removesuffix(".parquet").rpartition("-")[0]
        digits = hashlib.sha256(parts[name][0].read_bytes()).hexdigest()[:16]
        assert parts[name][0].name == f"{block}-{digits}{ending}"
    tokens = workplace.rows("parquet")

    features = {
        name: tf.io.FixedLenSequenceFeature([64], tf.float32, allow_missing=True) for name in ("layer_3", "layer_0")
    }
    dataset = tf.data.TFRecordDataset([str(path) for path in parts["records"]], compression_type="GZIP")
    texts = list(dataset.map(lambda record: tf.io.parse_single_example(record, features)).as_numpy_iterator())
    assert len(texts) == workplace.rows("texts").num_rows
    for name in features:
        np.testing.assert_array_equal(np.concatenate([text[name] for text in texts]), vectors(tokens, name))

    lines = [json.loads(line) for path in parts["lines"] for line in gzip.decompress(path.read_bytes()).splitlines()]
    values = [token["layers"][1]["values"] for line in lines for token in line["features"]]
    np.testing.assert_allclose(values, vectors(tokens, "layer_0"), rtol=0, atol=6e-7)
    assert {layer["index"] for line in lines for token in line["features"] for layer in token["layers"]} == {-1, 0}

    objects = [json.loads(line) for path in parts["objects"] for line in path.read_text().splitlines()]
    halves = workplace.rows("texts")
    assert [line["text"] for line in objects] == halves["text"].to_pylist()
    np.testing.assert_allclose([line["layer_2"] for line in objects], vectors(halves, "layer_2"), rtol=0, atol=6e-7)

    described = workplace.manifest()["views"]
    for name in ("records", "lines", "objects"):
        size, unit = re.search(rf"about ([\d.]+) (kB|MB) in `{name}`", printed).groups()
        assert described[name]["bytes"] == pytest.approx(float(size) * {"kB": 1e3, "MB": 1e6}[unit], rel=0.5), name
    formats = {name: view["format"] for name, view in described.items()}
    assert formats == {name: settings.get("format", "parquet") for name, settings in VIEWS.items()}
    out = workplace.show().out
    assert all(f"first rows of {name}" in out for name in VIEWS)
    assert len(re.findall(r"\[CLS\]  ", out)) == 3


def test_equal_runs_write_equal_bytes_in_every_format(workplace):
    several(workplace)
    workplace.drive("--output", "one")
    workplace.run("--output", "two", "--workers", "2")
    files = workplace.files("one")
    assert {"_SUCCESS", "manifest.json", "parts.jsonl"} < files.keys()
    assert not [name for name in files if "_commits" in name or "_unfinished" in name]
    assert workplace.files("two") == files
    before = {path: path.stat().st_mtime_ns for path in (workplace.folder / "one").rglob("*.*") if path.is_file()}
    assert "nothing to do" in workplace.drive("--output", "one").err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    workplace.write("corpus/a.txt", "just one line\n")
    workplace.drive("--output", "one")
    workplace.drive("--output", "fresh")
    assert workplace.files("one") == workplace.files("fresh"), "a stale part"


def test_views_without_rows_can_be_read(workplace):
    workplace.finished("\n\n", status=3, views=VIEWS)
    for name in ("records", "raw"):
        (path,) = (workplace.folder / "out" / name).iterdir()
        assert path.name.startswith("empty.tfrecord")
        assert list(tf.data.TFRecordDataset(str(path), compression_type="GZIP" if path.suffix == ".gz" else "")) == []
    (path,) = (workplace.folder / "out" / "lines").iterdir()
    assert gzip.decompress(path.read_bytes()) == b""
    assert "first rows" not in workplace.show().out
    workplace.verify(status=3)


@pytest.mark.parametrize(
    "change", ["views.lines.layers=[3, 0]", "views.records.compress=false", "views.lines.format=tfrecord"]
)
def test_changed_format_is_another_run(workplace, change):
    workplace.finished("one line\n", views=VIEWS)
    assert "holds a run with other settings" in workplace.drive("--set", change, status=2).err


def test_equivalent_layer_numbers_are_the_same_run(workplace):
    workplace.finished("one line\n", views={"t": {"level": "token", "layers": [-1]}})
    assert "nothing to do" in workplace.drive("--set", "views.t.layers=[3]").err
    again = ("--set", "views.t.layers=[2]", "--set", "views.t.layer_numbering=extract_features")
    assert "nothing to do" in workplace.drive(*again).err


def test_kept_fields_are_in_every_format(workplace):
    objects = [
        {"text": "the first one. And a second!", "key": "a", "year": 1951, "weight": 0.1, "good": True},
        {"text": "another", "key": None, "year": None, "weight": None, "good": None},
        {"text": "the last one", "key": "ü", "year": -3, "weight": -2.5, "good": False},
    ]
    workplace.write("corpus/a.jsonl", "".join(json.dumps(line) + "\n" for line in objects))
    fields = {"year": "int64", "weight": "float64", "good": "bool"}
    settings = {"format": "jsonl", "id_field": "key", "keep_fields": fields, "unit": "sentence"}
    workplace.configure(input=settings, views=VIEWS)
    workplace.drive()
    workplace.verify()
    names = ("id", *fields, "line", "sentence")
    texts = workplace.rows("texts").select(names).to_pylist()
    assert [row["sentence"] for row in texts] == [0, 1, 0, 0]

    (path,) = (workplace.folder / "out/objects").iterdir()
    assert [{name: json.loads(line)[name] for name in names} for line in path.read_text().splitlines()] == texts
    features = {
        "id": tf.io.FixedLenFeature([], tf.string, default_value="none"),
        "year": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "weight": tf.io.FixedLenFeature([], tf.float32, default_value=0),
        "good": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "sentence": tf.io.FixedLenFeature([], tf.int64),
    }
    (path,) = (workplace.folder / "out/records").iterdir()
    dataset = tf.data.TFRecordDataset(str(path), compression_type="GZIP")
    got = list(dataset.map(lambda record: tf.io.parse_single_example(record, features)).as_numpy_iterator())
    assert [text["id"].decode() for text in got] == ["a", "a", "none", "ü"]
    assert [text["year"] for text in got] == [1951, 1951, 0, -3]
    assert [text["weight"] for text in got] == [np.float32(0.1), np.float32(0.1), 0, -2.5]
    assert [text["good"] for text in got] == [1, 1, 0, 0]
    assert [text["sentence"] for text in got] == [0, 1, 0, 0]


def test_options_of_beam_are_recorded_nowhere(workplace):
    """They may be keys of stores."""
    workplace.write("corpus/a.txt", "the bank\n")
    workplace.configure(beam={"s3_secret_access_key": "hidden42"})
    workplace.drive()
    files = [path for path in workplace.folder.joinpath("out").rglob("*") if path.is_file()]
    assert workplace.folder / "out/_runs/1.json" in files
    assert not any(b"hidden42" in path.read_bytes() for path in files)
    workplace.verify()
