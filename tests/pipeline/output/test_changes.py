"""What runs changed in the rows: over several runs, and when the end of one dies."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from output_folder import OutputFolder

import layerbeam
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.views.view import ViewSpec

VIEWS = tuple(ViewSpec(name=name, level="text", layers=(1,), hidden_size=4) for name in "tu")


class Folder(OutputFolder):
    """Each line of eight bytes is a block."""

    def __init__(self) -> None:
        super().__init__("out", ["*.txt"], VIEWS, "f", BlockLimits(8, 1 << 30, 1 << 30, 128))

    def night(self, **files: list[str]) -> None:
        """Write these files, and run to the end."""
        for name, lines in files.items():
            path = Path(f"{name}.txt")
            path.write_text("".join(f"{line:7}\n" for line in lines))
            os.utime(path, (self.attempt, self.attempt))
        assert self.run(prune_missing=True)
        self.attempt += 1

    def changes(self, since: int) -> dict[str, Any]:
        """What changed in the view `t`, which is all that changed."""
        opened = layerbeam.open_run("out")
        changes = opened.changes("t", since=position(since))
        assert opened.changes("u", since=position(since)).until == changes.until
        came = [tuple(row.values()) for batch in changes.came(["file", "line", "text"]) for row in batch.to_pylist()]
        went = [tuple(row.values()) for batch in changes.went() for row in batch.to_pylist()]
        moved = [tuple(row.values()) for batch in changes.moved() for row in batch.to_pylist()]
        found = {"came": [(file, line, text.strip()) for file, line, text in came], "went": went, "moved": moved}
        return {kind: rows for kind, rows in found.items() if rows}


def position(number: int) -> str | int:
    """The position of the end of a run."""
    if not number:
        return 0
    (path,) = Path("out/_runs").glob(f"{number}.changes-*")
    return path.name.removesuffix(".jsonl").replace(".changes", "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Two runs have ended: the first with a.txt, the second with b.txt too."""
    monkeypatch.chdir(tmp_path)
    folder = Folder()
    folder.night(a=["one", "two", "three"])
    folder.night(b=["four", "five"])
    return folder


def fail_to_replace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when a file of the output is to appear."""
    replace = os.replace

    def failing(source: str, target: str) -> None:
        if os.path.basename(target) == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)


def test_the_changes_of_several_runs_are_one_change(folder):
    assert folder.changes(0) == {
        "came": [
            ("a.txt", 0, "one"),
            ("a.txt", 1, "two"),
            ("a.txt", 2, "three"),
            ("b.txt", 0, "four"),
            ("b.txt", 1, "five"),
        ]
    }
    assert folder.changes(1) == {"came": [("b.txt", 0, "four"), ("b.txt", 1, "five")]}
    assert folder.changes(2) == {}
    folder.night(a=["one", "2", "three"])
    folder.night(b=["four"])
    folder.night(a=["one", "II", "three"], b=["four", "five"])
    assert folder.changes(4) == {
        "came": [("a.txt", 1, "II"), ("b.txt", 1, "five")],
        "went": [("a.txt", 1)],
    }
    assert folder.changes(2) == {"came": [("a.txt", 1, "II")], "went": [("a.txt", 1)]}
    folder.night(a=["one", "two", "three"])
    assert folder.changes(2) == {}
    assert folder.changes(1) == {"came": [("b.txt", 0, "four"), ("b.txt", 1, "five")]}


def test_lines_with_the_same_bytes_have_moved(folder):
    folder.night(a=["zero", "one", "two", "three"])
    assert folder.changes(2) == {
        "came": [("a.txt", 0, "zero")],
        "moved": [("a.txt", 0, "a.txt", 1), ("a.txt", 1, "a.txt", 2), ("a.txt", 2, "a.txt", 3)],
    }
    os.remove("b.txt")
    folder.night(c=["five", "four", "four"])
    assert folder.changes(3) == {
        "came": [("c.txt", 2, "four")],
        "moved": [("b.txt", 1, "c.txt", 0), ("b.txt", 0, "c.txt", 1)],
    }
    os.remove("c.txt")
    folder.night(a=["one", "two", "three"])
    assert folder.changes(2) == {"went": [("b.txt", 0), ("b.txt", 1)]}


def test_an_end_that_died_before_it_replaced_the_index(folder, monkeypatch):
    """What it said would have changed did not."""
    with monkeypatch.context() as patched:
        fail_to_replace("parts.jsonl", patched)
        with pytest.raises(OSError, match="No space"):
            folder.night(a=["one", "2", "three"])
    folder.attempt += 1
    folder.night(a=["one", "two", "III"])
    assert folder.changes(2) == {"came": [("a.txt", 2, "III")], "went": [("a.txt", 2)]}
    assert len(list(Path("out/_runs").glob("3.changes-*"))) == 1


def test_an_end_that_is_repeated(folder, monkeypatch):
    """The index was replaced, so for the second time nothing changes."""
    with monkeypatch.context() as patched:
        fail_to_replace("manifest.json", patched)
        with pytest.raises(OSError, match="No space"):
            folder.night(a=["one", "2", "three"])
    assert folder.finish()
    assert folder.changes(2) == {"came": [("a.txt", 1, "2")], "went": [("a.txt", 1)]}


def test_a_part_that_is_written_again_is_no_change(folder):
    parts = sorted(Path("out/t").iterdir())
    parts[1].unlink()
    parts[2].write_bytes(b"short")
    folder.night()
    assert len(folder.encoded) == 7
    assert folder.changes(2) == {}


def test_a_new_view_comes(folder):
    folder.views, folder.fingerprint = (*VIEWS, ViewSpec(name="new", level="text", layers=(1,), hidden_size=4)), "g"
    folder.night(b=["four", "V"])
    assert folder.changes(2) == {"came": [("b.txt", 1, "V")], "went": [("b.txt", 1)]}
    new = layerbeam.open_run("out").changes("new", since=position(2))
    assert sum(len(batch) for batch in new.came()) == 5
    assert list(new.went()) == []


def test_what_is_not_known_is_an_error(folder):
    folder.night(b=["four"])
    opened = layerbeam.open_run("out")
    with pytest.raises(ValueError, match=r"since: 2 is the number of a run, .*; give `until` of earlier changes"):
        opened.changes("t", since=2)
    with pytest.raises(ValueError, match="view is missing; out has t, u"):
        opened.changes(since=0)
    first, third = position(1), position(3)
    (second,) = Path("out/_runs").glob("2.changes-*")
    second.rename("kept")
    with pytest.raises(
        ValueError, match=f"out: how its rows changed since run {first} is not known: .*; read all rows"
    ):
        opened.changes("t", since=first)
    with pytest.raises(ValueError, match=r"out: how its rows changed since run 0 is not known: .*; read all rows"):
        opened.changes("t", since=0)
    assert list(opened.changes("t", since=third).came()) == []
    index = Path("out/parts.jsonl")
    index.write_bytes(index.read_bytes() + b"\n")
    with pytest.raises(ValueError, match=f"since run {third} is not known"):
        opened.changes("t", since=third)


@pytest.mark.parametrize("nights", [1, 2, 3])
def test_a_position_of_a_folder_that_was_made_anew(folder, nights):
    """Its runs have the same numbers."""
    before = layerbeam.open_run("out").changes("t", since=0).until
    shutil.rmtree("out")
    folder.attempt = 1
    for night in range(nights):
        folder.night(a=["one", "two", f"night {night}"])
    opened = layerbeam.open_run("out")
    with pytest.raises(ValueError, match=f"since run {before} is not known: the folder was made again or restored"):
        opened.changes("t", since=before)
    assert sum(map(len, opened.changes("t", since=0).came())) == 5


def test_a_position_after_a_backup_was_restored(folder):
    shutil.copytree("out", "backup")
    copied = layerbeam.open_run("out").changes("t", since=0).until
    folder.night(b=["four"])
    before = layerbeam.open_run("out").changes("t", since=copied).until
    shutil.rmtree("out")
    os.rename("backup", "out")
    folder.attempt = 3
    folder.night(b=["IV", "five"])
    with pytest.raises(ValueError, match=f"since run {before} is not known"):
        layerbeam.open_run("out").changes("t", since=before)
    assert folder.changes(2) == {"came": [("b.txt", 0, "IV")], "went": [("b.txt", 0)]}


def test_rows_that_another_run_replaces_meanwhile(folder):
    changes = layerbeam.open_run("out").changes("t", since=position(1))
    folder.night(b=["IV", "five"])
    with pytest.raises(ValueError, match=f"out: rows that came after run {position(1)} are gone: open the run again"):
        list(changes.came())


def test_an_end_that_died_and_would_have_led_back(folder, monkeypatch):
    """A later run's file leads to the same index as an earlier one's, and is no step on the way to it."""
    with monkeypatch.context() as patched:
        fail_to_replace("parts.jsonl", patched)
        os.rename("b.txt", "b")
        with pytest.raises(OSError, match="No space"):
            folder.night()
    os.rename("b", "b.txt")
    folder.attempt += 1
    folder.night()
    assert len(folder.changes(0)["came"]) == 5
    assert folder.changes(1) == {"came": [("b.txt", 0, "four"), ("b.txt", 1, "five")]}


def test_a_file_for_another_index_whose_name_begins_alike(folder):
    (path,) = Path("out/_runs").glob("2.changes-*")
    head, *events = path.read_text().splitlines()
    other = json.loads(head)
    other["after"] = other["after"][:-1] + ("0" if other["after"][-1] == "1" else "1")
    path.write_text("\n".join([json.dumps(other), *events]) + "\n")
    with pytest.raises(ValueError, match="how its rows changed since run 1-"):
        folder.changes(1)


def test_files_of_a_pack_that_are_as_before(folder):
    folder.limits = BlockLimits(1 << 20, 1 << 30, 1 << 30, 128, joins_files=True)
    folder.night(**{f"c{number:02}": [f"c{number}"] for number in range(20)})
    folder.night(c05=["V"])
    folder.night(**{f"c{number:02}": [f"d{number}"] for number in range(17) if number != 5}, c05=["c5"])
    new = [number for number in range(17) if number != 5]
    assert folder.changes(3) == {
        "came": [(f"c{number:02}.txt", 0, f"d{number}") for number in new],
        "went": [(f"c{number:02}.txt", 0) for number in new],
    }


def test_a_later_attempt_with_other_settings_commits_the_same_blocks(folder):
    """Those of the attempt that ends stay."""
    late = Folder()
    late.attempt = 4
    folder.views, folder.fingerprint = (*VIEWS, ViewSpec(name="new", level="text", layers=(1,), hidden_size=4)), "g"
    Path("c.txt").write_text("six    \n")
    files = folder.begin()
    list(folder.work(files))
    commits = sorted(Path("out/_commits").iterdir())
    lines = [path.read_text() for path in commits]
    for path in commits:
        path.unlink()
    list(late.work(files))
    Path("out/_commits/0123456789abcdef.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert folder.finish()
    assert len(layerbeam.open_run("out")["new"]) == 6


def test_a_byte_order_mark_that_moves_into_the_text(folder):
    """It belongs to the text unless it begins the file: rows of the same bytes are not copied."""
    for first in ([], ["zero"], []):
        folder.night(a=[*first, "\ufeffone", "two"])
        texts = layerbeam.open_run("out")["t"].to_arrow(["file", "text"]).to_pylist()
        own = [row["text"].strip() for row in texts if row["file"] == "a.txt"]
        assert own == (["zero", "\ufeffone", "two"] if first else ["one", "two"])
