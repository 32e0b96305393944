"""What changed in the rows of a view since an earlier run, as Arrow batches, to keep an index of vectors up to date."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.dataset.index import Index
from layerbeam.pipeline.dataset.view import View
from layerbeam.pipeline.errors import OutputError
from layerbeam.pipeline.output.changes import Changes, Place
from layerbeam.transforms.flow.commits import printable


class ViewChanges:
    """The rows of a view that came, went or moved between the ends of two runs.

    A key is a file and a line of it, as the columns `file` and `line` have them: it stands for all rows of the record
    that begins there, which may be none. Of an edited file all rows of a block come and go, for one line of it. First
    delete, then insert: the key of a row that came may be that of one that went or moved.

    `since`, `until`: the positions of the ends.
    """

    def __init__(self, view: View, index: Index, changes: Changes) -> None:
        self.since, self.until = changes.since, changes.until
        self._view, self._index, self._changes = view, index, changes

    def came(self, columns: Sequence[str] | None = None, *, with_moved: bool = False) -> Iterator[pa.RecordBatch]:
        """The new rows, of these columns or of all. `with_moved`: and those that are at other lines now.

        OutputError, at the end, if another run has replaced rows meanwhile; else as `View.iter_batches`.
        """
        return self._came(self._view.checked_columns(columns), ("came", "moved") if with_moved else ("came",))

    def _came(self, names: list[str], kinds: Collection[str]) -> Iterator[pa.RecordBatch]:
        view = self._view
        left = sum(change.kind in kinds for change in self._changes.of(view.name))
        for commit in self._index if left else ():
            part = commit.parts.get(view.name)
            if part is None:
                continue
            wanted = (own for own in commit.files if self._changes.kind_of(own, view.name) in kinds)
            files = [printable(own.file.path) for own in wanted]
            left -= len(files)
            if len(files) == len(commit.files):
                yield from dataclasses.replace(view, parts=[part]).iter_batches(names)
            elif files:  # of a pack
                table = view.read(part, [*names, "file"])
                yield from table.filter(pc.is_in(table["file"], pa.array(files))).select(names).to_batches()
        if left:
            raise OutputError(f"{view.path}: rows that came after run {self.since} are gone: open the run again")

    def went(self, *, with_moved: bool = False) -> Iterator[pa.RecordBatch]:
        """The keys that are gone: `file` and `line`. `with_moved`: and those before the moves.

        Each batch has consecutive lines of one file.
        """
        for change in self._changes.of(self._view.name):
            if change.old is not None and (with_moved or change.new is None):
                yield pa.RecordBatch.from_pydict(_keys(change.old, change.num_lines))

    def moved(self) -> Iterator[pa.RecordBatch]:
        """The keys before and after the moves: `old_file`, `old_line`, `file`, `line`; batches as those of `went`."""
        for change in self._changes.of(self._view.name):
            if change.old is not None and change.new is not None:
                old, new = (_keys(place, change.num_lines) for place in (change.old, change.new))
                yield pa.RecordBatch.from_pydict({f"old_{name}": values for name, values in old.items()} | new)


def _keys(place: Place, num_lines: int) -> dict[str, pa.Array]:
    """The columns `file` and `line` of these lines."""
    lines = pa.array(np.arange(place.line, place.line + num_lines))
    return {"file": pa.repeat(pa.scalar(place.file, pa.string()), num_lines), "line": lines}
