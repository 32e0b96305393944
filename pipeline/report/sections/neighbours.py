"""Nearest neighbours: for some random texts, the texts with the highest cosine."""

from __future__ import annotations

import numpy as np

from layerbeam.pipeline.report.context import ReportContext, Section, location
from layerbeam.pipeline.report.sections.projection import ADD_TEXT_VIEW
from layerbeam.pipeline.report.stats import unit

_QUERIES = 8
_NEIGHBOURS = 5


def neighbours(context: ReportContext) -> Section:
    """The neighbours in the last layer of the first view of texts."""
    views = context.folder.of_level("text")
    if not views:
        return Section(missing_hint=ADD_TEXT_VIEW)
    view = views[0]
    column = max(view.vectors, key=lambda name: int(name.removeprefix("layer_")) if name.startswith("layer_") else -1)
    sample = context.sample(view)
    rows = sample.table([name for name in ("file", "id", "line", "text") if name in view.schema.names])
    texts = rows["text"].to_pylist()
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2:
        return Section()
    drawn = np.random.default_rng([context.seed, 1]).permutation(len(distinct))[:_QUERIES]
    queries = sorted(texts.index(distinct[i]) for i in drawn)
    vectors = unit(sample.vectors(column))
    figures, shown = [], []
    for query, cosines in zip(queries, vectors[queries] @ vectors.T, strict=True):
        best_rows: dict[str, int] = {}
        for row in np.argsort(-cosines, kind="stable").tolist():
            best_rows.setdefault(texts[row], row)
        nearest = [row for text, row in best_rows.items() if text != texts[query]][:_NEIGHBOURS]
        places = [location(row) for row in rows.take(nearest).to_pylist()]
        figures.append({"text": texts[query], "nearest": [(texts[i], float(cosines[i])) for i in nearest]})
        shown.append((texts[query], [(cosines[i], place, texts[i]) for i, place in zip(nearest, places, strict=True)]))
    return Section(
        {"view": view.name, "column": column, "queries": figures},
        {"queries": shown, "sample": context.description(view), "neighbours": _NEIGHBOURS},
    )
