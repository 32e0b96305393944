"""The end of a run, from what is on the disk, without a pipeline: what counts, and what may not be lost silently."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path

import pytest
from output_folder import OutputFolder
from tampering import deny

import layerbeam
from layerbeam.pipeline.output import finish
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.views.view import ViewSpec

VIEW = ViewSpec(name="t", level="text", layers=(1,), hidden_size=4)
LOST = "what was written of it is missing or short; run again"


class Folder(OutputFolder):
    """Each line of eight bytes is a block."""

    def __init__(self) -> None:
        super().__init__("out", ["*.txt", "*.gz"], (VIEW,), "f", BlockLimits(8, 1 << 30, 1 << 30, 128))

    def rows(self) -> list[tuple[str, int]]:
        """In their order; the index has a line for each."""
        opened = layerbeam.open_run("out", allow_incomplete=True)
        rows = opened["t"].to_arrow()
        assert opened.manifest["views"]["t"]["rows"] == opened.manifest["counts"]["embedded"] == len(rows)
        paths = [part.path for part in opened["t"].parts]
        assert sorted(f"t/{name}" for name in os.listdir("out/t")) == paths == sorted(set(paths))
        return list(zip(rows["file"].to_pylist(), rows["line"].to_pylist(), strict=True))

    def left_out(self) -> dict[str, str]:
        return layerbeam.open_run("out", allow_incomplete=True).manifest["left_out"]

    def blocks(self) -> list[Path]:
        """The commits of the run, in the order of the rows."""
        return sorted(Path("out/_commits").glob("*.json"))

    def again(self) -> OutputFolder:
        """The next run."""
        self.attempt += 1
        self.encoded.clear()
        return self


def write(name: str, lines: int, seconds: int = 1_000_000) -> None:
    Path(name).write_text("".join(f"{name[:4]:4}{number:3}\n" for number in range(lines)))
    os.utime(name, (seconds, seconds))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The input is a.txt, with three lines."""
    monkeypatch.chdir(tmp_path)
    write("a.txt", 3)
    return Folder()


A = [("a.txt", line) for line in range(3)]
B = [("b.txt", line) for line in range(3)]


def test_the_index_has_old_and_new_blocks_in_the_order_of_the_rows(folder):
    write("b.txt", 2)
    assert folder.run()
    write("b.txt", 3, seconds=2_000_000)
    write("a b.txt", 1)
    assert folder.again().run(blocks=1) is None
    assert folder.encoded == [("a b.txt", 0)]
    assert folder.again().run()
    assert folder.encoded == [("b.txt", 2)]
    assert folder.rows() == [*A, ("a b.txt", 0), *B]
    assert [
        (entry["path"], entry["size"], entry["modified"], entry["blocks"], entry["records"], entry["left_out"])
        for entry in layerbeam.open_run("out").inputs()
    ] == [
        ("a b.txt", 8, 1_000_000, 1, 1, None),
        ("a.txt", 24, 1_000_000, 3, 3, None),
        ("b.txt", 24, 2_000_000, 3, 3, None),
    ]


@pytest.mark.parametrize("bytes_left", [5, None])
def test_a_part_that_is_short_or_missing_makes_the_file_incomplete_and_no_gap(folder, bytes_left):
    problems = list(folder.work(folder.begin()))
    part = sorted(Path("out/t").iterdir())[1]
    if bytes_left is None:
        part.unlink()
    else:
        part.write_bytes(bytes(bytes_left))
    assert not folder.finish([own for own in problems if isinstance(own, InputFile)])
    assert folder.rows() == [A[0], A[2]]
    assert folder.left_out() == {"a.txt": LOST}
    assert folder.again().run()
    assert folder.encoded == [A[1]]
    assert folder.rows() == A


def test_rows_of_a_file_that_cannot_be_read_stay(folder):
    assert folder.run()
    write("a.txt", 3, seconds=2_000_000)
    folder.again().begin()
    unreadable = InputFile.unreadable("a.txt", "Permission denied")
    assert not folder.finish([unreadable])
    assert folder.rows() == A
    assert folder.left_out() == {"a.txt": "Permission denied"}
    # A part of it was read, and the rest is of another state of the file.
    Path("a.txt").write_text("other 0\nother 1\nother 2\n")
    work = folder.again().work(folder.begin())
    next(work)
    assert not folder.finish([unreadable])
    assert folder.rows() == A[:1]
    assert folder.left_out() == {"a.txt": "Permission denied"}


@pytest.mark.parametrize("blocks", [2, None], ids=["killed", "ended"])
def test_where_nobody_could_see_the_end_of_a_file_the_next_run_does(folder, monkeypatch, blocks):
    """The store fails after the last block is read: it is committed, and not known to be the last one."""
    find_change, problem = storage.find_change, InputFile.unreadable("a.txt", "Input/output error")
    answers = itertools.cycle([problem, None])  # when a block is read, and before it is written
    monkeypatch.setattr(storage, "find_change", lambda _: next(answers))
    assert not folder.run(blocks=blocks)
    assert len(folder.encoded) == 3
    assert blocks or folder.left_out() == {"a.txt": "Input/output error"}
    monkeypatch.setattr(storage, "find_change", find_change)
    assert folder.again().run()
    assert folder.encoded == []
    assert folder.rows() == A


@pytest.mark.parametrize("text", ["other  3\n", "longer than before\n"])
def test_rows_of_a_file_of_a_pack_that_cannot_be_read_stay(folder, monkeypatch, text):
    os.unlink("a.txt")
    for number in range(20):
        write(f"{number:02}.txt", 1)
    folder.limits = BlockLimits(1 << 10, 1 << 30, 1 << 30, 128, joins_files=True)
    assert folder.run()
    rows = folder.rows()
    assert len(os.listdir("out/t")) == 1
    Path("03.txt").write_text(text)
    with monkeypatch.context() as patch:
        deny(patch, Path("03.txt"))
        assert not folder.again().run()
    assert folder.encoded == []
    assert folder.left_out() == {"03.txt": "Permission denied"}
    assert sorted(folder.rows()) == rows
    assert folder.again().run()
    assert folder.encoded == [("03.txt", 0)]
    assert sorted(folder.rows()) == rows


def test_rows_are_copied_from_the_pack_that_has_them_of_two_with_one_name(folder):
    os.unlink("a.txt")
    folder.limits = BlockLimits(1 << 10, 1 << 30, 1 << 30, 128, joins_files=True)
    names = [f"{number:02}.txt" for number in range(20)]

    def rewrite(some: list[str], text: str, seconds: int) -> None:
        for name in some:
            Path(name).write_text(text)
            os.utime(name, (seconds, seconds))

    rewrite(names, "before\n", 1_000_000)
    assert folder.run()
    rewrite(names, "behind\n", 2_000_000)
    assert folder.again().run(blocks=0) is None
    assert len(folder.encoded) == 20
    rewrite(names[:10], "before\n", 3_000_000)
    rewrite(names[10:], "behind\n", 3_000_000)
    assert folder.again().run()
    assert folder.encoded == []
    rows = layerbeam.open_run("out")["t"].to_arrow()
    texts = dict(zip(rows["file"].to_pylist(), rows["text"].to_pylist(), strict=True))
    assert texts == dict.fromkeys(names[:10], "before") | dict.fromkeys(names[10:], "behind")


def test_of_blocks_with_the_same_lines_only_the_newest_count(folder):
    assert folder.run(blocks=1) is None
    folder.limits = BlockLimits(16, 1 << 30, 1 << 30, 128)
    assert folder.again().run()
    assert folder.rows() == A


@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 1, 2]])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_blocks_that_are_committed_nowhere_are_never_silent(folder, name, lost):
    if name.endswith(".gz"):
        Path(name).write_bytes(gzip.compress(Path("a.txt").read_bytes()))
        os.unlink("a.txt")
    assert len(list(folder.work(folder.begin()))) == 3
    blocks = folder.blocks()
    for number in lost:
        blocks[number].unlink()
    message = rf"{name}: line {lost[0]} and what follows it is in no block; run again, and please report it"
    with pytest.raises(AssertionError, match=message):
        folder.finish()
    assert not {"_SUCCESS", "manifest.json"} & set(os.listdir("out"))


def test_a_commit_of_other_settings_is_not_the_block(folder):
    list(folder.work(folder.begin()))
    commit = json.loads(folder.blocks()[1].read_text())
    folder.blocks()[1].write_text(json.dumps(commit | {"fingerprint": "other"}))
    with pytest.raises(AssertionError, match=r"a\.txt: line 1 and what follows it is in no block"):
        folder.finish()


def test_one_name_for_two_blocks_is_never_silent(folder, monkeypatch):
    write("b.txt", 3)
    monkeypatch.setattr(layout, "file_name", lambda path: "a-fcf9f35232c8ebb5")
    with pytest.raises(AssertionError, match=r"a\.txt: line 0 and what follows it is in no block"):
        folder.run()


def test_empty_files_are_complete(folder):
    write("empty.txt", 0)
    Path("packed.txt.gz").write_bytes(gzip.compress(b""))
    assert folder.run()
    assert folder.rows() == A
    assert folder.is_finished
    assert [entry["path"] for entry in layerbeam.open_run("out").inputs()] == ["a.txt", "empty.txt", "packed.txt.gz"]


def test_parts_of_a_newer_attempt_stay(folder, monkeypatch):
    """It begins while the end of the earlier one describes what it found."""
    list(folder.work(folder.begin()))
    newer = Path("out/t/newer-0123456789abcdef-000000000000-0123456789abcdef.parquet")
    newer.write_bytes(b"being written")

    def describe(views, describe=finish.describe_views):
        Path("out/_runs/2.json").write_text(json.dumps({"run": 2, "state": "done"}))
        return describe(views)

    monkeypatch.setattr(finish, "describe_views", describe)
    with pytest.raises(finish.SupersededError):
        folder.finish()
    assert newer.exists()
    assert not {"_SUCCESS", "manifest.json"} & set(os.listdir("out"))


def test_as_many_rejects_as_are_allowed():
    allowed = {metrics.RECORDS: 1000, metrics.EMBEDDED: 990, metrics.REJECTED: 10, metrics.REJECTED_BY_ENCODER: 1}
    assert finish.find_problems({}, allowed, {}, None, "text") == []
    assert finish.find_problems({}, allowed | {metrics.REJECTED: 11}, {}, None, "text") == [
        "11 of 1,000 records were rejected: more than max_reject_rate 0.01 allows"
    ]
    (problem,) = finish.find_problems({}, allowed | {metrics.REJECTED_BY_ENCODER: 2}, {}, None, "text")
    assert problem.startswith("the encoder failed on 2 of 1,000 records, more than 0.001: ")
