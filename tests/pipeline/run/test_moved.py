"""Bytes that the folder has rows of are not encoded again, at whatever lines and in whatever file they are now."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines

import layerbeam

VIEWS = {
    "tokens": {"level": "token", "layers": [-1, 0], "truncate_dim": 4},
    "halves": {"level": "text", "layers": [1], "dtype": "float16"},
    "texts": {"level": "text", "layers": [2], "format": "jsonl", "truncate_dim": 4},
    "examples": {"level": "word", "layers": [2], "format": "tfrecord", "truncate_dim": 4},
    "google": {
        "level": "token",
        "layers": [-1],
        "format": "jsonl",
        "layer_numbering": "extract_features",
        "truncate_dim": 4,
    },
    "records": {"level": "record", "layers": [3]},
    "types": {"level": "word_type", "layers": [1], "truncate_dim": 4},
}
SMALL_BLOCKS = {"slice_bytes": 1000, "max_reject_rate": 1.0}
# Some of them are rejected.
LINES = [line if number % 37 else "\udcff " + line for number, line in enumerate(random_lines(240, longest=12))]


def data_of(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def texts_in(encoded: list[tuple[str, int]]) -> int:
    return sum(texts for _, texts in encoded)


@pytest.fixture
def moved(workplace, encoded):
    """A run over a large file, which is to be changed."""
    workplace.finished(
        {"a.txt": data_of(LINES), "b.txt": data_of(random_lines(50, seed=1, longest=12))},
        views=VIEWS,
        input=SMALL_BLOCKS,
    )
    encoded.clear()
    assert len((workplace.folder / "out/parts.jsonl").read_text().splitlines()) > 10
    return workplace


def test_a_renamed_file(moved, encoded):
    os.rename("corpus/a.txt", "corpus/new name.txt")
    done = moved.drive("--prune-missing")
    assert encoded == []
    texts = moved.rows("halves")["file"].to_pylist().count("corpus/new name.txt")
    assert texts > 180
    assert re.search(
        rf"copied +{texts} texts \([\d,]+ tokens\) in \d+ blocks, which had other lines, files or fields", done.out
    )
    moved.assert_equals_fresh()
    rejects = moved.rejects()
    assert len(rejects) == 7
    data = data_of(LINES)
    for reject in rejects:
        assert reject["file"] == "corpus/new name.txt"
        raw = base64.b64decode(reject["raw"])
        assert data[reject["byte_offset"] :].startswith(raw)
        assert reject["line"] == data[: reject["byte_offset"]].count(b"\n")


def rows_by_line(tables):
    """{(file, line): the rows of a record, without their place}."""
    rows = {}
    for row in (row for table in tables for row in table.to_pylist()):
        rows.setdefault((row.pop("file"), row.pop("line")), []).append(row)
    return rows


def keys_in(batches, old=""):
    return [
        key
        for batch in batches
        for key in zip(*(batch[f"{old}{n}"].to_pylist() for n in ("file", "line")), strict=True)
    ]


def test_what_changed(moved):
    """With it a copy of the rows of any level follows."""
    copies = {view: rows_by_line([moved.rows(view)]) for view in ("tokens", "halves", "records")}
    before = layerbeam.open_run("out").changes("tokens", since=0).until
    moved.write("corpus/a.txt", data_of([*LINES[:100], "an edited line", *LINES[101:180], "a new line", *LINES[180:]]))
    os.rename("corpus/b.txt", "corpus/c.txt")
    moved.drive("--prune-missing")
    for view, copy in copies.items():
        changes = layerbeam.open_run("out").changes(view, since=before)
        assert (changes.since, changes.until[:2]) == (before, "2-")
        olds, news = keys_in(changes.moved(), "old_"), keys_in(changes.moved())
        assert len(olds) > 60
        assert {file for file, _ in news} == {"corpus/a.txt", "corpus/c.txt"}
        assert all(
            new in (old, (old[0], old[1] + 1)) or new[0] == "corpus/c.txt" for old, new in zip(olds, news, strict=True)
        )
        rows = {new: copy.pop(old) for old, new in zip(olds, news, strict=True) if old in copy}
        for key in keys_in(changes.went()):
            copy.pop(key, None)
        came = rows_by_line(changes.came())
        assert 0 < len(came) < 200
        assert rows_by_line(changes.came(with_moved=True)) == came | rows
        assert copy | came | rows == rows_by_line([moved.rows(view)])


def edit(moved):
    """An edit and an insertion in a large file, a rename, a new file, a compressed one, and small ones."""
    moved.write("corpus/a.txt", data_of([*LINES[:100], "an edited line", *LINES[101:180], "a new line", *LINES[180:]]))
    os.rename("corpus/b.txt", "corpus/c.txt")
    moved.write("corpus/d.txt", data_of(random_lines(70, seed=5, longest=12)))
    moved.write("corpus/e.txt.gz", gzip.compress(data_of([*LINES[120:], "the last line"])))
    moved.write("corpus/small.txt", data_of(LINES[:2]))


def test_the_plan_of_an_edit_says_what_may_be_copied(moved):
    edit(moved)
    planned, printed = json.loads(moved.plan("--json").out), moved.plan().out
    # a.txt has changed, and b.txt has gone, which c.txt, d.txt, e.txt.gz or small.txt may be.
    note = "2 files changed or moved, or packed with such; rows of bytes or texts that the folder has are copied\n"
    assert f"\ncopied    {note}" in printed
    done = moved.drive()
    assert note in done.err
    assert planned["input"]["sample"]["is_whole"]
    counts = json.loads((moved.folder / "out/_runs/2.json").read_text())["counts"]
    copied, written = counts["copied_texts"], counts["written_texts"]
    assert copied > 150
    assert written > 100
    kept = moved.manifest()["counts"]["embedded"] - written - copied
    assert kept > 30
    said = (
        f"{name} +{texts}" for name, texts in zip(("encoded", "copied", "kept"), (written, copied, kept), strict=True)
    )
    assert re.search("".join(rf"\n{line} texts .*" for line in said), done.out)


def test_show_changes(moved):
    shown = moved.show("--changes").out
    assert shown.splitlines() == [
        "run 1 since run 0: lines: 290 came",
        *(
            f"came    corpus/{name}.txt: 0 to {last}  ({', '.join(sorted(VIEWS)[:-1])})"
            for name, last in (("a", 239), ("b", 49))
        ),
    ]


def test_changes_of_no_run(workplace):
    assert "out: holds no layerbeam run" in workplace.show("--changes", status=2).err


def test_views_without_rows_to_read(moved):
    run = layerbeam.open_run("out")
    with pytest.raises(ValueError, match="view types of out has a row per distinct word of the run; read all rows"):
        run.changes("types", since=0)
    with pytest.raises(ValueError, match="view texts of out is jsonl; open_run reads the rows of Parquet only"):
        run.changes("texts", since=0).came()
    assert len(keys_in(run.changes("texts", since=0).went())) == 0


def test_lines_above(moved, encoded):
    moved.write("corpus/a.txt", data_of(["a new line", "and another one", *LINES]))
    moved.drive()
    assert 2 <= texts_in(encoded) < 150
    assert {name.rpartition("-")[2] for name, _ in encoded} <= {f"{line:012}" for line in range(120)}
    moved.assert_equals_fresh()


def test_a_file_split_in_two_and_one_that_is_there_twice(moved, encoded):
    moved.write("corpus/a.txt", data_of(LINES[:120]))
    moved.write("corpus/c.txt", data_of(LINES[120:]))
    moved.write("corpus/d.txt", data_of(LINES))
    moved.drive()
    assert texts_in(encoded) < 200
    moved.assert_equals_fresh()


def test_files_joined(moved, encoded):
    with open("corpus/b.txt", "ab") as file:
        file.write(data_of(LINES))
    os.remove("corpus/a.txt")
    moved.drive("--prune-missing")
    assert texts_in(encoded) < 200
    moved.assert_equals_fresh()


def test_a_file_that_is_compressed_now(moved, encoded):
    moved.write("corpus/a.txt.gz", gzip.compress(data_of(LINES)))
    os.remove("corpus/a.txt")
    moved.drive("--prune-missing")
    assert encoded == []
    moved.assert_equals_fresh()


def test_a_damaged_part_is_not_copied(moved, encoded):
    """Its size is right, so only its hash tells."""
    parts = sorted((moved.folder / "out/tokens").glob("a-*"))
    data = bytearray(parts[3].read_bytes())
    data[len(data) // 2] ^= 1
    parts[3].write_bytes(data)
    os.rename("corpus/a.txt", "corpus/z.txt")
    moved.drive("--prune-missing")
    assert len(encoded) == 1
    moved.assert_equals_fresh()
    moved.verify("--checksums")


def test_other_settings_copy_nothing(moved, encoded):
    os.rename("corpus/a.txt", "corpus/z.txt")
    moved.configure(views=VIEWS | {"new": {"level": "text", "layers": [0]}}, input=SMALL_BLOCKS)
    moved.drive("--prune-missing")
    assert texts_in(encoded) > 240
    moved.assert_equals_fresh()


def test_a_mark_or_a_header_belongs_to_the_start_of_a_file(workplace, encoded):
    """The same bytes are read in another way there."""
    row = b"name,text\n"
    csv = {"format": "csv", "text_field": "text", "keep_fields": {"name": "string"}}
    workplace.prepare({"a.csv": row + row * 2 + b"x,y\n"}, views={"t": {"level": "text", "layers": [0]}}, input=csv)
    workplace.drive()
    workplace.write("corpus/a.csv", row * 2 + b"x,y\n")
    workplace.write("corpus/b.csv", b"text,name\n" + row * 2 + b"x,y\n")
    workplace.drive()
    workplace.assert_equals_fresh()


def test_renamed_small_files(workplace, encoded):
    """Of each file that moves its rows come from the pack in which it was; the others stay."""
    views = {name: view for name, view in VIEWS.items() if name not in ("google", "types")}
    for number in range(40):
        workplace.write(f"corpus/{number:03}.txt", data_of(random_lines(3, seed=number, longest=12)))
    workplace.configure(views=views)
    workplace.drive()
    encoded.clear()
    for number in range(0, 40, 7):
        os.rename(f"corpus/{number:03}.txt", f"corpus/{90 - number:03}-moved.txt")
    workplace.write("corpus/twice.txt", data_of(random_lines(3, seed=8, longest=12)))
    workplace.write("corpus/grown.txt", data_of([*random_lines(3, seed=9, longest=12), "and more"]))
    workplace.drive("--prune-missing")
    assert texts_in(encoded) == 4
    workplace.drive("--output", "fresh")
    for view in ("tokens", "halves", "records"):
        names = [name for name in workplace.rows(view).column_names if not name.startswith(("layer", "vector"))]
        assert workplace.rows(view).select(names).equals(workplace.rows(view, "fresh").select(names))
    workplace.verify("--sample", "200")
    assert workplace.manifest()["counts"] == workplace.manifest("fresh")["counts"]


def test_many_files_of_the_same_bytes(workplace, encoded):
    for number in range(40):
        workplace.write(f"corpus/{number:03}.txt", b"the same line\n")
    workplace.configure(views={"t": {"level": "text", "layers": [0]}})
    workplace.drive()
    encoded.clear()
    for number in range(40, 80):
        workplace.write(f"corpus/{number:03}.txt", b"the same line\n")
    workplace.drive()
    assert encoded == []
    assert [row["line"] for row in workplace.rows("t").to_pylist()] == [0] * 80
    assert len(set(workplace.rows("t")["file"].to_pylist())) == 80


def as_csv(lines: list[str]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows([("number", "text"), *((str(len(line)), line) for line in lines)])
    return file.getvalue().encode()


def as_parquet(lines: list[str]) -> bytes:
    file = io.BytesIO()
    table = pa.table({"text": lines, "number": [len(line) for line in lines]})
    pq.write_table(table, file, row_group_size=50, compression="gzip")
    return file.getvalue()


KEPT = {"text_field": "text", "keep_fields": {"number": "int64"}}
FILES = {
    "lines": ("txt", data_of, {}),
    "compressed lines": ("txt.gz", lambda lines: gzip.compress(data_of(lines)), {}),
    "paragraphs": ("txt", lambda lines: "\n\n".join(lines).encode(), {"record": "paragraph"}),
    "sentences": ("txt", lambda lines: data_of([f"{line}. {line}!" for line in lines]), {"unit": "sentence"}),
    "chunks": (
        "txt",
        lambda lines: "\n\n".join(lines).encode(),
        {"record": "paragraph", "unit": "chunk", "chunk": {"tokens": 12, "overlap": 3}},
    ),
    "JSON Lines": ("jsonl", lambda lines: data_of([json.dumps({"text": t, "number": len(t)}) for t in lines]), KEPT),
    "CSV": ("csv", as_csv, KEPT),
    "Parquet": ("parquet", as_parquet, KEPT),
}


@pytest.mark.parametrize("form", FILES)
def test_random_edits_equal_a_fresh_run(workplace, form):
    pick = random.Random(form)
    ending, write, more = FILES[form]
    lines, name = random_lines(90, seed=pick.randrange(1000), longest=24), f"0.{ending}"
    views = {name: VIEWS[name] for name in ("tokens", "texts", "examples", "types")}
    workplace.prepare({name: write(lines)}, views=views, input=SMALL_BLOCKS | more)
    workplace.drive()
    for night in range(1, 4):
        for _ in range(pick.randint(1, 3)):
            place, size = pick.randrange(len(lines)), pick.choice((0, 1, 40))
            lines[place : place + size] = pick.choice(([f"night {night}"], [], lines[-30:]))
        os.remove(f"corpus/{name}")
        name = pick.choice((name, f"{night}.{ending}"))
        workplace.write(f"corpus/{name}", write(lines))
        if night != 2:  # nobody looked in between
            workplace.drive("--prune-missing")
    workplace.assert_equals_fresh()
    workplace.verify("--sample", "20", "--checksums")


def test_a_part_of_the_path(workplace, encoded):
    """Rows are copied to a path with the same part only."""
    lines = [f"line {number} of the river" for number in range(40)]
    fields = {"keep_fields": {"period": {"path": "corpus/([^/]+)/"}}}
    views = {"texts": {"level": "text", "layers": [1]}}
    files = {"tang/a.txt": data_of(lines), "tang/b.txt": data_of(lines[:3])}
    workplace.finished(files, views=views, input={"files": "corpus/**/*.txt", **fields})
    assert set(workplace.rows("texts")["period"].to_pylist()) == {"tang"}
    for old, new, copied in (("tang/a.txt", "tang/c.txt", True), ("tang/b.txt", "song/b.txt", False)):
        path = workplace.folder / "corpus" / new
        path.parent.mkdir(exist_ok=True)
        (workplace.folder / "corpus" / old).rename(path)
        encoded.clear()
        workplace.drive("--prune-missing")
        assert bool(encoded) == (not copied)
        workplace.assert_equals_fresh()
    assert workplace.rows("texts")["period"].to_pylist().count("song") == 3
