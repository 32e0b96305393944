"""Input files in groups, the units of `find` and `finish`, and what is gathered of each group in between.

A group holds adjacent files in the order of their paths, so that the groups' commits, one after the other, are in the
order of the rows. Between `find` and `finish` a block is 16 bytes: its commit is on the disk.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from layerbeam.transforms.commits import BlockId, Commit, InputFile

# Slices in a group: its blocks are about as many, or a few times that if other limits end a block first.
_GROUP_SLICES = 10_000

_MARK = np.dtype([("line", np.uint64), ("hash", np.uint64)])
_MARKS_AT_ONCE = 1000


@dataclasses.dataclass(frozen=True)
class Group:
    """Adjacent input files, and all other paths, such as those of missing files, from `first` to before `end`.

    `end` is None for the last group. `begun`: paths of files that have commits in `_commits`; `begun_together`: the
    names of the blocks of several files, all of this group, that have one. `records`, `limited`: see `first_records`;
    None without a limit. `is_only`: there is no other group.
    """

    number: int
    first: str
    end: str | None
    files: Sequence[InputFile]
    begun: Collection[str]
    begun_together: Collection[str] = ()
    records: Mapping[str, int] | None = None
    limited: Mapping[str, int] = dataclasses.field(default_factory=dict)
    is_only: bool = True


def make_groups(
    files: Sequence[InputFile],
    slice_bytes: int,
    *,
    begun: Collection[str] = (),
    begun_together: Mapping[str, tuple[str, str]] | None = None,
    records: Mapping[str, int] | None = None,
    limited: Mapping[str, int] | None = None,
) -> list[Group]:
    """At least one group. The files are sorted by path; which are together depends on their paths and sizes alone.

    `begun_together`: {name of a block of several files: (first path, last path)}. One of files that are in several
    groups now is done again.
    """
    starts, slices = [0], 0
    for number, file in enumerate(files):
        of_file = 1 + (file.size // slice_bytes)
        if slices and slices + of_file > _GROUP_SLICES:
            starts.append(number)
            slices = 0
        slices += of_file
    firsts = ["", *(files[start].path for start in starts[1:])]
    boundaries = Boundaries(tuple(firsts))
    of_group: list[list[str]] = [[] for _ in starts]
    for path in begun:
        of_group[boundaries.number_of(path)].append(path)
    together: list[list[str]] = [[] for _ in starts]
    for name, paths in sorted((begun_together or {}).items()):
        numbers = {boundaries.number_of(path) for path in paths}
        if len(numbers) == 1:
            together[numbers.pop()].append(name)
    groups = []
    for number, (first, end, start, stop) in enumerate(
        zip(firsts, [*firsts[1:], None], starts, [*starts[1:], len(files)], strict=True)
    ):
        own = files[start:stop]
        counts = None if records is None else {file.path: records[file.path] for file in own if file.path in records}
        more = {file.path: limited[file.path] for file in own if file.path in limited} if limited else {}
        groups.append(
            Group(
                number,
                first,
                end,
                own,
                frozenset(of_group[number]),
                tuple(together[number]),
                counts,
                more,
                is_only=len(starts) == 1,
            )
        )
    return groups


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """The first path of each group."""

    firsts: tuple[str, ...]

    def number_of(self, path: str) -> int:
        """The group of a path."""
        return bisect.bisect_right(self.firsts, path) - 1


@dataclasses.dataclass(frozen=True)
class GroupWork:
    """What `find` knows of a group. `current`: paths of the files that need no reading; `begun`: those of them whose
    commit of several files is still in `_commits`, not in the index. `shares_parts`: whether the index has parts with
    rows of several files.

    `missing`: of files of an earlier run that no glob matches any more, and whose rows stay. `skipped`: files that
    cannot be read, or not all.
    """

    group: Group
    current: frozenset[str]
    missing: tuple[str, ...]
    skipped: tuple[InputFile, ...]
    begun: frozenset[str] = frozenset()
    shares_parts: bool = False


@dataclasses.dataclass
class Gathered:
    """All that is known of a group before it is finished. `blocks`: per file, what `mark` gives of each block done.

    `together`: the names of the blocks of several files that are done.
    """

    work: GroupWork | None = None
    skipped: set[InputFile] = dataclasses.field(default_factory=set)
    blocks: dict[str, bytearray] = dataclasses.field(default_factory=dict)
    together: set[str] = dataclasses.field(default_factory=set)

    def add(self, report: InputFile | Commit) -> None:
        """Take in what a stage reported."""
        if isinstance(report, InputFile):
            self.skipped.add(report)
            return
        if report.members:
            self.together.add(report.block.name)
        for member in report.members or (report,):
            marks = self.blocks.setdefault(member.block.file.path, bytearray())
            marks += np.array([mark(member.block)], _MARK).tobytes()

    def update(self, other: Gathered) -> None:
        """Take in what was gathered elsewhere."""
        self.work = self.work or other.work
        self.skipped |= other.skipped
        self.together |= other.together
        for path, marks in other.blocks.items():
            self.blocks.setdefault(path, bytearray()).extend(marks)

    def marks_of(self, path: str) -> Iterator[tuple[int, int]]:
        """The marks of a file's blocks in the order of their lines, each once."""
        marks = np.frombuffer(bytes(self.blocks.get(path, b"")), _MARK)
        marks = np.unique(marks) if len(marks) > 1 else marks
        for start in range(0, len(marks), _MARKS_AT_ONCE):
            yield from marks[start : start + _MARKS_AT_ONCE].tolist()


def mark(block: BlockId) -> tuple[int, int]:
    """The first line of a block, and a hash of what it holds and of whether it is the last."""
    content = hashlib.blake2b(repr((*block.content, block.is_last)).encode(), digest_size=8).digest()
    return block.first_line, int.from_bytes(content, "big")
