"""`parts.jsonl` read back: the commits of all blocks in the order of the rows, one line for each.

The order is that of the blocks' names, which is that of the parts' names in every folder of a view.
"""

from __future__ import annotations

import array
import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar, overload

from layerbeam.pipeline.errors import OutputError
from layerbeam.pipeline.output.commits import index_lines
from layerbeam.pipeline.output.manifest import InputEntry
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import Commit, Part

Item = TypeVar("Item")

# Lines that are read at once, and of an index that is read when it is opened.
_PAGE = 512


class Lazy(Sequence[Item]):
    """Items that are read when they are used."""

    @overload
    def __getitem__(self, number: int) -> Item: ...
    @overload
    def __getitem__(self, number: slice) -> list[Item]: ...
    def __getitem__(self, number: int | slice) -> Item | list[Item]:
        places = range(len(self))[number]
        return self._read(places) if isinstance(places, int) else [self._read(place) for place in places]

    def _read(self, place: int) -> Item:
        raise NotImplementedError


class Lines(Lazy[bytes]):
    """The lines of `parts.jsonl`, of which 8 bytes each are in memory. OSError if it cannot be read."""

    def __init__(self, output_path: str) -> None:
        self._output_path = output_path
        self._ends = array.array("Q", itertools.accumulate(map(len, index_lines(output_path))))
        self._page: tuple[int, list[bytes]] = (-1, [])

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[bytes]:
        return index_lines(self._output_path)

    def _read(self, place: int) -> bytes:
        page, in_page = divmod(place, _PAGE)
        if self._page[0] != page:
            first, last = page * _PAGE, min((page + 1) * _PAGE, len(self)) - 1
            start, end = (self._ends[first - 1] if first else 0), self._ends[last]
            with storage.open_binary(storage.join(self._output_path, layout.PARTS), end) as file:
                file.seek(start)
                self._page = (page, file.read(end - start).splitlines())
        return self._page[1][in_page]


class Index:
    """The commits of a run in the order of the rows. OutputError, when it is used, if a line is damaged.

    `lines`: of all blocks, sorted by their names.
    """

    def __init__(self, output_path: str, lines: Sequence[bytes]) -> None:
        self._path = storage.join(output_path, layout.PARTS)
        self._lines = lines
        self._of_view: dict[str, array.array[int]] | None = None

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Commit]:
        return map(self._parse, self._lines)

    def __getitem__(self, number: int) -> Commit:
        return self._parse(self._lines[number])

    def _parse(self, line: bytes) -> Commit:
        try:
            return Commit.from_json(storage.parse_json(line))
        except ValueError as error:
            raise OutputError(
                f"{self._path}: cannot be read ({error}); run the configuration again to rewrite it"
            ) from error

    def files(self) -> Iterator[Part]:
        """The files of all views and of the rejects."""
        return (part for commit in self for part in commit.parts.values())

    def parts(self, view: str) -> Parts:
        """The parts of a view."""
        if self._of_view is None:
            self._of_view = {}
            for number, commit in enumerate(self):
                for name in commit.parts:
                    self._of_view.setdefault(name, array.array("L")).append(number)
        return Parts(self, view, self._of_view.get(view, ()))

    def block_of(self, part: Part) -> Commit | None:
        """The block that a part belongs to."""
        block = layout.block_of(part.path)
        number = bisect.bisect_left(self._lines, block, key=lambda line: self._parse(line).name)
        commit = self[number] if number < len(self) else None
        return commit if commit is not None and commit.name == block else None

    def inputs(self, left_out: Mapping[str, str]) -> Iterator[InputEntry]:
        """Each input file, by its path. `left_out`: why rows of a file may be missing or old."""
        entries: dict[str, InputEntry] = {
            path: InputEntry(path=path, left_out=reason, blocks=0, records=0) for path, reason in left_out.items()
        }
        for own in (own for commit in self for own in commit.files):
            path = own.file.path
            entry = entries.setdefault(path, InputEntry(path=path, left_out=None, blocks=0, records=0))
            entry.update(own.file.to_json())  # type: ignore[typeddict-item] # its fields
            entry["blocks"] += 1
            entry["records"] += own.counts.get(metrics.RECORDS, 0)
        yield from (entries[path] for path in sorted(entries))


class Parts(Lazy[Part]):
    """The parts of a view in the order of its rows."""

    def __init__(self, index: Index, view: str, blocks: Sequence[int]) -> None:
        self._index, self._view, self._blocks = index, view, blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def _read(self, place: int) -> Part:
        return self._index[self._blocks[place]].parts[self._view]


def read_index(output_path: str) -> Index:
    """The index of a run that has ended. OutputError if it is small and damaged; else when it is used."""
    try:
        index = Index(output_path, Lines(output_path))
    except OSError as error:
        path = storage.join(output_path, layout.PARTS)
        reason = storage.reason_of(error)
        raise OutputError(f"{path}: cannot be read ({reason}); run the configuration again to rewrite it") from error
    if len(index) <= _PAGE:
        index.parts("")
    return index
