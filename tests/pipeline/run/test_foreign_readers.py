"""Common data tools open every level, pooling and number type of vectors, with the same values in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from weights import vectors
from workplace import workplace_in

import layerbeam
from layerbeam.pipeline.cli.main import main

OTHER_TYPES = {16: "float16", 8: "int8"}
VIEWS = {
    "tokens": {"level": "token", "layers": [-1, 0]},
    "words": {"level": "word", "layers": [2], "pooling": "sum", "include_text": True},
    "texts": {"level": "text", "layers": [1], "pooling": "mean_max"},
    "pooled": {"level": "text", "pooling": "pooler", "normalize": True},
    "records": {"level": "record", "layers": [3], "truncate_dim": 5},
    "types": {"level": "word_type", "layers": [-1]},
    "concatenated": {"level": "token", "layers": [3, 2], "combine": "concat", "special_tokens": False},
}
VIEWS |= {f"{name}_{bits}": view | {"dtype": t} for name, view in VIEWS.items() for bits, t in OTHER_TYPES.items()}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all these views."""
    folder = tmp_path_factory.mktemp("readers")
    (folder / "a.txt").write_text("\n".join(random_lines(40)))
    return run(folder, "a.txt", VIEWS)


def run(folder: Path, pattern: str, views: dict[str, Any]) -> Path:
    with workplace_in(folder) as place:
        files = {"files": [str(folder / pattern)], "slice_bytes": 2000}
        place.configure(input=files, views=views, output={"path": str(folder / "out")})
        place.drive()
    return folder / "out"


def paths_of(output: Path, view: str) -> list[str]:
    return [str(path) for path in sorted((output / view).glob("*.parquet"))]


def expected(output: Path, view: str) -> tuple[str, np.ndarray]:
    """(name of the first vector column, its values), read with pyarrow part by part."""
    tables = [pq.read_table(path) for path in paths_of(output, view)]
    column = next(field.name for field in tables[0].schema if str(field.type).startswith("fixed_size_list"))
    return column, np.concatenate([vectors(table, column) for table in tables])


def check(given: np.ndarray, output: Path, view: str) -> None:
    _, values = expected(output, view)
    assert given.shape == values.shape
    assert len(values) > 0
    np.testing.assert_array_equal(given.astype(np.float32), values.astype(np.float32))


def with_pandas(paths: list[str], column: str) -> np.ndarray:
    return np.stack(pd.concat(map(pd.read_parquet, paths))[column])


def with_polars(paths: list[str], column: str) -> np.ndarray:
    return pl.concat(map(pl.read_parquet, paths))[column].to_numpy()


def with_duckdb(paths: list[str], column: str) -> np.ndarray:
    rows = [duckdb.sql(f"SELECT {column} FROM '{path}'").fetchall() for path in paths]
    return np.array([row[0] for part in rows for row in part], np.float32)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("read", [with_pandas, with_polars, with_duckdb])
def test_readers(output, view, read):
    check(read(paths_of(output, view), expected(output, view)[0]), output, view)


@pytest.fixture(scope="module")
def spark() -> Iterator[object]:
    pytest.importorskip("pyspark", reason="pyspark is not installed: make test-readers")
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    yield session
    session.stop()


# Spark (4.3) has no float16: "Illegal Parquet type: FIXED_LEN_BYTE_ARRAY (FLOAT16)".
@pytest.mark.parametrize("view", [view for view in VIEWS if not view.endswith("_16")])
def test_pyspark(output, view, spark):
    column, _ = expected(output, view)
    rows = [row[0] for path in paths_of(output, view) for row in spark.read.parquet(path).select(column).collect()]
    check(np.array(rows, np.float32), output, view)


@pytest.mark.parametrize("view", VIEWS)
def test_datasets(output, view, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="datasets is not installed: make test-readers")
    from datasets import load_dataset

    column, _ = expected(output, view)
    rows = load_dataset("parquet", data_files=paths_of(output, view), split="train", cache_dir=str(tmp_path))
    check(np.array(rows.with_format("numpy")[:][column]), output, view)


def test_datasets_by_the_card(output, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="datasets is not installed: make test-readers")
    from datasets import load_dataset

    assert main(["publish", str(output)], version="test") == 0  # the card alone
    for view in ("tokens", "texts_8", "types"):
        column, _ = expected(output, view)
        rows = load_dataset(str(output), view, split="train", cache_dir=str(tmp_path))
        check(np.array(rows.with_format("numpy")[:][column]), output, view)


def test_all_readers_give_the_rows_of_a_folder_in_one_order(tmp_path):
    lines = random_lines(300)
    places = [f"{top}/{path}" for top in "abc" for path in ("x.txt", "y.txt", "sub/x.txt", "sub/deep/y.txt")]
    for number, place in enumerate(places):
        (tmp_path / "corpus" / place).parent.mkdir(parents=True, exist_ok=True)
        own = lines[number * 20 :][: 60 if number == 5 else 20]
        (tmp_path / "corpus" / place).write_text("\n".join(own))
    view = layerbeam.open_run(run(tmp_path, "corpus/**/*.txt", {"tokens": VIEWS["tokens"]}))["tokens"]
    folder, columns = str(tmp_path / "out/tokens"), ["file", "line", "token_index", "token"]
    found = {
        "open_run": view.to_arrow(columns).to_pylist(),
        "tf.data": [
            dict(zip(columns, (text["file"].decode(), int(text["line"]), int(index), token.decode()), strict=True))
            for text in view.to_tf_dataset(columns).as_numpy_iterator()
            for index, token in zip(text["token_index"], text["token"], strict=True)
        ],
        "pandas": pd.read_parquet(folder, columns=columns).to_dict("records"),
        "polars": pl.read_parquet(folder, columns=columns).to_dicts(),
        "pyarrow": ds.dataset(folder).to_table(columns).to_pylist(),
        "duckdb": duckdb.sql(f"SELECT {', '.join(columns)} FROM '{folder}/*.parquet'").to_arrow_table().to_pylist(),
    }
    rows = found["open_run"]
    assert {name for name, of_reader in found.items() if of_reader != rows} == set()
    files = list(dict.fromkeys(row["file"] for row in rows))
    assert len(files) == len(places)
    assert files != sorted(files), "the order of the paths is another one"
    of_file = [[(row["line"], row["token_index"]) for row in rows if row["file"] == file] for file in files]
    assert of_file == list(map(sorted, of_file))


# --- exported views: the table in docs/export.md ---

EXPORTED = ("tokens", "tokens_16", "tokens_8", "records", "types")


@pytest.fixture(scope="module")
def exports(output: Path) -> Path:
    """Some of the views, each in three files."""
    folder = output.parent / "exports"
    for view in EXPORTED:
        arguments = ["--view", view, "--to", str(folder / view), "--files", "3", "--codes"]
        assert main(["export", str(output), *arguments], version="test") == 0
    return folder


@pytest.mark.parametrize("view", EXPORTED)
def test_pandas_polars_and_duckdb_of_exports(exports, output, view):
    """The types that each makes of the vectors, and their values in the order of the view."""
    column, _ = expected(output, view)
    run = layerbeam.open_run(output)[view]
    width, dtype = run.width, str(run.entry["dtype"])
    check(np.stack(pd.read_parquet(exports / view)[column]), output, view)

    with_polars = pl.read_parquet(f"{exports}/{view}/*.parquet")
    of_polars = {"float32": pl.Float32, "float16": pl.Float16, "int8": pl.Int8}[dtype]
    assert with_polars.schema[column] == pl.Array(of_polars, width)
    check(with_polars[column].to_numpy(), output, view)

    files = f"'{exports}/{view}/*.parquet'"
    of_duckdb = {"float32": "FLOAT", "float16": "FLOAT", "int8": "TINYINT"}[dtype]
    assert duckdb.sql(f"SELECT DISTINCT typeof({column}) FROM {files}").fetchall() == [(f"{of_duckdb}[]",)]
    cast = duckdb.sql(f"SELECT {column}::{of_duckdb}[{width}] AS vector FROM {files}")
    assert str(cast.types[0]) == f"{of_duckdb}[{width}]"
    check(np.array([row[0] for row in cast.fetchall()], np.float32), output, view)


def test_duckdb_finds_statistics_in_exports(exports):
    """Of the keys, by which it skips row groups."""
    footers = f"parquet_metadata('{exports}/tokens/*.parquet')"
    query = f"SELECT count(stats_min_value), count(*) FROM {footers} WHERE path_in_schema IN ('file', 'line')"
    assert duckdb.sql(query).fetchall() == [(6, 6)]


@pytest.mark.parametrize("view", [view for view in EXPORTED if not view.endswith("_16")])
def test_pyspark_of_exports(exports, output, view, spark):
    column, _ = expected(output, view)
    run = layerbeam.open_run(output)[view]
    rows = spark.read.parquet(str(exports / view))
    element = {"float32": "float", "int8": "tinyint"}[str(run.entry["dtype"])]
    assert dict(rows.dtypes)[column] == f"array<{element}>"
    assert rows.count() == len(run)
    found = np.array([row[0] for row in rows.select(column).collect()], np.float32)
    wanted = expected(output, view)[1].astype(np.float32)
    np.testing.assert_array_equal(found[np.lexsort(found.T)], wanted[np.lexsort(wanted.T)])  # files in any order


def test_pyspark_refuses_float16_of_exports(exports, output, spark):
    with pytest.raises(Exception, match="FLOAT16"):
        spark.read.parquet(str(exports / "tokens_16")).count()


@pytest.mark.parametrize("view", EXPORTED)
def test_lance_of_exports(exports, output, view, tmp_path):
    lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed: make test-readers")
    column, _ = expected(output, view)
    run = layerbeam.open_run(output)[view]
    table = lancedb.connect(tmp_path).create_table(view, ds.dataset(exports / view).to_table())
    type_ = table.schema.field(column).type
    assert (str(type_.value_type), type_.list_size) == (
        {"float32": "float", "float16": "halffloat", "int8": "int8"}[str(run.entry["dtype"])],
        run.width,
    )
    check(vectors(table.to_arrow(), column), output, view)


@pytest.mark.parametrize("view", EXPORTED)
def test_datasets_of_exports(exports, output, view, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="datasets is not installed: make test-readers")
    from datasets import load_dataset

    column, _ = expected(output, view)
    rows = load_dataset(str(exports / view), split="train", cache_dir=str(tmp_path))
    check(np.array(rows.with_format("numpy")[:][column]), output, view)
