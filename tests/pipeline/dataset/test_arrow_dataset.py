"""`View.dataset`: the listed parts, with filters and columns pushed down by other tools."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow.compute as pc
import pytest
from object_store import upload
from vector_tables import a_view, in_parts, random_vectors, written
from written_run import write_run

import layerbeam

SIZES = (5, 1, 0, 9)
VECTORS = random_vectors(1, sum(SIZES))
LATE = [line for line in range(15) if 1990 + line % 7 >= 1994]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_all_rows(tmp_path, dtype):
    view = written(tmp_path / "out", SIZES, dtype=dtype)
    dataset = view.dataset()
    assert dataset.schema.equals(view.stored.schema)
    assert dataset.to_table().equals(view.to_arrow(codes=True))
    assert dataset.count_rows() == 15
    assert dataset.partition_expression.equals(pc.scalar(True))


def test_a_filter_of_arrow(tmp_path):
    rows = written(tmp_path / "out", SIZES).dataset().to_table(["line", "layer_2"], filter=pc.field("year") >= 1994)
    assert rows["line"].to_pylist() == LATE
    np.testing.assert_array_equal(np.stack(rows["layer_2"].to_numpy()), VECTORS[LATE])


def test_duckdb(tmp_path):
    rows = written(tmp_path / "out", SIZES).dataset()  # DuckDB finds it by its name
    found = duckdb.sql("SELECT line, layer_2 FROM rows WHERE year >= 1994 ORDER BY line").fetchall()
    assert [line for line, _ in found] == LATE
    np.testing.assert_array_equal(np.float32([vector for _, vector in found]), VECTORS[LATE])
    assert duckdb.sql("SELECT count(*) FROM rows WHERE party IS NULL").fetchall() == [(3,)]
    del rows


def test_polars(tmp_path):
    rows = pl.scan_pyarrow_dataset(written(tmp_path / "out", SIZES).dataset())
    found = rows.filter(pl.col("year") >= 1994).select("line", "layer_2").collect()
    assert found["line"].to_list() == LATE
    np.testing.assert_array_equal(found["layer_2"].to_numpy(), VECTORS[LATE])


def test_other_files_of_the_folder_are_not_read(tmp_path):
    view = written(tmp_path / "out", SIZES)
    shutil.copy(view.paths[0], tmp_path / "out" / "texts" / "zzz.parquet")
    (tmp_path / "out" / "texts" / "year=2000").mkdir()
    shutil.copy(view.paths[0], tmp_path / "out" / "texts" / "year=2000" / "zzz.parquet")
    rows = layerbeam.open_run(tmp_path / "out").view("texts").dataset().to_table(["line", "year"])
    assert rows["line"].to_pylist() == list(range(15))
    assert max(rows["year"].to_pylist()) == 1996


def test_from_another_process_and_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "out", SIZES)
    dataset = pickle.loads(pickle.dumps(layerbeam.open_run("out").view("texts").dataset()))
    monkeypatch.chdir("/")
    assert dataset.count_rows() == 15


def test_without_rows(tmp_path):
    view = written(tmp_path / "out", ())
    assert view.dataset().to_table().equals(view.schema.empty_table())


def test_a_missing_part(tmp_path):
    view = written(tmp_path / "out", SIZES)
    Path(view.paths[1]).unlink()
    with pytest.raises(FileNotFoundError, match=Path(view.paths[1]).name):
        view.dataset().to_table()


def test_another_format(tmp_path):
    settings = a_view(format="jsonl")
    view = write_run(tmp_path / "out", settings, in_parts(settings, VECTORS, SIZES)).view("texts")
    with pytest.raises(ValueError, match="is jsonl; open_run reads the rows of Parquet only"):
        view.dataset()


def test_an_object_store(tmp_path, memory):
    view = written(tmp_path / "out", SIZES)
    upload(tmp_path / "out", "memory://bucket/out")
    dataset = layerbeam.open_run("memory://bucket/out").view("texts").dataset()
    assert dataset.to_table().equals(view.to_arrow())
    assert dataset.to_table(["line"], filter=pc.field("year") >= 1994)["line"].to_pylist() == LATE
