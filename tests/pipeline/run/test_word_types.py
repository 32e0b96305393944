"""`level: word_type`: one row per form over the corpus, equal whatever the order and number of runs."""

from __future__ import annotations

import collections
import itertools
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from weights import vectors
from workplace import Workplace

import layerbeam
from layerbeam.pipeline.output.manifest import view_schema
from layerbeam.transforms.parts import read_tables
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.write import word_types

VIEWS = {"types": {"level": "word_type", "layers": [-1, 1]}, "words": {"level": "word", "layers": [-1, 1]}}


def configure(workplace: Workplace, **settings) -> None:
    views = {"types": VIEWS["types"] | settings, "words": VIEWS["words"]}
    workplace.configure(views=views, input={"slice_bytes": 1000})


def types(workplace: Workplace):
    return pq.read_table(workplace.folder / "out" / "types" / "word_types.parquet")


def test_table_equals_numpy_over_words(workplace):
    workplace.write("corpus/a.txt", "\n".join(random_lines(50)))
    workplace.write("corpus/b.txt", "\n".join(random_lines(50, seed=1)))
    configure(workplace)
    workplace.drive()
    words, table = workplace.rows("words"), types(workplace)
    assert len(list((workplace.folder / "out" / "words").iterdir())) > 4
    reference = ReferenceWordPiece([], do_lower_case=True)
    forms = np.array(["".join(reference.words(word)) for word in words["word"].to_pylist()])
    counted = collections.Counter(forms)
    assert table.column_names == ["word", "count", "layer_3", "layer_3_std", "layer_1", "layer_1_std"]
    assert table["word"].to_pylist() == sorted(counted)
    assert table["count"].to_pylist() == [counted[form] for form in sorted(counted)]
    for column in ("layer_3", "layer_1"):
        values = vectors(words, column).astype(np.float64)
        means = [values[forms == form].mean(axis=0) for form in sorted(counted)]
        deviations = [values[forms == form].std(axis=0) for form in sorted(counted)]
        np.testing.assert_allclose(vectors(table, column), means, rtol=0, atol=1e-6)
        np.testing.assert_allclose(vectors(table, f"{column}_std"), deviations, rtol=0, atol=1e-6)
    manifest = workplace.manifest()
    assert manifest["views"]["types"]["rows"] == table.num_rows == len(counted)
    assert f"{len(counted):,}" in workplace.show().out
    workplace.verify("--sample", "1000")
    run = layerbeam.open_run(workplace.folder / "out")
    assert run.view("types").to_arrow().equals(table)
    np.testing.assert_array_equal(run.view("types").to_numpy("layer_3"), vectors(table, "layer_3"))


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_every_combination(workplace, format_):
    """Compared with the means and deviations of word rows with the same settings."""
    workplace.write("corpus/a.txt", "\n".join(random_lines(25)))
    made = itertools.product(("separate", "sum", "mean", "concat"), ("float32", "float16"), (None, 9))
    settings = {
        f"{combine}-{dtype}-{truncate_dim}": {
            "layers": [2, 0],
            "combine": combine,
            "dtype": dtype,
            "truncate_dim": truncate_dim,
        }
        for combine, dtype, truncate_dim in made
    }
    views = {name: {"level": "word_type", "format": format_, **view} for name, view in settings.items()}
    words = {f"w-{name}": {"level": "word", **view, "dtype": "float32"} for name, view in settings.items()}
    workplace.configure(views=views | words, input={"slice_bytes": 1000})
    workplace.drive()
    reference = ReferenceWordPiece([], do_lower_case=True)
    opened = layerbeam.open_run("out")
    described = opened.manifest["views"]
    for name in views:
        (path,) = opened[name].paths
        table = pa.concat_tables(read_tables(path, view_schema(described[name])))
        rows = workplace.rows(f"w-{name}")
        forms = np.array(["".join(reference.words(word)) for word in rows["word"].to_pylist()])
        distinct = sorted(set(forms))
        assert table["word"].to_pylist() == distinct
        tolerance = {"rtol": 1e-3, "atol": 1e-4} if "float16" in name else {"rtol": 0, "atol": 3e-6}
        for column in described[name]["vectors"]:
            values = vectors(rows, column).astype(np.float64)
            means = [values[forms == form].mean(axis=0) for form in distinct]
            deviations = [values[forms == form].std(axis=0) for form in distinct]
            np.testing.assert_allclose(vectors(table, column).astype(np.float64), means, **tolerance)
            given = vectors(table, f"{column}_std").astype(np.float64)
            np.testing.assert_allclose(given, deviations, **tolerance)


def test_group_by_separates_forms(workplace):
    records = [{"text": "a river", "year": 1611}, {"text": "The river", "year": None}, {"text": "river", "year": 1611}]
    workplace.finished(
        {"a.jsonl": "\n".join(json.dumps(record) for record in records)},
        input={"format": "jsonl", "keep_fields": {"year": "int64"}},
        views={"types": {"level": "word_type", "layers": [1], "group_by": ["year"]}},
    )
    rows = types(workplace).drop(["layer_1", "layer_1_std"]).to_pylist()
    assert rows == [
        {"year": None, "word": "river", "count": 1},
        {"year": None, "word": "the", "count": 1},
        {"year": 1611, "word": "a", "count": 1},
        {"year": 1611, "word": "river", "count": 2},
    ]


def test_nan_in_group_by_is_one_key(workplace):
    years = pa.array([1.5, float("nan"), None, float("nan"), float("inf")])
    workplace.folder.joinpath("corpus").mkdir()
    pq.write_table(pa.table({"text": ["bank"] * 5, "year": years}), workplace.folder / "corpus" / "a.parquet")
    by_year = {"level": "word_type", "layers": [1], "group_by": ["year"]}
    workplace.configure(
        input={"format": "parquet", "keep_fields": {"year": "float64"}},
        views={
            "types": by_year,
            "lines": by_year | {"format": "jsonl", "compress": False},
            "words": {"level": "word", "layers": [1], "format": "jsonl", "compress": False},
        },
    )
    workplace.drive()
    counts = list(
        zip(map(str, types(workplace)["year"].to_pylist()), types(workplace)["count"].to_pylist(), strict=True)
    )
    assert counts == [("None", 1), ("nan", 2), ("1.5", 1), ("inf", 1)]
    (lines,) = (workplace.folder / "out" / "lines").iterdir()
    assert [json.loads(line)["year"] for line in lines.read_text().splitlines()] == [None, None, 1.5, None]
    assert "types: one row per word over the whole corpus; its hash was compared" in workplace.verify().out


def test_growing_run_equals_one_run(workplace):
    lines = random_lines(120)
    workplace.write("corpus/a.txt", "\n".join(lines[:60]))
    configure(workplace)
    workplace.drive()
    before = types(workplace)
    workplace.write("corpus/b.txt", "\n".join(lines[60:]))
    workplace.drive()
    grown = workplace.files()
    assert types(workplace)["count"].to_pylist() != before["count"].to_pylist()
    (workplace.folder / "out").rename(workplace.folder / "grown")
    workplace.drive()
    assert workplace.files() == grown
    (workplace.folder / "out" / "types" / "word_types.parquet").write_bytes(b"x")
    assert "types/word_types.parquet has 1 bytes, not " in workplace.verify(status=1).out


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_table_in_parts(workplace, monkeypatch, format_):
    """Equal for any number of workers, and the rows of a table in one part."""
    workplace.write("corpus/a.txt", "\n".join(random_lines(25)))
    workplace.write("corpus/b.txt", "\n".join(random_lines(25, seed=1)))
    configure(workplace, format=format_)
    workplace.drive("--output", "whole")
    with monkeypatch.context() as patch:
        patch.setattr(word_types, "RANGE_BYTES", 50_000)
        workplace.drive("--output", "one")
        workplace.run("--workers", "2")
    assert workplace.files() == workplace.files("one")
    whole, view = (layerbeam.open_run(workplace.folder / name).view("types") for name in ("whole", "out"))
    suffix = {"parquet": "parquet", "jsonl": "jsonl.gz"}[format_]
    assert [part.path for part in whole.parts] == [f"types/word_types.{suffix}"]
    assert [part.path for part in view.parts[:2]] == [f"types/word_types-0000{n}.{suffix}" for n in (0, 1)]
    assert len(view.parts) > 5
    rows = pa.concat_tables([view.read(part) for part in view.parts])
    assert rows.combine_chunks().equals(whole.read(whole.parts[0]).combine_chunks())
    assert rows["word"].to_pylist() == sorted(rows["word"].to_pylist())
    assert f"{len(rows):,}" in workplace.show().out
    workplace.verify()
    workplace.verify("--checksums")
    # With room for all keys in one range, only one part stays.
    (workplace.folder / "out" / view.parts[3].path).unlink()
    assert f"{view.parts[3].path} is missing" in workplace.verify(status=1).out
    workplace.drive()
    assert workplace.files() == workplace.files("whole")


def test_settings(workplace):
    workplace.write("corpus/a.txt", "The river, the River; a bank\n")
    for settings, expected in (
        ({"min_count": 2}, [("river", 2), ("the", 2)]),
        ({"words": "whitespace"}, [("a", 1), ("bank", 1), ("river,", 1), ("river;", 1), ("the", 2)]),
        ({"keep_words": ["RIVER", "sea"]}, [("river", 2)]),
        ({"keep_words": ["River"], "match_case": True, "dtype": "float16"}, [("river", 1)]),
        ({"combine": "concat", "truncate_dim": 70, "min_count": 9}, []),
    ):
        configure(workplace, **settings)
        workplace.drive()
        table = types(workplace)
        assert list(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True)) == expected
        workplace.verify()
        assert "nothing to do" in workplace.drive().err
        shutil.rmtree(workplace.folder / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"normalize": True},
            "normalize: level word_type writes means and their standard deviations; remove `normalize`",
        ),
        ({"group_by": ["year"]}, "group_by: year is not in input.keep_fields (there: none)"),
        ({"format": "tfrecord"}, "format: a tfrecord holds texts, and level word_type has none; use parquet or jsonl"),
        ({"pooling": "mean"}, "pooling: level word_type has no such setting"),
    ],
)
def test_invalid_settings(workplace, settings, message):
    workplace.write("corpus/a.txt", "a\n")
    configure(workplace, **settings)
    assert f"views.types.{message}" in workplace.drive(status=2).err


PERIOD = {"keep_fields": {"period": {"path": "corpus/([^/]+)/"}}}


def test_group_by_a_part_of_the_path(workplace):
    files = {"tang/a.txt": "a river\n", "tang/b.txt": "river\n", "song/a.txt": "a river\n", "c.txt": "river\n"}
    forms = {"level": "word_type", "layers": [1], "keep_words": ["river"]}
    views = {"period": {**forms, "group_by": ["period"]}, "file": {**forms, "group_by": ["file"]}}
    workplace.finished(files, views=views, input={"files": "corpus/**/*.txt", **PERIOD})

    def counts(view):
        table = workplace.rows(view)
        return list(zip(table[view].to_pylist(), table["count"].to_pylist(), strict=True))

    assert counts("period") == [(None, 1), ("song", 1), ("tang", 2)]
    assert counts("file") == [(f"corpus/{name}", 1) for name in ("c.txt", "song/a.txt", "tang/a.txt", "tang/b.txt")]
    workplace.verify()
    # The bytes of a renamed file are known, and its rows belong to another group.
    (workplace.folder / "corpus/tang/b.txt").rename(workplace.folder / "corpus/song/b.txt")
    workplace.drive("--prune-missing")
    assert counts("period") == [(None, 1), ("song", 2), ("tang", 1)]
    assert counts("file")[2] == ("corpus/song/b.txt", 1)
    workplace.assert_equals_fresh()
    fields = {"period": {"path": "text/([^/]+)/"}}
    workplace.configure(input={"files": "corpus/**/*.txt", "keep_fields": fields}, output={"path": "other"})
    message = "input.keep_fields.period: path text/([^/]+)/ matches no file, such as corpus/c.txt; correct it, or"
    assert message in workplace.drive(status=2).err
