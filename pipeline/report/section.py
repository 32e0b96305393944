"""What every section of the report is given, and what it gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from layerbeam.pipeline.report.html import Html, join, lacking, panels, tag
from layerbeam.pipeline.report.plots import CATEGORIES, Plots
from layerbeam.pipeline.report.rows import RowsOfView, RunFolder, Sample, draw
from layerbeam.pipeline.report.stats import Array, Projection, pca

_LONGEST_TEXT = 280


@dataclasses.dataclass
class Section:
    """`numbers`: what `--json` prints of it, plain values; `lacks`: what to add to the run, where it shows nothing."""

    id: str
    title: str
    body: Html
    numbers: dict[str, Any]
    lacks: str | None = None

    @staticmethod
    def missing(id_: str, title: str, lacks: str) -> Section:
        """A section of one line."""
        return Section(id_, title, lacking(lacks), {}, lacks)


@dataclasses.dataclass
class Asked:
    """The run, and what was asked about it. `baseline`: mean cosine of random rows, by view and layer, once known."""

    folder: RunFolder
    words: tuple[str, ...]
    color: str | None
    sample_rows: int
    seed: int
    plots: Plots = dataclasses.field(default_factory=Plots)
    baseline: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    _samples: dict[str, Sample] = dataclasses.field(default_factory=dict)

    def sample(self, view: RowsOfView) -> Sample:
        """The same rows of a view for every section."""
        if view.name not in self._samples:
            self._samples[view.name] = draw(view, self.sample_rows)
        return self._samples[view.name]


def components(
    plots: Plots, layers: Iterable[tuple[str, Array]], shown: Array, kinds: Array, what: str
) -> tuple[Html, dict[str, tuple[float, float]]]:
    """(a panel for each layer, the share of the variance that its two principal components explain).

    `layers`: column and [n, W] of each layer; `shown`: the rows to draw, in this order; `kinds`: [n], the category
    of each row; `what`: what they are, for who cannot see the plot.
    """
    drawn, explained = [], {}
    before: Projection | None = None
    for column, vectors in layers:
        before = pca(vectors, like=None if before is None else before.points)
        explained[column] = before.explained
        label = f"Principal components of {layer_name(column)}, {what}"
        plot = plots.scatter(before.points[shown], kinds[shown], label=label)
        share = tag("p", f"variance {before.explained[0]:.0%} + {before.explained[1]:.0%}", class_="under")
        drawn.append((layer_name(column), join([plot, share])))
    return panels(drawn), explained


def layer_name(column: str) -> str:
    """
    >>> layer_name("layer_3"), layer_name("pooled_output")
    ('layer 3', 'pooled_output')
    """
    return column.replace("layer_", "layer ")


def shorten(text: str, around: int = 0, longest: int = _LONGEST_TEXT) -> tuple[int, str]:
    """(where it begins in the text, at most `longest` characters of it that hold the place `around`).

    >>> shorten("abcdefghij", around=9, longest=4)
    (6, 'ghij')
    """
    begin = max(0, min(around - longest // 2, len(text) - longest))
    return begin, text[begin : begin + longest]


def brief(text: str) -> str:
    """The beginning of a text, with an ellipsis where more follows."""
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def categories(values: list[Any]) -> tuple[Array, list[str]]:
    """([n] number of the category, names of the categories): the most frequent values, what is left over last.

    >>> categories(["b", "a", "b", None])
    (array([0, 1, 0, 2]), ['b', 'a', '(none)'])
    """
    if len(set(values)) > CATEGORIES and all(isinstance(v, (int, float)) for v in values if v is not None):
        return _ranges(values)
    names = ["(none)" if value is None else str(value) for value in values]
    counts = {name: names.count(name) for name in dict.fromkeys(sorted(names))}
    frequent = sorted(counts, key=lambda name: (name == "(none)", -counts[name]))
    if len(frequent) <= CATEGORIES:
        shown = frequent
    else:
        shown = [*frequent[: CATEGORIES - 1], f"{len(frequent) - CATEGORIES + 1:,} others"]
    number = {name: min(place, CATEGORIES - 1) for place, name in enumerate(frequent)}
    return np.array([number[name] for name in names], np.int64), shown


def _ranges(values: list[Any]) -> tuple[Array, list[str]]:
    """Fifths of numbers, each named by its least and its greatest, and those without one."""
    known = np.array([value for value in values if value is not None])
    edges = np.unique(np.quantile(known, [0.2, 0.4, 0.6, 0.8]))
    fifths = np.searchsorted(edges, known)
    present, fifths = np.unique(fifths, return_inverse=True)
    names = [f"{known[fifths == i].min()} to {known[fifths == i].max()}" for i in range(len(present))]
    of_known = iter(fifths.tolist())
    numbers = [len(names) if value is None else next(of_known) for value in values]
    return np.array(numbers, np.int64), [*names, "(none)"] if len(known) < len(values) else names
