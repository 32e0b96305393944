"""Random nights of an output folder: changes, damage and kills, and after each end a judge in plain Python.

The judge knows the lines of each file and which rows were lost. It knows nothing of blocks, but that a text that is
committed and unchanged is never encoded again.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from output_folder import OutputFolder

import layerbeam
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.views.view import ViewSpec

Rows = list[tuple[str, int, str]]

A, B = (ViewSpec(name=name, level="text", layers=(1,), hidden_size=4) for name in "ab")
WORDS = ("one", "two", "three", "four", "five", "six", "seven")
NOT_UTF8 = os.fsdecode(b"caf\xe9.txt")
SMALL = BlockLimits(30, 1 << 30, 1 << 30, 128)  # two or three lines
PACKED = BlockLimits(1 << 10, 1 << 30, 1 << 30, 128, joins_files=True)
NIGHTS = 6
STEP = 4  # seeds of one test are so far apart
# Of packed files: an end copied rows of a file that cannot be read out of a pack that does not stay, although another
# pack, which stays, has them.
FOUND = (22, 111)


class Night:
    """An input and an output folder, and what the judge knows of them.

    `now`: the lines of each input file. `listed`: {view: {path: {line: text}}} of the rows that the last end listed and
    whose block is whole. `changed`: {path: first line that changed since it was encoded}. `touched`: files that are not
    as at the last end. `unreadable`: links to nothing. `copies`: of the rows of each view, kept up to date by what runs
    changed; `seen`: the last run whose changes they have.
    """

    def __init__(self, seed: int, limits: BlockLimits, limit: int | None = None) -> None:
        self.random = random.Random(seed)
        self.now: dict[str, list[str]] = {}
        self.listed: dict[str, dict[str, dict[int, str]]] = {"a": {}, "b": {}}
        self.changed: dict[str, int] = {}
        self.touched: set[str] = set()
        self.unreadable: set[str] = set()
        self.steps = 0
        self.is_killed = False
        self.seen: str | int = 0
        self.copies: dict[str, dict[tuple[str, int], str]] = {"a": {}, "b": {}}
        self.output = OutputFolder("out", ["corpus/*.txt", "corpus/sub/*.txt"], (A,), "f" * 16, limits, limit)
        Path("corpus/sub").mkdir(parents=True)
        for name in ("a.txt", "b.txt", "sub/a.txt", NOT_UTF8, "large.txt"):
            self.write(f"corpus/{name}", [self.line() for _ in range(40 if name == "large.txt" else 5)])
        if limits.joins_files:
            for number in range(40):
                self.write(f"corpus/small{number:02}.txt", [self.line() for _ in range(number % 3 + 1)])

    def line(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 3)))

    def log(self, step: str) -> None:
        """Print a step, for a test that fails."""
        self.steps += 1
        print(step)

    def write(self, path: str, lines: list[str]) -> None:
        """Write a file; it was never changed at that time before."""
        before = self.now.get(path, [])
        same = next((n for n, pair in enumerate(zip(before, lines, strict=False)) if pair[0] != pair[1]), None)
        first = min(len(before), len(lines)) if same is None else same
        if os.path.islink(path):
            os.remove(path)
        Path(path).write_text("".join(f"{line}\n" for line in lines))
        seconds = 1_000_000_000 + self.steps + len(self.now)
        os.utime(path, (seconds, seconds))
        self.now[path] = lines
        self.unreadable.discard(path)
        self.touched.add(path)
        if before != lines:
            self.changed[path] = min(first, self.changed.get(path, first))

    def change(self) -> None:
        """One change of the input or the output."""
        path = self.random.choice(sorted(self.now))
        lines = list(self.now[path])
        kinds = "add", "edit", "insert", "append", "touch", "shorten", "rename", "copy", "remove", "break", "damage"
        kind = self.random.choice(kinds)
        self.log(f"{kind} {path!r}")
        if kind == "add":
            self.write(f"corpus/new{self.random.randint(0, 20)}.txt", [self.line() for _ in range(4)])
        elif kind == "edit":
            lines[self.random.randrange(len(lines))] = self.line()
            self.write(path, lines)
        elif kind == "insert":
            place = self.random.randint(0, len(lines))
            self.write(path, [*lines[:place], self.line(), *lines[place:]])
        elif kind == "append":
            self.write(path, [*lines, self.line(), self.line()])
        elif kind == "touch":
            self.write(path, lines)
        elif kind == "shorten":
            self.write(path, lines[: self.random.randint(1, len(lines))])
        elif kind == "copy":
            self.write(f"corpus/new{self.random.randint(0, 20)}.txt", lines)
        elif kind in ("remove", "rename", "break") and path not in self.touched and len(self.now) > 1:
            os.remove(path)
            del self.now[path]
            if kind == "break":
                os.symlink("nothing", path)
                self.unreadable.add(path)
            if kind == "rename":
                self.write(f"corpus/new{self.random.randint(0, 20)}.txt", lines)
        elif kind == "damage":
            self.damage()

    def damage(self) -> None:
        """A part becomes shorter, or vanishes."""
        parts = sorted(Path("out/a").glob("*.parquet"))
        if not parts:
            return
        part = self.random.choice(parts)
        # A run that was killed may have copied rows that its end would have listed.
        elsewhere = {row for other in parts if other != part for row in rows_in(other)}
        for file, line in rows_in(part):
            for listed in self.listed.values() if (file, line) not in elsewhere else ():
                listed.get(file, {}).pop(line, None)
            self.changed[file] = 0
            self.touched.add(file)
        if self.random.random() < 0.5:
            part.unlink()
        else:
            part.write_bytes(part.read_bytes()[:-1])

    def inputs(self) -> tuple[dict[str, dict[int, str]], set[str]]:
        """(the texts of the input, the files in it that cannot be read)."""
        found: dict[str, dict[int, str]] = {}
        unreadable = set[str]()
        left = sum(map(len, self.now.values())) if self.output.limit is None else self.output.limit
        for path in sorted([*self.now, *self.unreadable]):
            if path in self.unreadable and left:
                unreadable.add(path)
            elif left:
                found[path] = dict(enumerate(self.now[path][:left]))
                left -= len(found[path])
        return found, unreadable | (set() if self.output.limit else self.unreadable)

    def gone(self, view: str) -> dict[str, dict[int, str]]:
        """The rows of files that are no input any more."""
        inputs, _ = self.inputs()
        return {path: rows for path, rows in self.listed[view].items() if path not in inputs}

    def expected(self, view: str) -> Rows:
        """The rows of a run that ends now."""
        rows = self.gone(view) | self.inputs()[0]
        return [(path, line, text) for path in sorted(rows) for line, text in sorted(rows[path].items())]


def rows_in(part: Path) -> list[tuple[str, int]]:
    try:
        table = pq.read_table(part, columns=["file", "line"])
    except (OSError, ValueError):
        return []  # damaged before
    return [(unprintable(file), line) for file, line in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def unprintable(path: str) -> str:
    """The path that a column shows as text."""
    return path.replace("caf%E9.txt", NOT_UTF8)


def rows_of(view: Any) -> Rows:
    """The rows of a view that is open, in their order."""
    table = view.to_arrow()
    files, lines, texts = (table[name].to_pylist() for name in ("file", "line", "text"))
    assert [len(text) for text in texts] == [vector[0] for vector in table["layer_1"].to_pylist()]
    return [(unprintable(file), line, text) for file, line, text in zip(files, lines, texts, strict=True)]


def run(night: Night) -> None:
    """A night's run, and what must hold after it."""
    output = night.output
    if night.random.random() < 0.15:
        output.views, output.fingerprint = (A, B), "0" * 16
        night.changed |= dict.fromkeys([*night.now, *night.gone("a")], 0)
        night.touched.update(night.now)
    # What a killed run did of files that a change then moves behind the limit may stay or not.
    is_killed = night.random.random() < 0.3 and not output.limit
    blocks = night.random.randint(0, 6) if is_killed else None
    prunes = night.random.random() < 0.2
    output.max_missing = 0 if night.random.random() < 0.5 or not prunes else 1.0
    night.log(f"run: views {len(output.views)}, killed after {blocks} blocks, prune {prunes}")
    output.attempt += 1
    output.encoded.clear()
    is_complete = output.run(prune_missing=prunes and not output.max_missing, blocks=blocks)
    check_encoded(night)
    night.is_killed = is_complete is None
    if is_complete is None:
        return
    if prunes:
        kept = set[str]().union(*night.inputs())
        night.listed = {
            name: {path: rows for path, rows in listed.items() if path in kept} for name, listed in night.listed.items()
        }
    opened = layerbeam.open_run(output.path, allow_incomplete=True)
    drop_renamed(night, opened)
    for view in output.views:
        rows, found = night.expected(view.name), rows_of(opened[view.name])
        assert sorted(set(found) ^ set(rows)) == [], view.name
        assert sorted(found) == rows
        on_disk = sorted(Path("out", view.name).iterdir())
        assert [path.name for path in on_disk] == [os.path.basename(path) for path in opened[view.name].paths]
        assert [row[:2] for row in found] == [row for path in on_disk for row in rows_in(path)]
    if night.random.random() < 0.7:
        keep_up(night, opened)
    counts = opened.manifest["counts"]
    assert counts["records_read"] == counts["embedded"] == len(night.expected("a"))
    inputs, unreadable = night.inputs()
    assert is_complete == (not night.gone("a") and not unreadable)
    night.listed |= {view.name: night.gone(view.name) | inputs for view in output.views}
    night.changed.clear()
    night.touched.clear()
    assert output.find().is_empty == is_complete
    assert output.is_finished == is_complete


def drop_renamed(night: Night, opened: Any) -> None:
    """Files that are gone have no rows any more if all that they had is, at the same lines, in another file.

    That may be a file of which an input limit leaves out some lines.
    """
    others = [dict(enumerate(night.now[path])) for path in night.inputs()[0]]
    for path in {*night.gone("a"), *night.gone("b")} - opened.manifest["left_out"].keys():
        for listed in night.listed.values():
            rows = listed.pop(path, {})
            assert not rows or any(rows.items() <= lines.items() for lines in others), path


def keep_up(night: Night, opened: Any) -> None:
    """Apply what came, went and moved to the copies of the rows: then they equal the rows, and no row came twice."""
    for view in night.output.views:
        changes, copy = opened.changes(view.name, since=night.seen), night.copies[view.name]
        went = [key for batch in changes.went() for key in keys_in(batch, "")]
        moved = [
            (old, new)
            for batch in changes.moved()
            for old, new in zip(keys_in(batch, "old_"), keys_in(batch, ""), strict=True)
        ]
        with_old = {key for batch in changes.went(with_moved=True) for key in keys_in(batch, "")}
        assert with_old == {*went, *(old for old, _ in moved)}
        # Lines that an input limit, or the end of a file, leaves out of a block have no rows.
        carried = {new: copy.pop(old) for old, new in moved}
        for key in went:
            copy.pop(key)
        came = {key: text for batch in changes.came(["text", "line", "file"]) for key, text in texts_in(batch)}
        both = {key: text for batch in changes.came(with_moved=True) for key, text in texts_in(batch)}
        assert both == came | carried
        assert not copy.keys() & both.keys()
        copy |= both
        assert copy == {(file, line): text for file, line, text in rows_of(opened[view.name])}
    assert str(changes.until).startswith(f"{night.output.attempt}-")
    night.seen = changes.until


def keys_in(batch: Any, old: str) -> list[tuple[str, int]]:
    files, lines = batch[f"{old}file"].to_pylist(), batch[f"{old}line"].to_pylist()
    return [(unprintable(file), line) for file, line in zip(files, lines, strict=True)]


def texts_in(batch: Any) -> list[tuple[tuple[str, int], str]]:
    return list(zip(keys_in(batch, ""), batch["text"].to_pylist(), strict=True))


def check_encoded(night: Night) -> None:
    """Nothing was encoded that is committed and unchanged."""
    encoded = night.output.encoded
    assert len(set(encoded)) == len(encoded)
    if night.output.limit or (night.output.limits.joins_files and night.is_killed):
        return  # a change moves where the limit is; which files are together depends on what is left
    for path, line in encoded:
        assert path in night.changed, f"{path!r} is encoded again"
        # A small block has at most eight short lines.
        first = 0 if night.output.limits.joins_files else night.changed[path] - 8
        assert line >= first, f"line {line} of {path!r} is encoded again"


def check(night: Night) -> None:
    run(night)
    for _ in range(NIGHTS):
        for _ in range(night.random.randint(0, 4)):
            night.change()
        run(night)


@pytest.mark.parametrize("limit", [None, 23])
@pytest.mark.parametrize("limits", [SMALL, PACKED], ids=["small blocks", "packed files"])
@pytest.mark.parametrize("first", range(STEP))
def test_random_nights(first, limits, limit, soak, tmp_path, monkeypatch):
    found = [seed for seed in FOUND if seed % STEP == first and limits.joins_files]
    for seed in [*range(first, 400, STEP)] if soak else [first, *found]:
        folder = tmp_path / str(seed)
        folder.mkdir()
        # Names of blocks depend on paths: with relative ones a seed gives the same names anywhere.
        monkeypatch.chdir(folder)
        check(Night(seed, limits, limit))
