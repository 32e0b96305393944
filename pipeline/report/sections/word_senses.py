"""A word over the layers: how similar its occurrences are, which groups they form, and their sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from layerbeam.pipeline.report.context import ReportContext, Section
from layerbeam.pipeline.report.occurrences import Occurrence, WordSearch, find_word
from layerbeam.pipeline.report.stats import Array, Grouping, group, mean_within_across, project_layers, unit

_EXCERPT = 280


def word_senses(context: ReportContext) -> Section:
    """The words that the command names."""
    if not context.words:
        hint = "No word was asked for; `layerbeam report OUT --word bank` shows one, in every layer."
        return Section(missing_hint=hint)
    figures: dict[str, Any] = {}
    shown: list[dict[str, Any]] = []
    for word in context.words:
        search = find_word(context.folder, word, context.seed)
        if search is None:
            shown.append({"word": word, "rows_searched": None})
        elif not search.count:
            figures[word] = {"occurrences": 0}
            shown.append({"word": word, "rows_searched": search.rows_searched})
        else:
            figures[word], details = _senses(context, search)
            shown.append({"word": word, "search": search, **details})
    return Section(figures, {"words": shown})


def _senses(context: ReportContext, search: WordSearch) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what `--json` prints, what else the template shows)."""
    vectors = {column: search.vectors(column) for column in search.view.vectors}
    cosines = {column: unit(layer) @ unit(layer).T for column, layer in vectors.items()}
    grouped_in, grouping = _best_grouping(cosines)
    random = _random_cosines(context, search)
    layers = {}
    for column, matrix in cosines.items():
        within, across = mean_within_across(matrix, grouping.groups)
        layers[column] = {"within": within, "across": across, "random_rows": random.get(column, np.nan)}
    figures = {
        "occurrences": search.count,
        "shown": len(search.occurrences),
        "view": search.view.name,
        "groups": np.bincount(grouping.groups).tolist(),
        "grouped_in": grouped_in,
        "silhouette": grouping.silhouette,
        "layers": layers,
    }
    # Group by group, similar occurrences adjacent within each.
    order = grouping.order[np.argsort(grouping.groups[grouping.order], kind="stable")]
    groups = grouping.groups[order]
    details = {
        "lines": _lines(layers, len(figures["groups"])),
        "matrices": {column: matrix[np.ix_(order, order)] for column, matrix in cosines.items()},
        "lowest": float(min(np.quantile(matrix, 0.02) for matrix in cosines.values())),
        "borders": (np.flatnonzero(np.diff(groups)) + 1).tolist(),
        "projections": project_layers(vectors.items()),
        "order": order,
        "groups": groups,
        "sentences": [
            (int(number), occurrence.location, *_excerpt(occurrence))
            for number, occurrence in zip(groups, (search.occurrences[i] for i in order), strict=True)
        ],
        "lacks_text": any(occurrence.text is None for occurrence in search.occurrences),
    }
    return figures, details


def _best_grouping(cosines: Mapping[str, Array]) -> tuple[str, Grouping]:
    """The layer with the best separated groups. Layer 0 is excluded: without context its groups are positions."""
    groupings = {
        column: group(matrix) for column, matrix in cosines.items() if column != "layer_0" or len(cosines) == 1
    }
    return max(groupings.items(), key=lambda item: item[1].best_silhouette)


def _random_cosines(context: ReportContext, search: WordSearch) -> dict[str, float]:
    """The mean cosine of random rows by layer, from the searched view or another one that has all words."""
    views = [*reversed(context.folder.of_level("word", "token")), search.view]
    return {
        column: layer.figures["anisotropy"]
        for view in views
        if view.has_all_words
        for column, layer in context.layers(view).items()
        if column in search.view.vectors and not np.isnan(layer.figures["anisotropy"])
    }


def _lines(layers: Mapping[str, Mapping[str, float]], groups: int) -> list[tuple[str, str]]:
    """(key in `layers`, name) of each line in the plot of cosines."""
    lines = [("within", "two in the same group" if groups > 1 else "two occurrences")]
    if groups > 1:
        lines.append(("across", "two in different groups"))
    if not np.isnan([layer["random_rows"] for layer in layers.values()]).all():
        lines.append(("random_rows", "two random rows"))
    return lines


def _excerpt(occurrence: Occurrence) -> tuple[str, str, str]:
    """(before, the word, after): the text around the word; a word that was not located is empty."""
    text, (start, end) = occurrence.text or "", occurrence.span or (0, 0)
    begin = max(0, min(start - _EXCERPT // 2, len(text) - _EXCERPT))
    stop = begin + _EXCERPT
    before, after = "…" if begin else "", "…" if stop < len(text) else ""
    return before + text[begin:start], text[start : min(end, stop)], text[end:stop] + after
