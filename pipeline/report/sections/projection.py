"""The text vectors of each layer on their first two principal components."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.pipeline.report.context import ReportContext, Section, location
from layerbeam.pipeline.report.plots import SIGNS
from layerbeam.pipeline.report.rows import RowsOfView
from layerbeam.pipeline.report.stats import Array, project_layers

ADD_TEXT_VIEW = "No view of texts has rows; add one under `views`: `texts: {level: text, layers: all, pooling: mean}`."
_MAX_POINTS = 800


def check_color_by(views: Sequence[RowsOfView], color_by: str | None) -> None:
    """UsageError if there are views of texts and none has this column."""
    columns = [(view, name) for view in views for name in view.schema.names]
    known = list(dict.fromkeys(name for view, name in columns if name not in (*view.vectors, "text", "line")))
    if color_by is not None and views and color_by not in known:
        raise UsageError(
            f"--color-by {color_by}: no view of texts has this column; it can be {', '.join(known)} (input.keep_fields "
            f"adds other fields of the corpus){did_you_mean(color_by, known)}"
        )


def projection(context: ReportContext) -> Section:
    """A projection of each view of texts or records that has the column to colour by."""
    views = context.folder.of_level("text", "record")
    if not views:
        return Section(missing_hint=ADD_TEXT_VIEW)
    color_by = context.color_by or "file"
    figures, shown = {}, []
    for view in views:
        if color_by not in view.schema.names:
            continue
        sample = context.sample(view)
        categories, names = categorize(sample.table([color_by])[color_by].to_pylist())
        random = np.random.default_rng([context.seed, len(sample)])
        drawn = np.sort(random.permutation(len(sample))[:_MAX_POINTS])
        projections = project_layers((column, sample.vectors(column)) for column in view.vectors)
        figures[view.name] = {
            "rows": len(sample),
            "points": len(drawn),
            "color": color_by,
            "explained_variance": {column: layer.explained for column, layer in projections.items()},
        }
        columns = [name for name in ("file", "id", "line", "text") if name in view.schema.names]
        rows = sample.table(columns).take(drawn).to_pylist()
        shown.append(
            {
                "view": view,
                "sample": context.description(view),
                "names": names,
                "projections": projections,
                "drawn": drawn,
                "categories": categories[drawn],
                "points": [(location(row), row.get("text")) for row in rows],
            }
        )
    return Section(figures, {"color_by": color_by, "views": shown})


def categorize(values: list[Any]) -> tuple[Array, list[str]]:
    """([n] category numbers, names of the categories): the most frequent values; the last one holds the others.

    >>> categorize(["b", "a", "b", None])
    (array([0, 1, 0, 2]), ['b', 'a', '(none)'])
    """
    most = len(SIGNS)
    if len(set(values)) > most and all(isinstance(value, int | float) for value in values if value is not None):
        return _fifths(values)
    names = ["(none)" if value is None else str(value) for value in values]
    counts = Counter(names)
    by_count = sorted(counts, key=lambda name: (name == "(none)", -counts[name], name))
    number = {name: min(place, most - 1) for place, name in enumerate(by_count)}
    if len(by_count) > most:
        by_count[most - 1 :] = [f"{len(by_count) - most + 1:,} others"]
    return np.array([number[name] for name in names], np.int64), by_count


def _fifths(values: list[Any]) -> tuple[Array, list[str]]:
    """Fifths of numbers, named by their smallest and largest value; values of None come last."""
    known = np.array([value for value in values if value is not None])
    edges = np.unique(np.quantile(known, [0.2, 0.4, 0.6, 0.8]))
    present, fifths = np.unique(np.searchsorted(edges, known), return_inverse=True)
    names = [f"{known[fifths == i].min()} to {known[fifths == i].max()}" for i in range(len(present))]
    numbers = np.full(len(values), len(names))
    numbers[[value is not None for value in values]] = fifths
    return numbers, [*names, "(none)"] if len(known) < len(values) else names
