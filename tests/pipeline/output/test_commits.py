"""Commits read back from an untrusted disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from corpora import random_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from workplace import THREE_VIEWS

import layerbeam
from layerbeam.pipeline.output import commits
from layerbeam.pipeline.output.catalog import Totals
from layerbeam.transforms.flow.commits import Commit, FileRange, InputFile, Part, name_of
from layerbeam.transforms.parts.block_store import BlockStore

FILES = tuple(
    FileRange(InputFile(path, 90, 1.5), 0, 2, 0, 90, "ab" * 32, True, {"records_read": 2, "embedded": 2})
    for path in ("corpus/caf\udce9.txt", "corpus/b.txt")
)
COMMIT = Commit(
    name_of(FILES),
    "0123456789abcdef",
    FILES,
    {"tokens": Part("tokens/caf_-0986df41cbcb9eb9-000000000003-cdcdcdcdcdcdcdcd.parquet", 7, 9, "cd" * 32)},
)
LINE = COMMIT.to_line()


def test_what_is_written_is_read():
    assert Commit.from_json(json.loads(LINE)) == COMMIT


@pytest.mark.parametrize(
    "path", ["../tokens/x.parquet", "tokens/../../x", "/etc/passwd", "x", "a/b/c/d", "..", "tokens/..", "a/b/c"]
)
def test_a_part_outside_the_output_is_refused(path):
    record = json.loads(LINE)
    record["parts"]["tokens"]["path"] = path
    with pytest.raises(ValueError, match="is not a part of this output"):
        Commit.from_json(record)


@pytest.mark.parametrize("value", [-1, 2**63, "\ud800"])
def test_a_value_that_no_table_holds_is_refused(value):
    record = json.loads(LINE)
    record["files"][0]["file"]["size" if isinstance(value, int) else "path"] = value
    with pytest.raises(ValueError, match="is not a commit: files"):
        Commit.from_json(record)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged_records(draw):
    """A commit with one value changed or deleted."""
    record = json.loads(LINE)
    place = record
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
            continue
        if draw(st.booleans()):
            del place[key]
        else:
            place[key] = draw(JSON)
        return record


@given(damaged_records() | JSON)
@settings(max_examples=300)
def test_any_json_is_a_commit_or_none(record):
    try:
        commit = Commit.from_json(record)
    except ValueError:
        return
    assert Commit.from_json(json.loads(commit.to_line())) == commit
    line = json.dumps(record).encode()
    assert list(Totals().count([line])) == [line]


@given(st.data())
@settings(max_examples=200)
def test_bytes_changed_on_the_disk_are_no_error(tmp_path_factory, data):
    output = tmp_path_factory.mktemp("out")
    line = bytearray(LINE)
    for _ in range(data.draw(st.integers(1, 3))):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    line = line[: data.draw(st.integers(0, len(line)))] if data.draw(st.booleans()) else line
    (output / "parts.jsonl").write_bytes(LINE + b"\n" + line)
    (output / "_commits").mkdir()
    (output / "_commits/a.json").write_bytes(line)
    assert COMMIT in [commit for commit, _ in commits.recorded(str(output))]


@pytest.mark.parametrize("name", ["parts.jsonl", "manifest.json", "_SUCCESS"])
@pytest.mark.parametrize(
    "data",
    [None, b"", b"\x00" * 100, b"[1, 2]\n", b'{"inputs": [1, {"path": 2}], "views": 3}'],
    ids=["missing", "empty", "zeros", "numbers", "no records"],
)
def test_a_run_repairs_its_own_records(workplace, name, data):
    """However they are damaged, the next run restores them, and encodes no block again whose parts are intact."""
    workplace.finished({"a.txt": "\n".join(random_lines(60))}, input={"slice_bytes": 700})
    files = workplace.files()
    path = workplace.folder / "out" / name
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    done = workplace.drive()
    assert workplace.files() == files | ({"_SUCCESS": workplace.files()["_SUCCESS"]} if name == "_SUCCESS" else {})
    written = json.loads((workplace.folder / "out/_runs/2.json").read_text()) if "nothing to do" not in done.err else {}
    if name == "manifest.json":
        assert written["counts"].get("blocks_written", 0) == 0


def test_an_old_part_under_a_new_commit_is_never_taken_for_it(workplace, monkeypatch):
    """A file changes, the run is killed after a part was written, the change is undone: nothing is stale."""
    workplace.write("corpus/a.txt", "one two three\n")
    workplace.configure(views={"t": {"level": "token", "layers": [1], "format": "tfrecord", "compress": False}})
    os.utime("corpus/a.txt", (1_000_000, 1_000_000))
    workplace.drive()
    files = workplace.files()
    workplace.write("corpus/a.txt", "one two seven\n")

    def killed(*_: object) -> None:
        raise OSError(5, "killed")

    with monkeypatch.context() as patch:
        patch.setattr(BlockStore, "put", killed)
        workplace.drive(status=1)
    part = next(name for name in files if name.startswith("t/"))
    assert workplace.files()[part] == files[part]  # the new part has another name
    assert len(list((workplace.folder / "out/t").iterdir())) == 2
    workplace.write("corpus/a.txt", "one two three\n")
    os.utime("corpus/a.txt", (1_000_000, 1_000_000))
    workplace.drive()
    assert workplace.files() == files


LEFT_BY_A_DEATH = [
    {"_runs/1.json": b""},
    {"_runs/0f3a": b"{"},
    {"_unfinished-0f3a": b"half", "_lock": b""},
    {
        "_runs/1.json": b"",
        "_commits/a-68d027432d645fae-000000000000.json": b"",
        "tokens/_unfinished-0f3a": b"half",
        "rejects/_unfinished-0f3a": b"half",
        "tokens/a-68d027432d645fae-000000000000-0123456789abcdef.parquet": b"x",
    },
]


@pytest.mark.parametrize("files", LEFT_BY_A_DEATH, ids=lambda files: " ".join(files))
def test_a_first_start_that_died_early_is_no_obstacle(workplace, files):
    workplace.prepare("one line\n")
    for name, data in files.items():
        workplace.write(f"out/{name}", data)
    workplace.drive()
    assert not list(Path("out").rglob("_unfinished*"))
    assert workplace.rows().num_rows > 0
    assert workplace.verify("--checksums").out.endswith("pass\n")


def test_a_lost_record_of_the_run_does_not_hide_other_settings(workplace):
    workplace.finished("one line\n")
    files = workplace.files()
    workplace.write("out/_runs/1.json", b"")
    workplace.drive("--set", "input.max_reject_rate=0.5")
    assert {name: workplace.files()[name] for name in files if name != "manifest.json"} == {
        name: digest for name, digest in files.items() if name != "manifest.json"
    }
    for path in (workplace.folder / "out/_runs").iterdir():
        path.write_bytes(b"")
    assert "encoder.max_seq_length: 128 -> 64" in workplace.drive("--set", "encoder.max_seq_length=64", status=2).err
    os.unlink("out/manifest.json")
    error = workplace.drive("--set", "encoder.max_seq_length=64", status=2).err
    assert "out holds a run whose record and manifest cannot be read, and files that may not be of these" in error


@pytest.mark.parametrize("copied", [{"_runs": None}, {"_runs/1.json": b""}], ids=["without _runs", "empty record"])
def test_a_copy_without_records_is_complete(workplace, copied):
    workplace.finished({"a.txt": "one line\nthe bank\n"}, views=THREE_VIEWS)
    files, shown = workplace.files(), re.sub("speed.*\n.*\n", "", workplace.show().out)
    lose(copied)
    shutil.copytree("out", "copy")
    assert workplace.show().out == shown
    workplace._call("report", "out", "--sample", "9", "--to", "page.html", status=0)
    assert set(layerbeam.open_run("out")) == set(THREE_VIEWS)
    assert "nothing to do" in workplace.drive().err
    assert workplace.files() == files
    os.unlink("copy/_SUCCESS")  # a later run has begun
    assert "copy: unfinished: running, or killed" in workplace._call("show", "copy", status=0).out


@pytest.mark.parametrize("lost", [{"_runs": None, "manifest.json": None}, {"_runs/1.json": b"", "manifest.json": b""}])
def test_a_lost_record_and_manifest_are_written_again(workplace, lost):
    workplace.finished({"a.txt": "one line\nthe bank\n"}, views=THREE_VIEWS)
    files = workplace.files()
    lose(lost)
    assert "or run its configuration again" in workplace.show(status=2).err
    workplace.drive()
    assert workplace.files() == files


def lose(changes: dict[str, bytes | None]) -> None:
    """Write these files of the output folder, or delete them."""
    for name, data in changes.items():
        path = Path("out", name)
        if data is not None:
            path.write_bytes(data)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def test_a_listing_that_cannot_be_stored_leaves_the_old_one(workplace, monkeypatch):
    from flaky_filesystem import SCHEME, FaultyFileSystem, Plan

    monkeypatch.setattr(time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.01)))
    monkeypatch.setattr(FaultyFileSystem, "plan", Plan())
    workplace.prepare("one line\n")
    out = f"{SCHEME}{workplace.folder}/out"
    workplace.drive("--output", out)
    before = (workplace.folder / "out/parts.jsonl").read_bytes()
    workplace.write("corpus/b.txt", "another line\n")

    class Once(Plan):
        def strikes(self, kind: str, path: str) -> bool:
            strikes = kind == "close" and path.endswith("/parts.jsonl") and not self.happened
            self.happened += [(kind, path)] * strikes
            return strikes

    monkeypatch.setattr(FaultyFileSystem, "plan", Once())
    assert "close failed, as planned" in workplace.drive("--output", out, status=1).err
    assert (workplace.folder / "out/parts.jsonl").read_bytes() == before
    workplace.drive("--output", out)
    assert json.loads((workplace.folder / "out/_runs/3.json").read_text())["counts"].get("blocks_written", 0) == 0
