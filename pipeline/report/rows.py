"""Rows of a run for the report: drawn by a seed, read part by part and column by column, never all at once."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.dataset.view import View
from layerbeam.pipeline.output.commits import load_commits
from layerbeam.pipeline.output.summary import RunSummary, last_attempt, summarize_attempt
from layerbeam.pipeline.report.stats import Array
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.parts import as_matrix

# Bytes read for one view's sample: parts are drawn from a larger view. Formats other than Parquet are read whole.
_SAMPLE_BYTES = {"parquet": 256 << 20, "tfrecord": 48 << 20, "jsonl": 48 << 20}
# Object stores answer slowly; a local disk keeps two cores busy.
_FILES_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """An output folder of a finished or unfinished run: its summary, the record of its last attempt and its views."""

    path: str
    summary: RunSummary
    head: Mapping[str, Any]
    views: Mapping[str, RowsOfView]

    def of_level(self, *levels: str) -> list[RowsOfView]:
        """The views that have rows, in the order of the levels."""
        return [view for level in levels for view in self.views.values() if view.level == level and view.num_rows]


def open_folder(output_path: str, seed: int) -> RunFolder:
    """The committed rows of an output folder. UsageError if it holds no run."""
    head = last_attempt(output_path)
    commits = sorted(load_commits(output_path), key=lambda commit: (commit.block.file.path, commit.block.first_line))
    summary = summarize_attempt(output_path, head, commits)
    views = {}
    for name, entry in summary.views.items():
        # The parts of a word_type view hold sums of blocks, not rows of the view.
        parts = () if entry["level"] == "word_type" else tuple(summary.parts[name])
        views[name] = RowsOfView(output_path, name, entry, parts, commits, head["identity"]["views"][name], seed)
    return RunFolder(output_path, summary, head, views)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RowsOfView(View):
    """The committed rows of a view, in the order file, line; `settings` are the view's own, resolved."""

    commits: Sequence[Commit]
    settings: Mapping[str, Any]
    seed: int

    def sibling_part(self, part: Part, other: str) -> Part | None:
        """The part of another view that holds the same texts."""
        return next((c.parts.get(other) for c in self.commits if c.parts.get(self.name) == part), None)

    @property
    def has_all_words(self) -> bool:
        """Whether the view keeps every word."""
        return self.settings.get("keep_words") is None

    @property
    def has_places(self) -> bool:
        """Whether rows have offsets: the lines of extract_features.py hold only line, token and vectors."""
        return self.level != "token" or self.format != "jsonl"

    def random_parts(self) -> list[Part]:
        """The parts in an order that the seed decides."""
        random = np.random.default_rng([self.seed, *self.name.encode()])
        return [self.parts[number] for number in random.permutation(len(self.parts))]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Rows of a view: some parts, and the ascending numbers of the rows drawn from each."""

    view: RowsOfView
    chosen: Sequence[tuple[Part, Array]]

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.chosen)

    def table(self, columns: Sequence[str]) -> pa.Table:
        """[n] of each of these columns; no vectors."""
        return pa.concat_tables([self.view.empty(columns), *self._read(columns)])

    def vectors(self, column: str) -> Array:
        """[n, W] of a vector column, in float32."""
        out = np.empty((len(self), self.view.width), np.float32)
        row = 0
        for table in self._read([column]):
            out[row : row + table.num_rows] = column_matrix(table[column])
            row += table.num_rows
        return out

    def _read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows drawn from each part, in order."""
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
    """At most `n` rows, drawn evenly from the view, or from parts drawn first if the view is large."""
    parts: list[Part] = []
    left = _SAMPLE_BYTES[view.format]
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
