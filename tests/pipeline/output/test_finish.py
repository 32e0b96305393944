"""A group of files finished from what was reported and what is on the disk, without a pipeline."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from layerbeam.pipeline.output.finish_group import GroupReport, finish_group
from layerbeam.pipeline.output.groups import Boundaries, Gathered, GroupWork, make_groups, mark
from layerbeam.pipeline.output.index import load_index
from layerbeam.transforms import layout
from layerbeam.transforms.commits import BlockId, Commit, InputFile, Part
from layerbeam.transforms.layout import commit_path
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.settings import RecordFormat

A, B = InputFile("a.txt", 30, 1.0), InputFile("b.txt", 20, 1.0)
COUNTS = {"records_read": 1, "embedded": 1}


class Folder:
    """An output folder with commits and parts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.output = Output(str(path), "f")
        (path / "t").mkdir()
        (path / "_commits").mkdir()

    def commit(self, file: InputFile, line: int, *, sha256: str = "0", fingerprint: str = "f") -> Commit:
        """A block of ten bytes, with a part of ten bytes."""
        block = BlockId(file, line, 1, 10 * line, 10 * line + 10, sha256)
        part = Part(f"t/{block.name}-{sha256}.parquet", 1, 10, "0")
        (self.path / part.path).write_bytes(bytes(10))
        commit = Commit(fingerprint, block, COUNTS, {"t": part})
        (self.path / commit_path(block.name)).write_text(json.dumps(commit.to_json()))
        return commit

    def listed(self, *commits: Commit) -> None:
        """These are in the index, and no longer in `_commits`."""
        (self.path / "parts.jsonl").write_text("".join(json.dumps(commit.to_json()) + "\n" for commit in commits))
        for commit in commits:
            (self.path / commit_path(commit.block.name)).unlink(missing_ok=True)

    def finish(
        self, files: list[InputFile], reports: list[Commit | InputFile], current: tuple[str, ...] = ()
    ) -> tuple[GroupReport, list[Commit]]:
        """What a group of these files reports, and what the index has then."""
        (group,) = make_groups(files, 10, begun=[file.path for file in files])
        gathered = Gathered(GroupWork(group, frozenset(current), (), ()))
        for report in reports:
            gathered.add(report)
        report = finish_group(self.output, (), gathered, RecordFormat())
        assert report.lines is not None
        (self.path / "parts.jsonl").write_bytes(report.lines)
        return report, list(load_index(str(self.path)))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_commits_come_from_both_places_in_the_order_of_the_rows(folder):
    a = [folder.commit(A, line) for line in range(3)]
    b = [folder.commit(B, line) for line in range(2)]
    folder.listed(a[0], a[2], *b)
    report, listed = folder.finish([A, B], [a[2], a[0], a[1], a[1]], current=("b.txt",))
    assert listed == [*a, *b]
    assert report.counts == {"embedded": 5, "records_read": 5}
    assert report.views == {"t": {"rows": 5, "bytes": 50, "parts": 5}}
    assert [(entry["path"], entry["blocks"], entry["left_out"]) for entry in report.inputs] == [
        ("a.txt", 3, None),
        ("b.txt", 2, None),
    ]


def test_a_commit_of_another_content_or_fingerprint_is_not_the_block(folder):
    old = folder.commit(B, 0, sha256="1")
    folder.listed(old)
    blocks = [folder.commit(B, 0, fingerprint="other"), folder.commit(B, 1)]
    report, listed = folder.finish([B], blocks)
    assert report.skipped == {InputFile.unreadable("b.txt", "what was written of it is missing or short; run again")}
    assert listed == blocks[1:]


def test_blocks_of_a_file_that_has_grown_belong_to_the_file_as_it_is_now(folder):
    folder.listed(*(folder.commit(B, line) for line in range(2)))
    now = InputFile("b.txt", 30, 2.0)
    blocks = [
        dataclasses.replace(c, block=dataclasses.replace(c.block, file=now)) for c in load_index(str(folder.path))
    ]
    _, listed = folder.finish([now], [*blocks, folder.commit(now, 2)])
    assert [commit.block.file for commit in listed] == [now] * 3


def test_a_part_that_is_short_makes_the_file_incomplete_and_no_gap(folder):
    blocks = [folder.commit(A, line) for line in range(3)]
    (folder.path / blocks[1].parts["t"].path).write_bytes(b"short")
    report, listed = folder.finish([A], blocks)
    assert report.skipped == {InputFile.unreadable("a.txt", "what was written of it is missing or short; run again")}
    assert listed == [blocks[0], blocks[2]]


def test_rows_of_a_file_that_cannot_be_read_stay(folder):
    blocks = [folder.commit(A, line) for line in range(3)]
    folder.listed(*blocks[:2])
    unreadable = InputFile.unreadable("a.txt", "Permission denied")
    assert folder.finish([A], [unreadable])[1] == blocks
    # A part of it was read, and the rest is of another state of the file.
    now = InputFile("a.txt", 30, 2.0)
    first = folder.commit(now, 0)
    report, listed = folder.finish([now], [unreadable, first])
    assert listed == [first]
    assert [entry["left_out"] for entry in report.inputs] == ["Permission denied"]


def test_a_block_that_nobody_reported_is_missing(folder):
    blocks = [folder.commit(A, line) for line in range(3)]
    with pytest.raises(AssertionError, match=r"a\.txt: lines 1 to 1 are in no block; run again, and please report it"):
        folder.finish([A], [blocks[0], blocks[2]])


def test_blocks_of_a_file_that_is_not_an_input(folder):
    with pytest.raises(AssertionError, match=r"a\.txt: has blocks but is not an input file"):
        folder.finish([B], [folder.commit(A, 0)])


def test_one_name_for_two_blocks_is_never_silent(folder, monkeypatch):
    monkeypatch.setattr(layout, "file_name", lambda path: "a-fcf9f35232c8ebb5")
    blocks = [folder.commit(InputFile(path, 10, 0.0), 0) for path in ("a.txt", "b.txt")]
    with pytest.raises(AssertionError, match="two blocks were written as a-fcf9f35232c8ebb5-000000000000"):
        folder.finish([block.block.file for block in blocks], blocks)


def test_groups_are_cut_by_size_and_hold_all_paths():
    # A file has one slice more than bytes, a group 10,000 or one file.
    sizes = (3_999, 5_999, 90_000, 4, 4)
    files = [InputFile(f"{name}.txt", size, 0.0) for name, size in zip("acegi", sizes, strict=True)]
    found = make_groups(files, 1, begun=["b.txt", "z.txt"])
    assert [[file.path[0] for file in group.files] for group in found] == [["a", "c"], ["e"], ["g", "i"]]
    assert [(group.first, group.end) for group in found] == [("", "e.txt"), ("e.txt", "g.txt"), ("g.txt", None)]
    assert [set(group.begun) for group in found] == [{"b.txt"}, set(), {"z.txt"}]
    boundaries = Boundaries(tuple(group.first for group in found))
    paths = ("", "a.txt", "d.txt", "e.txt", "f.txt", "g.txt", "z")
    assert [boundaries.number_of(path) for path in paths] == [0, 0, 0, 1, 1, 2, 2]


def test_what_is_gathered_does_not_depend_on_the_order():
    commits = [Commit("f", BlockId(A, line, 1, line, line + 1, "0"), COUNTS, {}) for line in (700, 3, 3, 41)]
    one, other, both = Gathered(), Gathered(), Gathered()
    for commit in commits[:2]:
        one.add(commit)
    for commit in commits[2:]:
        other.add(commit)
    both.update(other)
    both.update(one)
    assert list(both.marks_of("a.txt")) == [mark(commits[1].block), mark(commits[3].block), mark(commits[0].block)]
    assert len(one.blocks["a.txt"]) == 32
