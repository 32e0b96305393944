"""`dtype: int8`: codes and scales in every format and level, read back as numbers or as they are."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from corpora import random_lines
from hypothesis import given
from hypothesis import strategies as st
from repository import DATA
from safetensors.numpy import load_file, save_file

import layerbeam
from layerbeam.transforms.views.number_types import quantize

FLOATS = {
    "tokens": {"level": "token", "layers": [-1, 0]},
    "sums": {"level": "word", "layers": [1, 2], "combine": "sum", "normalize": True},
    "texts": {"level": "text", "layers": [2], "pooling": "max", "truncate_dim": 7},
    "records": {"level": "record", "layers": [3]},
    "types": {"level": "word_type", "layers": [1]},
}
VIEWS = FLOATS | {f"{name}_8": view | {"dtype": "int8"} for name, view in FLOATS.items()}
VIEWS |= {
    "examples": FLOATS["tokens"] | {"dtype": "int8", "format": "tfrecord"},
    "lines": FLOATS["texts"] | {"dtype": "int8", "format": "jsonl", "compress": False},
    "google": FLOATS["tokens"] | {"dtype": "int8", "format": "jsonl", "compress": False},
}


@pytest.fixture
def run(workplace):
    lines = random_lines(60)
    workplace.finished({"a.txt": "\n".join(lines), "b.txt": "\n".join(lines[:20])}, views=VIEWS)
    return layerbeam.open_run("out")


def judged(vectors):
    """Codes and scales of vectors, one value at a time."""
    scales = [np.float32(max(map(abs, row))) / np.float32(127) for row in vectors]
    codes = [[round(float(x / s)) if s else 0 for x in row] for row, s in zip(vectors, scales, strict=True)]
    return np.array(codes), np.array(scales, np.float32)


@pytest.mark.parametrize("name", FLOATS)
def test_codes_and_scales_are_those_of_the_judge(run, name):
    floats, view = run[name], run[f"{name}_8"]
    assert len(view) == len(floats) > 30
    for column in (name for name in floats.schema.names if name.startswith(("layer", "embedding"))):
        codes, scales = judged(floats.to_numpy(column))
        stored = view.to_arrow(codes=True)
        assert str(stored[column].type).startswith("fixed_size_list<element: int8 not null>")
        np.testing.assert_array_equal(view.to_numpy(column, codes=True), codes)
        np.testing.assert_array_equal(stored[f"{column}_scale"], scales)
        read = view.to_numpy(column)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, codes.astype(np.float32) * scales[:, None])
    others = [name for name in floats.schema.names if not name.startswith(("layer", "embedding"))]
    assert view.to_arrow(others).equals(floats.to_arrow(others))


def test_ways_to_read(run):
    view = run["tokens_8"]
    assert view.schema.names == run["tokens"].schema.names
    assert view.dtype == np.float32
    numbers, codes = view.to_numpy("layer_3"), view.to_numpy("layer_3", codes=True)
    scales = view.to_numpy("layer_3_scale", codes=True)
    assert codes.dtype == np.int8
    np.testing.assert_array_equal(view.to_numpy("layer_3", out=np.zeros_like(numbers)), numbers)
    table = view.to_arrow(["layer_3", "token"])
    assert table.schema.equals(run["tokens"].to_arrow(["layer_3", "token"]).schema)
    assert view.to_arrow(["layer_3"], codes=True).column_names == ["layer_3"]
    batches = list(view.iter_batches(["token", "layer_3"], batch_rows=100))
    assert [batch.schema.names for batch in batches] == [["token", "layer_3"]] * len(batches)
    np.testing.assert_array_equal(np.concatenate([np.stack(b["layer_3"].to_numpy(False)) for b in batches]), numbers)
    assert next(view.iter_batches(["layer_3_scale"], codes=True))["layer_3_scale"][0].as_py() == scales[0]
    np.testing.assert_array_equal(np.stack(view.to_pandas(["layer_3"])["layer_3"]), numbers)
    np.testing.assert_array_equal(np.stack(view.to_pandas(codes=True)["layer_3"]), codes)
    texts = list(view.to_tf_dataset(["layer_3"]).as_numpy_iterator())
    np.testing.assert_array_equal(np.concatenate([text["layer_3"] for text in texts]), numbers)
    texts = list(view.to_tf_dataset(["layer_3", "layer_3_scale"], codes=True).as_numpy_iterator())
    np.testing.assert_array_equal(np.concatenate([text["layer_3"] for text in texts]), codes)
    np.testing.assert_array_equal(np.concatenate([text["layer_3_scale"] for text in texts]), scales)
    with pytest.raises(KeyError, match="'layer_3_scale': view tokens_8 of out has no such column"):
        view.to_numpy("layer_3_scale")
    assert "layer_3, layer_0, each 64 x int8" in repr(view)


def test_parquet_is_a_fourth(run):
    sizes = {name: run.manifest["views"][name]["bytes"] for name in ("tokens", "tokens_8")}
    assert sizes["tokens_8"] < 0.35 * sizes["tokens"]
    group = pq.read_metadata(run["tokens_8"].paths[0]).row_group(0)
    leaves = {leaf.path_in_schema: leaf for leaf in map(group.column, range(group.num_columns))}
    assert "RLE_DICTIONARY" in leaves["layer_3.list.element"].encodings
    assert leaves["layer_3.list.element"].total_uncompressed_size < 1.2 * 64 * group.num_rows


def test_tfrecord(run):
    view = run["tokens_8"]
    features = {
        "layer_3": tf.io.FixedLenFeature([], tf.string),
        "layer_3_scale": tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True),
    }
    texts = [
        tf.io.parse_single_example(record, features)
        for record in tf.data.TFRecordDataset(run["examples"].paths, "GZIP")
    ]
    codes = np.concatenate([tf.reshape(tf.io.decode_raw(text["layer_3"], tf.int8), [-1, 64]) for text in texts])
    np.testing.assert_array_equal(codes, view.to_numpy("layer_3", codes=True))
    scales = np.concatenate([text["layer_3_scale"] for text in texts])
    np.testing.assert_array_equal(scales, view.to_numpy("layer_3_scale", codes=True))


def test_json_lines(run):
    codes, scales = (run["texts_8"].to_numpy(name, codes=True) for name in ("layer_2", "layer_2_scale"))
    rows = [json.loads(line) for path in run["lines"].paths for line in Path(path).read_text().splitlines()]
    assert [row["layer_2"] for row in rows] == codes.tolist()
    np.testing.assert_array_equal(np.array([row["layer_2_scale"] for row in rows], np.float32), scales)
    assert list(rows[0]) == run["texts_8"].to_arrow(codes=True).column_names
    codes, scales = (run["tokens_8"].to_numpy(name, codes=True) for name in ("layer_0", "layer_0_scale"))
    lines = [json.loads(line) for path in run["google"].paths for line in Path(path).read_text().splitlines()]
    layers = [token["layers"][1] for line in lines for token in line["features"]]
    assert [layer["index"] for layer in layers] == [0] * len(codes)
    assert [layer["values"] for layer in layers] == codes.tolist()
    np.testing.assert_array_equal(np.array([layer["scale"] for layer in layers], np.float32), scales)


def test_verify_show_and_plan(run, workplace):
    out = workplace.verify("--sample", "20").out
    assert "allowed   1e-04 + 1e-05 |x| + 0.0039 of the vector's largest in int8\n" in out
    assert out.endswith("pass\n")
    assert "64 x int8" in workplace.show().out
    planned = json.loads(workplace.plan("--json", "--output", "new").out)["views"]
    for name in ("tokens_8", "texts_8", "examples"):
        assert planned[name]["bytes"] == pytest.approx(run.manifest["views"][name]["bytes"], rel=0.1), name


@pytest.mark.parametrize("name", ["tokens_8", "examples", "lines"])
def test_a_wrong_code_fails(run, workplace, name):
    """A code that is off by two differs by more than rounding."""
    part = Path(run[name].paths[0])
    if name == "tokens_8":
        table = pq.read_table(part)
        codes = np.stack(table["layer_3"].to_numpy())
        codes[5, 3] += 2 if codes[5, 3] < 100 else -2
        field = table.schema.field("layer_3")
        column = type(table["layer_3"].chunk(0)).from_arrays(codes.reshape(-1), type=field.type)
        pq.write_table(table.set_column(table.schema.get_field_index("layer_3"), field, column), part)
    elif name == "examples":
        data = bytearray(gzip.decompress(part.read_bytes()))
        place = data.index(b"layer_3") + 60
        data[place] ^= 2
        part.write_bytes(gzip.compress(data))
    else:
        rows = [json.loads(line) for line in part.read_text().splitlines()]
        rows[3]["layer_2"][0] += 2 if rows[3]["layer_2"][0] < 100 else -2
        part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = workplace.verify("--sample", "1000", status=1).out
    assert f"{name}" in out
    assert "off by" in out


def test_two_workers_write_the_same_bytes(run, workplace):
    workplace.run("--output", "two", "--workers", "2")
    assert workplace.files("two") == workplace.files()


def test_a_kept_field_that_is_named_like_a_scale(workplace):
    row = '{"text": "a river", "year": 1, "year_scale": null}\n'
    view = {"level": "text", "layers": [1], "dtype": "int8"}
    keep = {"format": "jsonl", "keep_fields": {"year": "int64", "year_scale": "int64"}}
    workplace.prepare({"a.jsonl": row}, views={"t": view}, input=keep)
    workplace.drive()
    found = layerbeam.open_run("out")["t"]
    assert found.schema.field("year_scale").nullable
    assert found.to_arrow(["year", "year_scale"]).to_pylist() == [{"year": 1, "year_scale": None}]


def test_encode():
    views = {"t": {"level": "token", "layers": [1, 2], "dtype": "int8"}}
    found = layerbeam.encode(["a river", "its bank"], views=views)["t"]
    floats = layerbeam.encode(["a river", "its bank"], views={"t": views["t"] | {"dtype": "float32"}})["t"]
    codes, scales = judged(floats["layer_2"])
    np.testing.assert_array_equal(found["layer_2"], codes)
    np.testing.assert_array_equal(found["layer_2_scale"], scales)
    table = layerbeam.encode(["a river", "its bank"], views=views, output="arrow")["t"]
    assert table["layer_2"].to_pylist() == codes.tolist()


@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), max_size=5)
)
def test_a_row_by_itself(rows):
    vectors = np.array(rows, np.float32).reshape(-1, 3)
    codes, scales = quantize(vectors)
    assert codes.dtype == np.int8
    assert codes.min(initial=0) >= -127
    with np.errstate(over="ignore"):
        read = codes.astype(np.float64) * scales[:, None].astype(np.float64)
    allowed = np.abs(vectors).max(axis=1, initial=0).astype(np.float64) / 254 * (1 + 1e-5) + 1e-44
    assert (np.abs(read - vectors) <= allowed[:, None]).all()
    for index in range(len(rows)):
        alone, scale = quantize(vectors[index : index + 1])
        assert alone.tolist() == codes[index : index + 1].tolist()
        assert scale[0] == scales[index]


@pytest.mark.parametrize(("weight", "said"), [(1, False), (10, True), (300, True)])
@pytest.mark.parametrize("level", ["text", "token"])
def test_a_channel_that_dominates_is_said(workplace, weight, said, level):
    encoder = shutil.copytree(DATA / "hf_uncased", workplace.folder / "m")
    tensors = load_file(encoder / "model.safetensors")
    tensors["encoder.layer.2.output.LayerNorm.weight"][7] = weight
    save_file(tensors, encoder / "model.safetensors")
    view = {"level": level, "layers": [1, -1], "dtype": "int8"}
    workplace.prepare("\n".join(random_lines(60)), encoder={"handle": "m"}, views={"x": view})
    printed = workplace.drive().out, workplace.verify().out
    assert ["x, layer_3: int8 is too coarse here" in one for one in printed] == [said, said]
    assert not any("x, layer_1: int8" in one for one in printed)
    columns = json.loads(workplace.verify("--json").out)["coarse"]
    assert [column.split(":")[0] for column in columns] == ["x, layer_3"] * said


def test_vectors_that_are_all_equal_are_not_coarse(workplace):
    done = workplace.finished("the river\n" * 30, views={"x": {"level": "text", "layers": [-1], "dtype": "int8"}})
    assert "int8 is" not in done.out
