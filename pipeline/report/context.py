"""What every section of the report receives and returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.report.rows import RowsOfView, RunFolder, Sample, draw
from layerbeam.pipeline.report.stats import LayerStatistics, describe_layer


@dataclasses.dataclass(frozen=True)
class Section:
    """A section's data. `figures`: what `--json` prints; `shown`: what else the template needs.

    `missing_hint`: what to add to the run or the command, if there is nothing to show.
    """

    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shown: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    missing_hint: str | None = None


@dataclasses.dataclass(frozen=True)
class ReportContext:
    """A run and the options of `layerbeam report`. Sections share samples and statistics, computed on first use."""

    folder: RunFolder
    words: tuple[str, ...]
    color_by: str | None
    sample_rows: int
    seed: int
    _samples: dict[str, Sample] = dataclasses.field(default_factory=dict)
    _layers: dict[str, dict[str, LayerStatistics]] = dataclasses.field(default_factory=dict)

    def sample(self, view: RowsOfView) -> Sample:
        """The same rows of a view in every section."""
        if view.name not in self._samples:
            self._samples[view.name] = draw(view, self.sample_rows)
        return self._samples[view.name]

    def description(self, view: RowsOfView) -> str:
        """`2,000 of 31,000 rows, from 3 of 40 parts`."""
        return self.sample(view).said

    def layers(self, view: RowsOfView) -> Mapping[str, LayerStatistics]:
        """Statistics of the sample, by column."""
        if view.name not in self._layers:
            sample = self.sample(view)
            self._layers[view.name] = {column: describe_layer(sample.vectors(column)) for column in view.vectors}
        return self._layers[view.name]


def location(row: Mapping[str, Any]) -> str:
    """The id if the corpus has one; otherwise file and line, counted from 1 as in editors.

    >>> location({"file": "a.txt", "line": 0}), location({"file": "a.txt", "line": 0, "id": "x"})
    ('a.txt:1', 'x')
    """
    return f"{row['file']}:{row['line'] + 1}" if row.get("id") is None else str(row["id"])
