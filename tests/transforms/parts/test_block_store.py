"""When a commit in `_commits` counts, and which of two counts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from layerbeam.transforms.flow.commits import Commit, FileRange, InputFile, Part, name_of
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.part_format import Output

COUNTS = {"records_read": 2, "embedded": 2}
FILES = (FileRange(InputFile("a.txt", 100, 5.0), 3, 2, 10, 30, "ab" * 32, counts=COUNTS),)
PARTS = {"tokens": Part("tokens/a-64fc9e0700000000-000000000003-cdcdcdcdcdcdcdcd.parquet", 7, 9, "cd" * 32)}
COMMIT = Commit(name_of(FILES), "f1", FILES, PARTS, attempt=1)


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    """The folder with the part, and nothing else."""
    (tmp_path / "tokens").mkdir()
    (tmp_path / PARTS["tokens"].path).write_bytes(bytes(9))
    return BlockStore(Output(str(tmp_path), "f1", attempt=2))


def test_no_commit_is_found_before_there_is_one(store):
    assert store.find("", FILES) is None
    assert store.put(COMMIT) is COMMIT
    assert store.find("", FILES) == COMMIT


def test_a_commit_is_that_of_a_file_with_a_new_time(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store.put(COMMIT)
    touched = (dataclasses.replace(FILES[0], file=InputFile("a.txt", 100, 6.0)),)
    # A worker that comes too late knows another time than the file has.
    assert store.put(dataclasses.replace(COMMIT, files=touched, attempt=2)) == COMMIT
    (tmp_path / "a.txt").write_bytes(bytes(100))
    os.utime("a.txt", (6, 6))
    again = dataclasses.replace(COMMIT, files=touched, attempt=2)
    assert store.put(again) == COMMIT.now(touched) == dataclasses.replace(COMMIT, files=touched)
    assert store.find("", touched) == COMMIT.now(touched)


def test_the_first_of_two_commits_counts(store):
    store.put(COMMIT)
    other = Part("tokens/a-64fc9e0700000000-000000000003-efefefefefefefef.parquet", 7, 9, "ef" * 32)
    second = dataclasses.replace(COMMIT, parts={"tokens": other}, attempt=2)
    assert store.put(second) == COMMIT
    assert store.find("", FILES) == COMMIT


@pytest.mark.parametrize("what", ["settings", "content", "missing part", "short part", "damaged"])
def test_a_commit_that_cannot_be_trusted_is_replaced(store, what):
    folder = Path(store.output.path)
    first = {
        "settings": dataclasses.replace(COMMIT, fingerprint="f0"),
        "content": dataclasses.replace(COMMIT, files=(dataclasses.replace(FILES[0], sha256="ee" * 32),)),
    }.get(what, COMMIT)
    store.put(first)
    part = folder / PARTS["tokens"].path
    if what == "missing part":
        part.unlink()
    elif what == "short part":
        part.write_bytes(bytes(8))
    elif what == "damaged":
        (folder / "_commits" / f"{COMMIT.name}.json").write_bytes(b"{")
    assert store.find("", FILES) is None
    part.write_bytes(bytes(9))
    if "part" in what:  # it is sound again
        assert store.put(dataclasses.replace(COMMIT, attempt=2)) == COMMIT
    else:
        second = dataclasses.replace(COMMIT, attempt=2)
        assert store.put(second) is second
        assert store.find("", FILES) == second
