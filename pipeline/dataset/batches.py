"""The rows of a view in batches to train on: mixed, shared among readers, and resumable.

The order depends on the number of rows in each row group only, so a position is found again without reading rows.

Shapes: n rows of a batch, W values in a vector.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from layerbeam.pipeline.dataset.view import FILES_AT_ONCE, View
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import Part
from layerbeam.transforms.hardware import cores
from layerbeam.transforms.views.number_types import as_arrays

Rows = npt.NDArray[np.int64]
Batch = dict[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Order:
    """The settings that decide which rows are in which batch."""

    batch_size: int
    buffer_rows: int
    shuffle: bool
    seed: int
    epoch: int
    rank: int
    world_size: int
    drop_last: bool

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "buffer_rows": 1, "seed": 0, "epoch": 0, "rank": 0, "world_size": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: {value} or more")
        if self.rank >= self.world_size:
            raise ValueError(f"rank is {self.rank}; allowed: 0 to {self.world_size - 1}, less than world_size")

    def batches(self, rows: int) -> int:
        """The number of this rank's batches, of a view with so many rows."""
        own = rows * (self.rank + 1) // self.world_size - rows * self.rank // self.world_size
        return own // self.batch_size if self.drop_last else -(-own // self.batch_size)

    def rounds(self, sizes: Sequence[int]) -> Iterator[_Round]:
        """What the buffer holds, each time that it has been filled. `sizes`: the rows of each unit, in order."""
        # All ranks have the units in the same order, and each mixes its own rows.
        units, mixing = (np.random.default_rng([self.seed, self.epoch, *own]) for own in ([0], [1, self.rank]))
        ends = np.cumsum(sizes, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        first, last = (total * rank // self.world_size for rank in (self.rank, self.rank + 1))
        size, left = max(self.buffer_rows, 2 * self.batch_size), last - first
        kept: Rows = np.zeros(0, np.int64)
        new: list[Rows] = []
        position, held = 0, 0
        for unit in units.permutation(len(sizes)) if self.shuffle else range(len(sizes)):
            begin, end = max(first - position, 0), min(last - position, sizes[unit])
            position += sizes[unit]
            if begin >= end:
                continue
            new.append(np.arange(begin, end) + (ends[unit] - sizes[unit]))
            held += end - begin
            left -= end - begin
            if held < size and left:
                continue
            rows = np.concatenate([kept, *new])
            # Half of the buffer is mixed again with the next units.
            batches = -(-held // self.batch_size) if not left else (held - size // 2) // self.batch_size
            order = mixing.permutation(held) if self.shuffle else np.arange(held)
            yield _Round(rows, len(kept), order, batches)
            kept, new = rows[order[batches * self.batch_size :]], []
            held = len(kept)


@dataclasses.dataclass(frozen=True, eq=False)
class _Round:
    """The buffer while batches are drawn from it: the numbers of its rows in the view, those of before first.

    `order`: the positions in `rows`, in the order of the batches.
    """

    rows: Rows
    num_kept: int
    order: Rows
    batches: int


class Batches(Iterator[Batch]):
    """An epoch of one rank, once: see `View.batches`. `len` is the number of all its batches.

    `rows_held`: the rows in the buffer; fewer than max(buffer_rows, 2 * batch_size) and one row group together. While
    it is filled, a second buffer and a row group per thread are in memory.
    """

    def __init__(self, view: View, order: Order, *, columns: Sequence[str], threads: int | None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; allowed: 1 or more")
        self._view, self._order, self._names = view, order, list(dict.fromkeys(columns))
        self._threads = threads or (cores() if storage.is_local(view.path) else max(cores(), FILES_AT_ONCE))
        self._given = 0
        self._batches = self._generate()
        self.rows_held = 0

    def __len__(self) -> int:
        return self._order.batches(self._view.num_rows)

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self._given += 1
        return batch

    def state(self) -> dict[str, Any]:
        """The position, as JSON holds it: `resume` takes it."""
        return {"given": self._given, "parts": self._parts, "columns": self._names, **dataclasses.asdict(self._order)}

    def resume(self, state: Mapping[str, Any]) -> Batches:
        """Go to a position; the next batch is the one that would have come then. ValueError if settings differ."""
        for name, own in self.state().items():
            if name != "given" and state.get(name) != own:
                what = "the rows of the view have changed" if name == "parts" else f"{name} was {state.get(name)}"
                raise ValueError(f"state: {what}, and is not {own}; resume with the settings that it was saved with")
        given = state.get("given")
        if not isinstance(given, int) or not 0 <= given <= len(self):
            raise ValueError(f"state: given is {given}; allowed: 0 to {len(self)}")
        self._given, self._batches = given, self._generate()
        return self

    @cached_property
    def _parts(self) -> str:
        """A hash of the names of all parts, each of which has the hash of its bytes."""
        return hashlib.sha256("\n".join(part.path for part in self._view.parts).encode()).hexdigest()[:16]

    @cached_property
    def _units(self) -> list[tuple[Part, int, int]]:
        """(part, first row in it, rows) of each row group, or of each part of another format, in order."""
        with concurrent.futures.ThreadPoolExecutor(max(self._threads, FILES_AT_ONCE)) as pool:
            sizes = [s for parts in storage.in_batches(self._view.parts) for s in pool.map(self._row_groups, parts)]
        return [
            (part, sum(groups[:number]), rows)
            for part, groups in zip(self._view.parts, sizes, strict=True)
            for number, rows in enumerate(groups)
            if rows
        ]

    def _row_groups(self, part: Part) -> list[int]:
        if self._view.format != "parquet":
            return [part.rows]
        with self._view.open(part) as file:
            footer = pq.read_metadata(file)
            sizes = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
            if sum(sizes) != part.rows:
                raise ValueError(f"has {sum(sizes):,} rows, not {part.rows:,} as listed")
        return sizes

    def _generate(self) -> Iterator[Batch]:
        """The batches that come after those given."""
        skip, end, size = self._given, len(self), self._order.batch_size
        held: Batch | None = None
        left = end
        for buffer in self._order.rounds([rows for _, _, rows in self._units]):
            count = min(buffer.batches, left)
            left -= count
            if skip >= count:
                skip -= count
                continue
            held = self._fill(buffer, held)
            for first in range(skip * size, count * size, size):
                yield {name: values[buffer.order[first : first + size]] for name, values in held.items()}
            skip = 0
            rest = buffer.order[count * size :]
            held = {name: values[rest] for name, values in held.items()}
        self.rows_held = 0

    def _fill(self, buffer: _Round, held: Batch | None) -> Batch:
        """The values of all rows of the buffer. `held`: of the first ones; None: they are read again."""
        known = 0 if held is None else buffer.num_kept
        dtypes = {name: self._dtype(name) for name in self._names}
        widths = {name: [self._view.width] if name in self._view.vectors else [] for name in self._names}
        filled = {name: np.empty((len(buffer.rows), *widths[name]), dtypes[name]) for name in self._names}
        for name, values in (held or {}).items():
            filled[name][:known] = values
        rows = buffer.rows[known:]
        by_number = np.argsort(rows)
        ends = np.cumsum([count for _, _, count in self._units])
        unit_of = np.searchsorted(ends, rows[by_number], side="right")
        splits = np.flatnonzero(np.diff(unit_of, prepend=-1, append=len(self._units)))

        def read(begin: int, end: int) -> None:
            unit = int(unit_of[begin])
            part, first, count = self._units[unit]
            places = by_number[begin:end]
            self._read(part, rows[places] - (ends[unit] - count) + first, filled, places + known)

        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(read, splits[:-1].tolist(), splits[1:].tolist()))
        self.rows_held = len(buffer.rows)
        return filled

    def _dtype(self, name: str) -> np.dtype[Any]:
        if name in self._view.vectors and not self._view.is_stored:
            return np.dtype(np.float32)
        return as_arrays(self._view.empty([name])[name]).dtype

    def _read(self, part: Part, rows: Rows, into: Batch, places: Rows) -> None:
        """Put rows of a part, by their numbers in it, into places of arrays."""
        columnar = self._view.file_format.is_columnar
        table = self._view.read(part, self._names, rows if columnar else None)
        if not columnar:
            self._view.check_rows(part, table.num_rows)
        for name, values in into.items():
            column = table[name]
            if column.null_count and values.dtype.kind in "iub":
                raise ValueError(
                    f"column {name} has null in {column.null_count:,} rows of {part.path}, which an array of "
                    f"{values.dtype} cannot hold; name the columns without it"
                )
            values[places] = as_arrays(column) if columnar else as_arrays(column)[rows]
