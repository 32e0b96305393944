"""Rows of a run for the report: drawn by a seed, read part by part and column by column, never all at once."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.output.commits import load_commits
from layerbeam.pipeline.output.manifest import view_schema
from layerbeam.pipeline.output.summary import last_start, summarize_start
from layerbeam.pipeline.report.geometry import Array
from layerbeam.transforms import storage
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.parts import as_matrix, read_pieces

# What is read for one view's sample: of a larger view some parts are drawn. Others than Parquet are read whole.
_SAMPLE_BYTES = {"parquet": 256 << 20, "tfrecord": 48 << 20, "jsonl": 48 << 20}
# Object stores answer slowly; a local disk gives two cores enough to do.
_FILES_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """An output folder, of a finished run or not: what `show` says of it, its blocks and its views."""

    path: str
    summary: Mapping[str, Any]
    head: Mapping[str, Any]
    views: Mapping[str, RowsOfView]

    def of_level(self, *levels: str) -> list[RowsOfView]:
        """The views that have rows, in the order of the levels."""
        return [view for level in levels for view in self.views.values() if view.level == level and view.num_rows]


def open_folder(output_path: str, seed: int) -> RunFolder:
    """What is committed in an output folder. UsageError where there is no run."""
    head = last_start(output_path)
    commits = sorted(load_commits(output_path), key=lambda commit: (commit.block.file.path, commit.block.first_line))
    summary = summarize_start(output_path, head, commits)
    views = {
        name: RowsOfView(output_path, name, entry, commits, head["identity"]["views"][name], seed)
        for name, entry in summary["views"].items()
    }
    return RunFolder(output_path, summary, head, views)


@dataclasses.dataclass(frozen=True)
class RowsOfView:
    """The committed rows of a view. `commits`: in the order file, line; `settings`: the view's own, resolved."""

    path: str
    name: str
    entry: Mapping[str, Any]
    commits: Sequence[Commit]
    settings: Mapping[str, Any]
    seed: int

    @property
    def level(self) -> str:
        return str(self.entry["level"])

    @property
    def vectors(self) -> list[str]:
        return list(self.entry["vectors"])

    @cached_property
    def schema(self) -> pa.Schema:
        return view_schema(self.entry)

    @cached_property
    def parts(self) -> list[Part]:
        """In the order file, line; those of `word_type` are no rows of the view."""
        return [c.parts[self.name] for c in self.commits if self.name in c.parts and self.level != "word_type"]

    def beside(self, part: Part, other: str) -> Part | None:
        """The part of another view's rows of the same texts."""
        return next((c.parts.get(other) for c in self.commits if c.parts.get(self.name) == part), None)

    @property
    def num_rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def has_all_words(self) -> bool:
        """Whether no row was left out for its word."""
        return self.settings.get("keep_words") is None

    @property
    def has_places(self) -> bool:
        """Whether rows say where they are from: extract_features.py's lines hold line, token and vectors alone."""
        return self.level != "token" or self.entry["format"] != "jsonl"

    def random_parts(self) -> list[Part]:
        """The parts in an order that the seed decides."""
        random = np.random.default_rng([self.seed, *self.name.encode()])
        return [self.parts[number] for number in random.permutation(len(self.parts))]

    def read(self, part: Part, columns: Sequence[str], rows: Array | None = None) -> pa.Table:
        """Columns of a part, of all rows or of these (sorted). ValueError or OSError where it is damaged."""
        path = storage.join(self.path, part.path)
        try:
            return pa.concat_tables(self._pieces(path, list(columns), rows)) if part.rows else self.empty(columns)
        except pa.ArrowException as error:
            raise ValueError(
                f"{path}: cannot be read ({str(error).splitlines()[0]}); `layerbeam verify {self.path} --checksums` "
                "names the damaged files"
            ) from error

    def _pieces(self, path: str, columns: list[str], rows: Array | None) -> list[pa.Table]:
        empty = self.empty(columns)
        first, pieces = 0, [empty]
        for count, read in read_pieces(path, self.schema, columns):
            wanted = None if rows is None else rows[(rows >= first) & (rows < first + count)] - first
            if wanted is None or len(wanted):
                table = read().select(columns)
                table = table if wanted is None else table.take(pa.array(wanted))
                # What the file says of nulls and metadata differs from format to format.
                pieces.append(pa.Table.from_arrays(table.columns, schema=empty.schema))
            first += count
        return pieces

    def empty(self, columns: Sequence[str]) -> pa.Table:
        """No rows of these columns."""
        return pa.schema([self.schema.field(name) for name in columns]).empty_table()


@dataclasses.dataclass(frozen=True)
class Sample:
    """Rows of a view: of each of some parts, the numbers of the rows drawn, sorted."""

    view: RowsOfView
    chosen: Sequence[tuple[Part, Array]]

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.chosen)

    def table(self, columns: Sequence[str]) -> pa.Table:
        """[n] of each of these columns; no vectors."""
        return pa.concat_tables([self.view.empty(columns), *self._read(columns)])

    def vectors(self, column: str) -> Array:
        """[n, W] of a column of vectors, in float32."""
        out = np.empty((len(self), int(self.view.entry["width"])), np.float32)
        row = 0
        for table in self._read([column]):
            out[row : row + table.num_rows] = column_matrix(table[column])
            row += table.num_rows
        return out

    def _read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """What was drawn of each part, in order."""
        with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
            yield from threads.map(lambda chosen: self.view.read(chosen[0], columns, chosen[1]), self.chosen)

    @property
    def said(self) -> str:
        """`2,000 of 31,000 rows, from 3 of 40 parts`."""
        total, parts = self.view.num_rows, len(self.view.parts)
        if len(self) == total:
            return f"all {total:,} rows"
        some = f", from {len(self.chosen):,} of {parts:,} parts" if len(self.chosen) < parts else ""
        return f"{len(self):,} of {total:,} rows{some}"


def draw(view: RowsOfView, n: int) -> Sample:
    """At most `n` rows, drawn evenly from the view, or, where it is large, from parts that are drawn first."""
    parts: list[Part] = []
    left = _SAMPLE_BYTES[view.entry["format"]]
    for part in view.random_parts():
        if parts and part.bytes > left:
            break
        parts.append(part)
        left -= part.bytes
    parts.sort(key=view.parts.index)
    ends = np.cumsum([part.rows for part in parts])
    total = int(ends[-1]) if parts else 0
    random = np.random.default_rng([view.seed, n, *view.name.encode()])
    drawn = np.sort(random.choice(total, min(n, total), replace=False)) if total else np.zeros(0, np.int64)
    chosen = []
    for part, end in zip(parts, ends, strict=True):
        rows = drawn[(drawn >= end - part.rows) & (drawn < end)] - (end - part.rows)
        if len(rows):
            chosen.append((part, rows))
    return Sample(view, chosen)


def column_matrix(column: pa.ChunkedArray) -> Array:
    """[n, W] of fixed-size lists, in float32."""
    chunks = [as_matrix(chunk).astype(np.float32, copy=False) for chunk in column.chunks]
    return np.concatenate([np.zeros((0, column.type.list_size), np.float32), *chunks])
