"""`View.export`: the rows as arrays or Parquet in files, read by NumPy, safetensors and Arrow; `export`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from vector_tables import random_vectors, written

import layerbeam
from layerbeam.pipeline.cli.main import main
from layerbeam.pipeline.dataset import export
from layerbeam.pipeline.dataset.view import UnknownNameError
from layerbeam.transforms.parts.parquet import ROW_GROUP_BYTES

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
        ({"format": "npz"}, ValueError, "format is 'npz'; allowed: npy, safetensors, parquet"),
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
    with pytest.raises(FileExistsError, match=r"is not empty \(notes.txt, out\); name a new folder"):
        view.export(str(tmp_path))


def test_a_damaged_part_leaves_no_index(tmp_path):
    view = written(tmp_path / "out", SIZES)
    Path(view.paths[3]).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="run the configuration again to rewrite it"):
        view.export(str(tmp_path / "arrays"))
    assert not (tmp_path / "arrays" / "index.json").exists()


# --- Parquet ---


def read_parquet(index: Path) -> pa.Table:
    """The rows of all files, in the order of their names, as the index describes them."""
    described = json.loads(index.read_text(encoding="utf-8"))
    assert (described["format"], index.name) == ("parquet", "_index.json")
    tables, row = [], 0
    for shard in described["shards"]:
        (name,) = set(shard["files"].values())
        tables.append(pq.read_table(index.parent / name))
        assert (shard["first_row"], shard["rows"]) == (row, tables[-1].num_rows)
        row += tables[-1].num_rows
    names = [next(iter(shard["files"].values())) for shard in described["shards"]]
    assert names == sorted(names)
    assert {path.name for path in index.parent.iterdir()} == {"_index.json", *names}
    return pa.concat_tables(tables)


@pytest.mark.parametrize("files", [1, 3, 100])
@pytest.mark.parametrize(
    "settings",
    [{}, {"dtype": "float16"}, {"dtype": "int8"}, {"format": "tfrecord"}],
    ids=str,
)
def test_parquet_files_have_all_rows_in_order(tmp_path, files, settings):
    view = written(tmp_path / "out", SIZES, **settings)
    found = read_parquet(view.export(str(tmp_path / "big"), format="parquet", shards=files))
    expected = pa.concat_tables([view.read(part, view.schema.names) for part in view.parts])
    assert found.equals(expected)
    assert found.schema.equals(view.schema)
    sizes = [pq.read_metadata(path).num_rows for path in sorted((tmp_path / "big").glob("*.parquet"))]
    assert max(sizes) - min(sizes) <= 1


def test_parquet_files_of_codes_and_of_some_columns(tmp_path):
    view = written(tmp_path / "out", SIZES, dtype="int8")
    found = read_parquet(view.export(str(tmp_path / "codes"), format="parquet", codes=True, shards=2))
    assert found.equals(view.to_arrow(codes=True))
    few = read_parquet(view.export(str(tmp_path / "few"), format="parquet", columns=["party", "layer_2"]))
    assert few.equals(view.to_arrow(["party", "layer_2"]))


def test_row_groups_can_be_skipped(tmp_path, monkeypatch):
    """Their size does not depend on the parts, and their statistics are those of the keys."""
    width, sizes, group_bytes = 256, (900, 1, 300, 900), 1 << 18
    monkeypatch.setattr(export, "ROW_GROUP_BYTES", group_bytes)
    view = written(tmp_path / "out", sizes, hidden_size=width)
    view.export(str(tmp_path / "big"), format="parquet", shards=2, columns=["file", "line", "year", "layer_2"])
    total, before = 0, -1
    for path in sorted((tmp_path / "big").glob("*.parquet")):
        footer = pq.read_metadata(path)
        assert footer.num_row_groups > 1
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
            line, vector = columns["line"].statistics, columns["layer_2.list.element"]
            assert line.min == before + 1
            before = line.max
            assert (columns["file"].statistics.min, vector.statistics) == ("a.txt", None)
            assert vector.compression == "ZSTD"
            size = group.num_rows * width * 4
            assert size <= group_bytes
            assert size > 0.9 * group_bytes or number == footer.num_row_groups - 1
            total += group.num_rows
    assert total == sum(sizes)


def test_a_parquet_export_without_rows(tmp_path):
    view = written(tmp_path / "out", ())
    found = read_parquet(view.export(str(tmp_path / "big"), format="parquet"))
    assert (found.num_rows, found.schema.equals(view.schema)) == (0, True)


def test_readers_take_the_folder_of_a_parquet_export(tmp_path):
    view = written(tmp_path / "out", SIZES)
    view.export(str(tmp_path / "big"), format="parquet", shards=3)
    lines, folder = list(range(100)), str(tmp_path / "big")
    assert ds.dataset(folder).to_table(["line"])["line"].to_pylist() == lines
    assert pl.read_parquet(f"{folder}/*.parquet")["line"].to_list() == lines
    assert [line for (line,) in duckdb.sql(f"SELECT line FROM '{folder}/*.parquet'").fetchall()] == lines


def test_an_export_replaces_another_one_only(tmp_path):
    view = written(tmp_path / "out", SIZES)
    target = tmp_path / "big"
    view.export(str(target), format="parquet", shards=5)
    with pytest.raises(FileExistsError, match=r"is not empty .*; name a new folder, or overwrite an export"):
        view.export(str(target), format="parquet")
    (target / ".unfinished-export-x").mkdir()  # of one that was killed
    found = read_parquet(view.export(str(target), format="parquet", shards=2, overwrite=True))
    assert found.equals(view.to_arrow())
    index = view.export(str(target), overwrite=True)
    arrays = {f"layer_{layer}-00000-of-00001.npy" for layer in (1, 2)}
    assert {path.name for path in target.iterdir()} == {"index.json", *arrays}
    (target / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"is not empty \(notes.txt\); no export wrote that: name a new folder"):
        view.export(str(target), overwrite=True)
    assert (target / "notes.txt").read_text() == "mine"
    assert index.exists()


@pytest.mark.parametrize("format_", ["npy", "safetensors", "parquet"])
def test_a_failed_export_leaves_nothing_new(tmp_path, format_):
    view = written(tmp_path / "out", SIZES)
    target = tmp_path / "big"
    view.export(str(target), format=format_, shards=2)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    Path(view.paths[3]).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="run the configuration again to rewrite it"):
        view.export(str(target), format=format_, overwrite=True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


@pytest.mark.slow
def test_a_killed_export_leaves_no_file_in_place(tmp_path):
    """Its folder of unfinished files is hidden from readers, and the next one with `overwrite` removes it."""
    written(tmp_path / "out", (20_000, 20_000), hidden_size=512)
    program = "import sys, layerbeam; layerbeam.open_run(sys.argv[1])['texts'].export(sys.argv[2], format='parquet')"
    target = tmp_path / "big"
    export = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "out"), str(target)])
    while not list(target.glob(".unfinished-export-*/*.parquet")):
        assert export.poll() is None
        time.sleep(0.001)
    os.kill(export.pid, signal.SIGKILL)
    export.wait()
    assert [path.name[:19] for path in target.iterdir()] == [".unfinished-export-"]
    assert ds.dataset(str(target)).count_rows() == 0
    view = layerbeam.open_run(tmp_path / "out", allow_incomplete=True)["texts"]
    read_parquet(view.export(str(target), format="parquet", shards=2, overwrite=True))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """A view of 330 MB in parts of 2 MB, with row groups of 32 MiB."""
    written(tmp_path / "out", [500] * 160, hidden_size=512)
    program = """
import resource, sys, layerbeam
view = layerbeam.open_run(sys.argv[1])["texts"]
view.read(view.parts[0])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
view.export(sys.argv[2], format="parquet")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "out"), str(tmp_path / "big")]
    grown = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert sum(path.stat().st_size for path in (tmp_path / "big").iterdir()) > 8 * ROW_GROUP_BYTES
    assert grown < 4 * ROW_GROUP_BYTES


# --- the command ---


def command(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main(["export", *map(str, arguments)], version="test") == status
    printed = capsys.readouterr()
    return printed.out if status == 0 else printed.err


def test_the_command(tmp_path, capsys):
    view = written(tmp_path / "out", SIZES, dtype="int8")
    printed = command(capsys, tmp_path / "out", "--to", tmp_path / "big", "--files", 4)
    assert printed == f"texts: 100 rows in 4 files, listed in {tmp_path}/big/_index.json\n"
    assert read_parquet(tmp_path / "big" / "_index.json").equals(view.to_arrow())
    done = json.loads(command(capsys, tmp_path / "out", "--to", tmp_path / "one", "--codes", "--json"))
    assert done == {"index": f"{tmp_path}/one/_index.json", "view": "texts", "rows": 100, "files": 1}
    assert read_parquet(tmp_path / "one" / "_index.json").equals(view.to_arrow(codes=True))
    printed = command(capsys, tmp_path / "out", "--to", tmp_path / "big", "--format", "npy", status=2)
    assert "is not empty" in printed
    assert "give --overwrite to replace an export" in printed
    command(capsys, tmp_path / "out", "--to", tmp_path / "big", "--format", "npy", "--overwrite")
    assert len(read(tmp_path / "big" / "index.json")["layer_1"]) == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--view", "text"], "'text': .* has no such view; it has texts; did you mean `texts`"),
        (["--files", "0"], "'0' is not a positive integer"),
        (["--format", "csv"], "invalid choice: 'csv'"),
        (["--to", "gs://bucket/big"], "--to gs://bucket/big: is in a store; name a folder on this machine"),
    ],
)
def test_the_command_is_wrong(tmp_path, capsys, arguments, message):
    import re

    written(tmp_path / "out", SIZES)
    printed = command(capsys, tmp_path / "out", "--to", tmp_path / "big", *arguments, status=2)
    assert re.search(message, printed)
    assert not (tmp_path / "big").exists()
