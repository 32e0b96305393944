"""What the sections of the report receive and return: a run, finished or not, and samples of the rows of its views.

Rows are drawn by a seed and read part by part and column by column, never all at once.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.dataset.reader import Run
from layerbeam.pipeline.dataset.view import FILES_AT_ONCE, View, draw_evenly
from layerbeam.pipeline.report.stats import Array, LayerStatistics, describe_layer
from layerbeam.transforms.flow.commits import Part
from layerbeam.transforms.views.number_types import as_matrix
from layerbeam.transforms.views.view import is_aggregated

# At most this many parts are sampled, and of Parquet, where each costs up to a row group, at most this many bytes.
_SAMPLED_PARTS = 1000
# More parts are not looked at one by one.
_LISTED_PARTS = 10_000
_SAMPLED_BYTES = 2 << 30
_ROW_GROUP_BYTES = 32 << 20
# The columns that say where a row's text is, as JSON gives them.
PLACE = ("file", "line", "sentence", "id")


@dataclasses.dataclass(frozen=True)
class Section:
    """A section's data. `figures`: what `--json` prints; `shown`: what else the template needs.

    `missing_hint`: what to add to the run or the command, if there is nothing to show: the page leaves the section out.
    `problems`: what was asked for and is not there.
    """

    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shown: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    missing_hint: str | None = None
    problems: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SampledView(View):
    """The committed rows of a view, in the order file, line, and a sample of them, the same in every section.

    `has_all_words`: whether it keeps every word.
    """

    has_all_words: bool
    sample_rows: int
    seed: int

    def existing(self, *columns: str) -> list[str]:
        """Those of the columns that the view has."""
        return [name for name in columns if name in self.schema.names]

    def random_parts(self) -> Iterator[Part]:
        """The parts in an order that the seed decides."""
        random = np.random.default_rng([self.seed, *self.name.encode()])
        for number in random.permutation(len(self.parts)).tolist():
            yield self.parts[number]

    @cached_property
    def sample(self) -> list[tuple[Part, Array]]:
        """Parts and the ascending numbers of the rows drawn from each: at most `sample_rows`, drawn evenly.

        They come from all parts, or from evenly spaced ones if there are many. If these are more than may be read,
        they come from a run of adjacent rows in each part.
        """
        parts: Sequence[Part] = self.parts
        if len(parts) > _LISTED_PARTS:
            parts = [parts[i] for i in np.linspace(0, len(parts) - 1, _SAMPLED_PARTS).astype(int).tolist()]
        format_ = self.file_format
        cost = float(np.mean([min(part.bytes, _ROW_GROUP_BYTES) for part in parts])) if format_.is_columnar else 0.0
        most = min(_SAMPLED_PARTS, int(_SAMPLED_BYTES / max(cost, 1.0)))
        if len(parts) > most:
            parts = [parts[i] for i in np.linspace(0, len(parts) - 1, most).astype(int).tolist()]
        share = min(1.0, format_.sample_bytes / sum(part.bytes for part in parts))
        sizes = [max(int(part.rows * share), 1) for part in parts]
        random = np.random.default_rng([self.seed, self.sample_rows, *self.name.encode()])
        drawn = draw_evenly(sizes, self.sample_rows, random)
        # Other formats are read from the start of a part.
        last = [part.rows - size if format_.is_columnar else 0 for part, size in zip(parts, sizes, strict=True)]
        firsts = random.integers(0, last, endpoint=True)
        return [(part, first + rows) for part, first, rows in zip(parts, firsts, drawn, strict=True) if len(rows)]

    @property
    def sample_size(self) -> int:
        """Rows in the sample."""
        return sum(len(rows) for _, rows in self.sample)

    @property
    def sample_text(self) -> str:
        """`2,000 of 31,000 rows, from 64 of 400 parts, evenly spaced`."""
        if self.sample_size == self.num_rows:
            return f"all {self.num_rows:,} rows"
        drawn, parts = len(self.sample), len(self.parts)
        some = f"{drawn:,} of {parts:,} parts, evenly spaced"
        if drawn == parts:
            some = "the only part" if parts == 1 else f"all {parts:,} parts"
        return f"{self.sample_size:,} of {self.num_rows:,} rows, from {some}"

    def sample_table(self, columns: Sequence[str]) -> pa.Table:
        """[n] of each of these columns."""
        with concurrent.futures.ThreadPoolExecutor(FILES_AT_ONCE) as threads:
            tables = threads.map(lambda chosen: self.read(chosen[0], columns, chosen[1]), self.sample)
            return pa.concat_tables([self.empty(columns), *tables])

    def sample_vectors(self, column: str) -> Array:
        """[n, W] of a vector column, in float32."""
        return to_matrix(self.sample_table([column])[column])

    @cached_property
    def layers(self) -> Mapping[str, LayerStatistics]:
        """Statistics of the sample, by column."""
        return {column: describe_layer(self.sample_vectors(column)) for column in self.vectors}


def to_matrix(column: pa.ChunkedArray) -> Array:
    """[n, W] of fixed-size lists, in float32."""
    return as_matrix(column.combine_chunks()).astype(np.float32, copy=False)


@dataclasses.dataclass(frozen=True)
class ReportContext:
    """A run, finished or not, its views with rows, and the options of `layerbeam report`."""

    run: Run
    views: Sequence[SampledView]
    words: Sequence[str]
    texts: Sequence[str]
    color_by: str | None
    sample_rows: int
    seed: int
    trust: bool

    def of_level(self, *levels: str, with_lists: bool = False) -> list[SampledView]:
        """The views that have rows, in the order of the levels. `with_lists`: also those with lists of vectors."""
        views = [view for view in self.views if with_lists or not view.has_vector_lists]
        return [view for level in levels for view in views if view.level == level]

    def hint(self, kind: str, add: str) -> str:
        """Why there is no view of this kind to show, and what to add."""
        lists = ", ".join(view.name for view in self.of_level("text", with_lists=True) if view.has_vector_lists)
        rows = f"There are only lists of vectors (view {lists})" if lists else f"No {kind} has rows"
        return f"{rows}; add one under `views`: {add}."


def sample_views(run: Run, sample_rows: int, seed: int) -> list[SampledView]:
    """The views with rows, but not those over the whole corpus."""
    settings = run.manifest["identity"]["views"]
    return [
        SampledView(
            *(view.path, name, view.entry, view.parts, settings[name]["keep_words"] is None, sample_rows, seed),
            in_folders=view.in_folders,
        )
        for name in run
        if (view := run[name]).num_rows and not is_aggregated(view.level)
    ]
