"""The end of a run for one group of input files: its commits checked against the disk, and listed in the index."""

from __future__ import annotations

import array
import dataclasses
import heapq
import itertools
import json
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.output.commits import broken_parts, committed, load_begun
from layerbeam.pipeline.output.groups import Gathered, mark
from layerbeam.pipeline.output.index import SHARD_COMMITS, Shard, count_part, load_index, path_hash, write_shard
from layerbeam.transforms import layout, metrics, storage
from layerbeam.transforms.blocks import row_splits_of
from layerbeam.transforms.columns import schema
from layerbeam.transforms.commits import BlockId, Commit, InputFile, Part, printable
from layerbeam.transforms.parts import read_rejects, read_tables
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_part, write_rejects

_LOST = "what was written of it is missing or short; run again"


@dataclasses.dataclass(frozen=True)
class GroupReport:
    """What the end of a run must know of a group of input files.

    `views`: rows, bytes and parts of each; `inputs`: entries of the manifest, or the shard that has them; `listed`:
    8 bytes for each part, which `path_hash` gives; `lines`: the index of a small run, which is written last.
    """

    number: int
    shards: Sequence[Shard]
    inputs: Sequence[Mapping[str, Any]] | Shard
    counts: Mapping[str, int]
    views: Mapping[str, Mapping[str, int]]
    skipped: Collection[InputFile]
    missing: Collection[str]
    listed: bytes
    lines: bytes | None


def finish_group(
    output: Output, views: Sequence[View], gathered: Gathered, record_format: RecordFormat, *, limited: bool = False
) -> GroupReport:
    """Check a group's commits and list them in the index. Never overwrites files of another attempt.

    `limited`: where the last input file ends does not matter, because it is not read to its end. AssertionError if a
    line is in no block or in two.
    """
    report = _finish_group(output, views, gathered, record_format, limited=limited)
    if all(file.problem != _LOST for file in report.skipped):
        return report
    # Another worker may have finished the run meanwhile, and deleted the commits: the index has them now.
    return _finish_group(output, views, gathered, record_format, limited=limited)


def _finish_group(
    output: Output, views: Sequence[View], gathered: Gathered, record_format: RecordFormat, *, limited: bool
) -> GroupReport:
    work = gathered.work
    if work is None:
        path = next(iter(gathered.blocks), None) or next(iter(gathered.skipped)).path
        raise AssertionError(
            f"records are missing or duplicated: {printable(path)}: is in no group of files; run again"
        )
    group = work.group
    files = {file.path: file for file in group.files if not file.problem}
    last = max(files) if files and group.end is None and limited else None
    skipped = {*work.skipped, *gathered.skipped}
    reasons = dict(sorted((file.path, file.problem) for file in skipped))
    excused = {*work.missing, *reasons}
    unknown = gathered.blocks.keys() - files.keys() - excused
    if unknown:
        raise _gap(f"{printable(min(unknown))}: has blocks but is not an input file")
    writer = _IndexWriter(output, is_only=group.is_only)
    entries = []
    index = load_index(output.path)
    begun = load_begun(output.path, sorted({*gathered.together, *group.begun_together}))
    sound = [commit for commit, is_sound in begun if is_sound]
    together = _by_path(of_file for commit in sound for of_file in commit.of_files())
    checked = {path: True for commit in sound for path in commit.part_paths}

    def choose(path: str, in_index: Iterable[Commit]) -> Iterator[Commit | None]:
        candidates = _Candidates(
            output,
            path,
            files.get(path),
            is_current=path in work.current,
            is_excused=path in excused,
            is_begun=path in group.begun,
            together=together.get(path, []),
            checked=checked,
        )
        if path in work.begun:
            in_index = [commit for commit in candidates.together if commit.block.file == files[path]][:1]
            if not in_index:
                return iter([None])
        marks = gathered.marks_of(path) if path in gathered.blocks else None
        return candidates.choose(marks, iter(in_index))

    # Decide which rows of a shared part survive before listing any of its files.
    in_index = index.between(group.first, group.end) if work.shares_parts or together else ()
    shared = _by_path(commit for commit in in_index if commit.shares_parts or _path_of(commit) in together)
    chosen = {
        path: list(choose(path, shared.get(path, ())))
        for path in sorted((shared.keys() | together.keys()) & (files.keys() | excused))
        if len(list(itertools.islice(gathered.marks_of(path), 2))) < 2
    }
    moved = _without_others(output, views, itertools.chain.from_iterable(chosen.values()))
    old = itertools.groupby(index.between(group.first, group.end), _path_of)
    nothing: tuple[str | None, Iterator[Commit]] = (None, iter(()))
    of_path, of_index = next(old, nothing)
    for path in sorted({*files, *excused}):
        while of_path is not None and of_path < path:
            of_path, of_index = next(old, nothing)
        gaps = GapCheck(files[path], record_format, has_end=path != last) if path in files else None
        blocks = records = 0
        found = chosen[path] if path in chosen else choose(path, of_index if of_path == path else ())
        for commit in found:
            if commit is None:  # the disk or the store did not keep what was written
                skipped.add(InputFile.unreadable(path, _LOST))
                reasons[path] = max(reasons.get(path, ""), _LOST)
                gaps = None
                continue
            if gaps is not None:
                gaps.add(commit.block)
            parts = {name: moved.get((part.path, part.first_row), part) for name, part in commit.parts.items()}
            writer.add(dataclasses.replace(commit, parts=parts))
            blocks, records = blocks + 1, records + commit.counts.get(metrics.RECORDS, 0)
        problem = gaps.end() if gaps is not None and path not in excused else None
        if problem is not None:
            raise _gap(problem)
        reason = reasons.get(path)
        if path in files or reason is not None:
            known = files[path].to_json() if path in files else {"path": path}
            entries.append({**known, "left_out": reason, "blocks": blocks, "records": records})
    shards, text = writer.end()
    inputs: Sequence[Mapping[str, Any]] | Shard = entries
    if not group.is_only and entries:
        lines = (json.dumps(entry).encode("ascii") for entry in entries)
        inputs = write_shard(output, lines, [e["path"] for e in entries], suffix=layout.INPUTS_SUFFIX)
    counts = dict(sorted(writer.counts.items()))
    listed = writer.listed.tobytes()
    return GroupReport(group.number, shards, inputs, counts, writer.views, skipped, work.missing, listed, text)


def _path_of(commit: Commit) -> str:
    return commit.block.file.path


def _by_path(commits: Iterable[Commit]) -> dict[str, list[Commit]]:
    """The commits by the paths of their files."""
    found: dict[str, list[Commit]] = {}
    for commit in commits:
        found.setdefault(_path_of(commit), []).append(commit)
    return found


def _without_others(
    output: Output, views: Sequence[View], commits: Iterable[Commit | None]
) -> dict[tuple[str, int | None], Part]:
    """Copy what the commits have of files that other commits, which do not count any more, have rows of, too.

    Returns {(path, first row) of a part: the part that it is in the copy}. The commits are in the order of the rows.
    """
    of_file: dict[tuple[str, str], list[Part]] = {}
    for commit in commits:
        for name, part in commit.parts.items() if commit is not None else ():
            if part.first_row is not None:
                of_file.setdefault((name, part.path), []).append(part)
    moved = {}
    for (name, path), parts in of_file.items():
        rows = row_splits_of(np.array([part.rows for part in parts])).tolist()
        if rows[-1] == parts[0].file_rows:
            continue
        block = layout.block_of(path)
        if name == layout.REJECTS:
            rejects = list(read_rejects(storage.join(output.path, path)))
            kept = [reject for part in parts for reject in rejects[part.rows_of_file]]
            copy = write_rejects(output, block, [reject for reject in kept if reject is not None])
        else:
            view = next(view for view in views if view.name == name)
            table = pa.concat_tables(read_tables(storage.join(output.path, path), schema(view)))
            pieces = [table[part.rows_of_file] for part in parts]
            copy = write_part(output, view, block, pa.concat_tables(pieces).combine_chunks())
        for part, first in zip(parts, rows, strict=False):
            moved[path, part.first_row] = dataclasses.replace(
                copy, rows=part.rows, first_row=first, file_rows=copy.rows
            )
    return moved


def _gap(problem: str) -> AssertionError:
    return AssertionError(f"records are missing or duplicated: {problem}; run again, and please report it")


@dataclasses.dataclass
class _Candidates:
    """The commits of one input file: in the order of its lines, from `_commits` and from the index.

    `is_current`: the file was not read, and the commits of its present state in the index count. Otherwise those count
    that this run reported as done, and if the file `is_excused` (missing, or not read to its end) others of its present
    state; if none was reported, all. `is_begun`: it has commits in `_commits`. `together`: what commits of several
    files in `_commits` say of this one. `checked`: whether the parts that several files share are whole, once known.
    """

    output: Output
    path: str
    file: InputFile | None
    is_current: bool
    is_excused: bool
    is_begun: bool
    together: Sequence[Commit]
    checked: dict[str, bool]

    def choose(self, marks: Iterator[tuple[int, int]] | None, in_index: Iterator[Commit]) -> Iterator[Commit | None]:
        """The commit of each block that is in the output; None for one whose parts are missing or short."""
        keeps_all = marks is None
        reported = ((line, mark, None) for line, mark in marks or ())
        indexed = ((commit.block.first_line, None, commit) for commit in in_index)
        lines_begun = {*self._lines_begun(), *(commit.block.first_line for commit in self.together)}
        begun = ((line, None, None) for line in sorted(lines_begun)) if self.is_excused else ()
        wanted = self._of_lines(heapq.merge(reported, indexed, begun, key=_first))
        for batch in storage.in_batches(wanted):
            newer = self._newer(batch, keeps_all)
            # Each on its own: the parts of two commits of a block may have the same names.
            chosen = self._whole([newer.get(line) for line, _, _ in batch])
            others = [
                None if commit is not None else self._if_counts(old, hashes, keeps_all)
                for commit, (_, hashes, old) in zip(chosen, batch, strict=True)
            ]
            for (_, hashes, old), one, other in zip(batch, chosen, self._whole(others), strict=True):
                commit = one or other
                if commit is not None:
                    yield commit
                elif hashes or (self.is_current and old is not None and old.block.file == self.file):
                    yield None

    def _newer(self, lines: Sequence[tuple[int, set[int], Commit | None]], keeps_all: bool) -> dict[int, Commit | None]:
        """{first line: the commit in `_commits` that counts}."""
        if self.is_current:
            return {}
        newer: dict[int, Commit | None] = {
            line: counted
            for line, hashes, _ in lines
            for commit in self.together
            if commit.block.first_line == line and (counted := self._if_counts(commit, hashes, keeps_all))
        }
        names = {f"{self._name(line)}.json": (line, hashes) for line, hashes, _ in lines if line not in newer}
        for name, commit in committed(self.output.path, names):
            line, hashes = names[name]
            newer[line] = self._if_counts(commit, hashes, keeps_all)
        return newer

    def _whole(self, commits: Sequence[Commit | None]) -> list[Commit | None]:
        """The commits, None for those with parts that are missing or short."""
        unknown = [commit for commit in commits if commit is not None and not commit.part_paths <= self.checked.keys()]
        broken = broken_parts(self.output.path, unknown).keys() if unknown else ()
        for part in (part for commit in unknown for part in commit.parts.values() if part.first_row is not None):
            self.checked[part.path] = part.path not in broken
        return [
            c if c is not None and all(self.checked.get(path, path not in broken) for path in c.part_paths) else None
            for c in commits
        ]

    def _of_lines(
        self, found: Iterable[tuple[int, int | None, Commit | None]]
    ) -> Iterator[tuple[int, set[int], Commit | None]]:
        """(first line, hashes of the blocks reported, the commit in the index) of each line that may count."""
        for line, same in itertools.groupby(found, _first):
            hashes, commit = set[int](), None
            for _, hash_, indexed in same:
                hashes |= set() if hash_ is None else {hash_}
                commit = commit or indexed
            if hashes or self.is_current or self.is_excused:
                yield line, hashes, commit

    def _lines_begun(self) -> list[int]:
        """The first lines of the blocks with a commit in `_commits`."""
        if not self.is_begun:
            return []
        key = layout.file_name(self.path)
        names = storage.file_names(storage.join(self.output.path, layout.COMMITS), f"{key}-")
        ends = (name.removesuffix(".json").removeprefix(f"{key}-") for name in names)
        return sorted(int(end) for end in ends if end.isdigit())

    def _name(self, line: int) -> str:
        return layout.block_name(self.path, line)

    def _if_counts(self, commit: Commit | None, hashes: Container[int], keeps_all: bool) -> Commit | None:
        """The commit, if it is of this block as it is now, of the file as it is now."""
        if commit is None:
            return None
        if commit.block.file.path != self.path:
            raise AssertionError(f"two blocks were written as {commit.block.name}; run again with other file names")
        if not hashes:
            is_block = commit.block.file == self.file or (self.is_excused and keeps_all)
            return commit if is_block else None
        # Its bytes are the same, and the file may have grown.
        for is_last in (False, True) if commit.fingerprint == self.output.fingerprint else ():
            block = dataclasses.replace(commit.block, file=self.file or commit.block.file, is_last=is_last)
            if mark(block)[1] in hashes:
                return dataclasses.replace(commit, block=block)
        return None


def _first(item: tuple[int, Any, Any]) -> int:
    return item[0]


class _IndexWriter:
    """Writes commits to the index in shards, and counts what they hold. No more than one shard is in memory."""

    def __init__(self, output: Output, *, is_only: bool) -> None:
        self._output = output
        self._is_only = is_only
        self._lines: list[bytes] = []
        self._files: list[str] = []
        self._of_shard: dict[str, Counter[str]] = {}
        self._is_new = False
        self._before: dict[str, Part] = {}
        self._shards: list[Shard] = []
        self.views: dict[str, Counter[str]] = {}
        self.counts: Counter[str] = Counter()
        self.listed = array.array("Q")

    def add(self, commit: Commit) -> None:
        """List a commit; those of a group come in the order of its rows."""
        if len(self._lines) == SHARD_COMMITS:
            self._end_shard()
        values = dataclasses.replace(commit, attempt=None).to_json()
        self._lines.append(json.dumps(values, sort_keys=True).encode("ascii"))
        self._files.append(commit.block.file.path)
        self._is_new |= commit.attempt is not None
        self.counts.update(commit.counts)
        for name, part in commit.parts.items():
            if part.begins_file:
                self.listed.append(path_hash(part.path))
            count_part(self._of_shard, name, part)
            count_part(self.views, name, part)
            self._of_shard[name].update(pieces=not part.continues(self._before.get(name)))
            self._before[name] = part

    def end(self) -> tuple[list[Shard], bytes | None]:
        """(the shards, None); of a run with few blocks what `parts.jsonl` is to hold, which is not written yet."""
        if self._is_only and not self._shards:
            shard = Shard(layout.PARTS, "", "", len(self._lines), self._counted())
            return [shard], b"".join(line + b"\n" for line in self._lines)
        if self._lines:
            self._end_shard()
        return self._shards, None

    def _end_shard(self) -> None:
        facts = {"views": self._counted(), "is_new": self._is_new}
        self._shards.append(write_shard(self._output, self._lines, self._files, suffix=".jsonl", **facts))
        self._lines, self._files, self._of_shard, self._is_new, self._before = [], [], {}, False, {}

    def _counted(self) -> dict[str, Counter[str]]:
        """Rows, bytes and files of each view in the shard; pieces only if they are not the files."""
        for sizes in self._of_shard.values():
            if sizes["pieces"] == sizes["parts"]:
                del sizes["pieces"]
        return self._of_shard


class GapCheck:
    """Finds the first line of a file that is in no block or in two.

    `has_end`: whether it is read to its end. A missing last block goes undetected if the file does not record where it
    ends (compressed files and Parquet).
    """

    def __init__(self, file: InputFile, record_format: RecordFormat, *, has_end: bool = True) -> None:
        self._file = file
        self._has_end = has_end and not storage.is_compressed(file.path) and record_format.format != "parquet"
        self._line = self._end = 0
        self._problem: str | None = None

    def add(self, block: BlockId) -> None:
        """The next block in the order of its lines."""
        if self._problem is None and block.first_line > self._line:
            self._problem = f"lines {self._line} to {block.first_line - 1} are in no block"
        elif self._problem is None and block.first_line < self._line:
            self._problem = f"line {block.first_line} is in two blocks"
        self._line, self._end = block.first_line + block.num_lines, block.end_byte

    def end(self) -> str | None:
        """What is wrong, as a message; None if every line is in exactly one block."""
        if self._problem is None and self._has_end and self._end != self._file.size:
            self._problem = f"bytes {self._end:,} to {self._file.size:,} are in no block"
        return None if self._problem is None else f"{printable(self._file.path)}: {self._problem}"
