"""Commits of earlier runs found by the hash of a block's bytes, in a file."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest
from corpora import content_index

from layerbeam.transforms.flow import content_index as module
from layerbeam.transforms.flow.commits import Commit, FileRange, InputFile, name_of
from layerbeam.transforms.flow.content_index import ContentIndex


def range_of(path: str, text: str, first_byte: int = 0) -> FileRange:
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return FileRange(InputFile(path, 9, 1.0), first_byte, 1, first_byte, first_byte + len(text), sha256)


def commit_of(*files: FileRange, fingerprint: str = "f") -> Commit:
    return Commit(name_of(files), fingerprint, files, {})


def found(blocks: ContentIndex, file_range: FileRange) -> list[tuple[str, int]]:
    return [(one.file_range.file.path, one.file_range.first_byte) for one in blocks.find(file_range)]


def test_the_same_place_comes_first_then_others(tmp_path: Path) -> None:
    pack = commit_of(range_of("p1", "same"), range_of("p2", "other"), range_of("p3", "same"))
    commits = [pack, *(commit_of(range_of(name, "same", 5)) for name in "abcdef"), commit_of(range_of("a", "other", 9))]
    blocks = ContentIndex(content_index(tmp_path / "index", commits))
    for name in "abcdef":
        first, *others = found(blocks, range_of(name, "same", 5))
        assert first == (name, 5)
        assert 2 <= len(others) <= 4
    assert sorted(found(blocks, range_of("new", "other"))) == [("a", 9), ("p2", 0)]
    assert found(blocks, range_of("new", "never")) == []


@pytest.mark.parametrize("expected", [1, 100, 64 << 10])
def test_any_size_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: int) -> None:
    monkeypatch.setattr(module, "_LINE_BYTES", expected)
    monkeypatch.setattr(module, "_COMMITS_KEPT", 2)
    pick = random.Random(0)
    commits = [
        commit_of(*(range_of(f"{number}-{n}", f"text {number} {n}") for n in range(pick.choice((1, 2, 700)))))
        for number in range(12)
    ]
    blocks = ContentIndex(content_index(tmp_path / "index", commits))
    for _ in range(60):
        file_range = pick.choice(pick.choice(commits).files)
        assert found(blocks, file_range) == [(file_range.file.path, 0)]


def test_a_file_that_is_cut_off_or_gone(tmp_path: Path) -> None:
    file_range = range_of("a", "text")
    path = content_index(tmp_path / "index", [commit_of(file_range)])
    os.truncate(path, os.path.getsize(path) - 9)
    assert found(ContentIndex(path), file_range) == []
    gone = str(tmp_path / "gone")
    assert found(ContentIndex(gone), file_range) == []
    assert ContentIndex(gone).commit(0) is None
