"""One more view in an existing folder."""

from __future__ import annotations

import json
import os
import re

import pytest
from weights import write_large_word
from workplace import THREE_VIEWS

import layerbeam

VIEWS = {"texts": {"level": "text", "layers": [2]}, "types": {"level": "word_type", "layers": [1]}}
MORE = {"tokens": {"level": "token", "layers": [-1, 0]}, "lines": {"level": "text", "layers": [3], "format": "jsonl"}}
INPUT = {"slice_bytes": 4096}


@pytest.fixture
def added(workplace):
    """A finished run of two views, to whose settings two are added."""
    lines = [f"the river bank {n} " + "and the well " * (n % 7) for n in range(240)]
    corpus = {"a.txt": "\n".join(lines) + "\n", "b.txt": "one line\n\xff\n\nanother line\n".encode("latin-1")}
    settings = {"input": INPUT | {"max_reject_rate": 1.0}}
    workplace.finished(corpus, views=VIEWS, **settings)
    workplace.configure(views=VIEWS | MORE, **settings)
    return workplace


def stamps(workplace):
    """Inode and time of each file of the first views."""
    folders = (workplace.folder / "out" / name for name in (*VIEWS, "_word_types", "rejects"))
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths if path.name != "word_types.parquet"}


def test_added_views_end_as_in_a_run_with_all_of_them(added):
    before = stamps(added)
    assert len(before) > 8
    planned = added.plan().out
    assert "left to do" not in planned
    assert "kept" not in planned
    assert "added     lines, tokens; the files of texts, types stay\n" in planned
    disk = re.search(r"disk +about ([\d.]+) MB in ", planned)
    assert disk is not None
    sizes = {name: view["bytes"] for name, view in json.loads(added.plan("--json").out)["views"].items()}
    assert float(disk[1]) * 1e6 == pytest.approx(sizes["lines"] + sizes["tokens"], rel=0.02)
    done = added.drive()
    assert stamps(added) == before
    added.assert_equals_fresh()
    assert "lines" in added.show().out
    added.verify()
    added.verify("--checksums")
    assert "nothing to do" in added.drive().err
    added.write("corpus/a.txt", (added.folder / "corpus/a.txt").read_text() + "one more\n")
    added.write("corpus/c.txt", "a new file\n")
    added.drive()
    added.assert_equals_fresh()
    assert "in `tokens`" in done.err
    assert "in `texts`" not in done.err
    assert "in `types`" not in done.err
    assert "resuming" not in done.err


def test_failure_while_a_view_is_added(added, fail_after):
    before = stamps(added)
    fail_after(3)
    assert stamps(added) == before
    assert all(path.stat().st_size for path in (added.folder / "out/_commits").glob("*.json"))
    assert "unfinished" in added.show().out
    added.drive()
    assert stamps(added) == before
    added.assert_equals_fresh()


def test_files_together_and_a_view_after_a_failure(workplace, fail_after):
    """The rows that are there belong to the files that they belonged to."""
    for number in range(120):
        workplace.write(f"corpus/{number:03}.txt", f"the river {number}\n\nand the bank\n")
    texts = {"texts": {"level": "text", "layers": [2]}}
    workplace.configure(views=texts, input={"slice_bytes": 500})
    fail_after(4)
    before = set(os.listdir("out/texts"))
    commits = [path.read_text() for path in (workplace.folder / "out/_commits").glob("*.json")]
    assert any(len(json.loads(commit)["files"]) > 1 for commit in commits)
    workplace.configure(views=texts | {"words": {"level": "word", "layers": [0]}}, input={"slice_bytes": 500})
    workplace.drive()
    assert len(before & set(os.listdir("out/texts"))) >= 4
    assert layerbeam.open_run("out")["texts"].to_numpy("line").tolist() == [0, 2] * 120
    workplace.assert_equals_fresh()


@pytest.mark.slow
def test_view_added_after_kill_and_changed_files(added):
    with added.at_work(commits=2) as process:
        process.kill()
    os.utime(added.folder / "corpus/a.txt")
    more = MORE | {"last": {"level": "record", "layers": [0]}}
    added.configure(views=VIEWS | more, input=INPUT | {"max_reject_rate": 1.0})
    added.drive()
    added.assert_equals_fresh()
    added.configure(views=VIEWS | MORE, input=INPUT | {"max_reject_rate": 1.0})
    assert added.drive(status=2).err.splitlines() == [
        "layerbeam: output.path: out holds a run with other settings, and rows of both do not belong together; give a "
        "new folder, or restore the settings (views can be added, and nothing else can change):",
        "layerbeam:   views.last: is in the folder, and removed from the settings",
    ]


def test_missing_file_keeps_its_rows(added):
    rows = added.rows("texts").num_rows
    (added.folder / "corpus/b.txt").rename(added.folder / "b.txt")
    assert "corpus/b.txt: is missing; its rows stay" in added.drive("--set", "input.max_missing=0", status=3).out
    assert added.rows("texts").num_rows == rows
    (added.folder / "b.txt").rename(added.folder / "corpus/b.txt")
    added.drive()
    added.assert_equals_fresh()


def test_view_that_changes_which_texts_are_embedded(workplace):
    workplace.write("corpus/a.txt", "the river\nthe well\na bank\n" * 20)
    kept = {"banks": {"level": "word", "layers": [2], "keep_words": ["bank"]}}
    workplace.configure(views=kept)
    workplace.drive()
    assert workplace.manifest()["counts"]["embedded"] == 20
    workplace.configure(views=kept | THREE_VIEWS)
    workplace.drive()
    assert workplace.manifest()["counts"]["embedded"] == 60
    workplace.assert_equals_fresh()


@pytest.mark.parametrize(("files", "views"), [(1, VIEWS), (40, {"texts": VIEWS["texts"]})], ids=["one", "together"])
def test_view_that_rejects_a_text(workplace, files, views):
    """The vector of one word is too large for float16. The views that are there lose its text, too."""
    encoder = write_large_word(workplace.folder / "encoder", "bank")
    lines = [f"the river {number}" for number in range(40)]
    lines[7] = "a bank"
    for number in range(files):
        workplace.write(f"corpus/{number:02}.txt", "\n".join(lines[number::files]) + "\n")
    settings = {"encoder": {"handle": str(encoder)}, "input": {"max_reject_rate": 1.0}}
    workplace.configure(views=views, **settings)
    workplace.drive()
    assert workplace.rows("texts")["text"].to_pylist() == lines
    assert len(os.listdir("out/texts")) == 1
    workplace.configure(views=views | {"half": {"level": "token", "layers": [0], "dtype": "float16"}}, **settings)
    workplace.drive()
    (reject,) = workplace.rejects()
    assert reject["reason"] == "a value is too large for float16, see views.half.dtype"
    assert workplace.rows("texts")["text"].to_pylist() == [*lines[:7], *lines[8:]]
    workplace.assert_equals_fresh()


def test_view_that_makes_blocks_smaller(workplace):
    workplace.write("corpus/a.txt", "the river bank and the well\n" * 300)
    settings = {"output": {"target_part_bytes": 65_536}}
    workplace.configure(views={"texts": {"level": "text", "layers": [2]}}, **settings)
    workplace.drive()
    workplace.configure(views={"texts": {"level": "text", "layers": [2]}, **MORE}, **settings)
    workplace.drive()
    assert workplace.manifest()["views"]["texts"]["parts"] > 2
    workplace.assert_equals_fresh()


def test_changed_view_is_refused_with_what_was_written(added):
    err = added.drive("--set", "views.texts.layers=[1]", "--set", "views.new={level: text, layers: [1]}", status=2).err
    assert err.splitlines()[1:] == [
        "layerbeam:   views.lines: is not in the folder",
        "layerbeam:   views.new: is not in the folder",
        "layerbeam:   views.tokens: is not in the folder",
        "layerbeam:   views.texts.layers: [2] -> [1]",
    ]
