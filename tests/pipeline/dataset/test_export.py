"""`View.export`: the rows as arrays in files, read back by NumPy and by the library of safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from vector_tables import random_vectors, written

from layerbeam.pipeline.dataset.view import UnknownNameError

SIZES = (30, 1, 0, 44, 25)
VECTORS = random_vectors(1, sum(SIZES))


def read(index: Path) -> dict[str, np.ndarray]:
    """The columns of all shards, as the index describes them."""
    described = json.loads(index.read_text(encoding="utf-8"))
    columns: dict[str, list[np.ndarray]] = {name: [] for name in described["columns"]}
    row = 0
    for shard in described["shards"]:
        assert shard["first_row"] == row
        row += shard["rows"]
        for name, file in shard["files"].items():
            path = index.parent / file
            values = np.load(path, mmap_mode="r") if described["format"] == "npy" else load_file(path)[name]
            width = described["columns"][name]["width"]
            assert values.dtype.name == described["columns"][name]["dtype"]
            assert values.shape == (shard["rows"], *(() if width is None else (width,)))
            columns[name].append(values)
    assert row == described["rows"]
    return {name: np.concatenate(values) for name, values in columns.items()}


@pytest.mark.parametrize(
    ("format_", "shards", "settings"),
    [
        ("npy", 1, {}),
        ("npy", 3, {"dtype": "int8"}),
        ("npy", 100, {"format": "tfrecord"}),
        ("safetensors", 1, {"dtype": "float16"}),
        ("safetensors", 7, {}),
    ],
)
def test_all_rows_in_order(tmp_path, format_, shards, settings):
    view = written(tmp_path / "out", SIZES, **settings)
    columns = ["line", *view.vectors]
    index = view.export(str(tmp_path / "arrays"), columns=columns, format=format_, shards=shards)
    found = read(index)
    rows = [view.read(part, columns) for part in view.parts]
    assert list(found) == columns
    assert found["line"].tolist() == [line for table in rows for line in table["line"].to_pylist()]
    for name in view.vectors:
        expected = [np.array(table[name].to_pylist(), view.dtype).reshape(-1, view.width) for table in rows]
        np.testing.assert_array_equal(found[name], np.concatenate(expected), strict=True)


def test_codes_and_their_scales(tmp_path):
    view = written(tmp_path / "out", SIZES, dtype="int8")
    found = read(view.export(str(tmp_path / "arrays"), codes=True, shards=2))
    assert list(found) == [stored for name in view.vectors for stored in (name, f"{name}_scale")]
    for name in view.vectors:
        np.testing.assert_array_equal(found[name], view.to_numpy(name, codes=True), strict=True)
        np.testing.assert_array_equal(found[f"{name}_scale"], view.to_numpy(f"{name}_scale", codes=True), strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_tensors_are_aligned_as_other_readers_want_them(tmp_path, dtype):
    """The library of safetensors reads others, too; those that map the file copy them, or refuse it."""
    view = written(tmp_path / "out", SIZES, dtype=dtype)
    for shards in (1, 9, 10, 100):  # numbers of different lengths in the header
        index = view.export(str(tmp_path / f"{shards}"), format="safetensors", shards=shards)
        for path in index.parent.glob("*.safetensors"):
            assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


@pytest.mark.parametrize("format_", ["npy", "safetensors"])
def test_a_view_without_rows(tmp_path, format_):
    view = written(tmp_path / "out", ())
    found = read(view.export(str(tmp_path / "arrays"), format=format_))
    assert {name: values.shape for name, values in found.items()} == dict.fromkeys(view.vectors, (0, view.width))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"format": "npz"}, ValueError, "format is 'npz'; allowed: npy, safetensors"),
        ({"shards": 0}, ValueError, "shards is 0; allowed: 1 to the number of rows, 100"),
        ({"shards": 2.5}, ValueError, "shards is 2.5; allowed: 1 to the number of rows, 100"),
        ({"shards": 101}, ValueError, "shards is 101; allowed: 1 to the number of rows, 100"),
        ({"columns": ["file"]}, ValueError, "file is .*string.*; arrays are of vectors and numbers"),
        ({"columns": ["layer_9"]}, UnknownNameError, "'layer_9': view texts of .* has no such column"),
        ({"folder": "gs://bucket/arrays"}, ValueError, "gs://bucket/arrays is in a store; name a local folder"),
    ],
)
def test_a_wrong_argument(tmp_path, settings, error, message):
    view = written(tmp_path / "out", SIZES)
    with pytest.raises(error, match=message):
        view.export(**{"folder": str(tmp_path / "arrays")} | settings)
    assert not (tmp_path / "arrays").exists()


def test_a_folder_with_files_is_left_alone(tmp_path):
    view = written(tmp_path / "out", SIZES)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty; name a new folder"):
        view.export(str(tmp_path))


def test_a_damaged_part_leaves_no_index(tmp_path):
    view = written(tmp_path / "out", SIZES)
    Path(view.paths[3]).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="run the configuration again to rewrite it"):
        view.export(str(tmp_path / "arrays"))
    assert not (tmp_path / "arrays" / "index.json").exists()
