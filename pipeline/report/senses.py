"""A word over the layers: how alike its occurrences are, in which groups they fall, and the sentences they are from."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerbeam.pipeline.report.html import Html, escape, figure, folded, foreign, join, lacking, panels, table, tag
from layerbeam.pipeline.report.occurrences import Found, Occurrence, find_word
from layerbeam.pipeline.report.plots import SIGNS
from layerbeam.pipeline.report.section import Asked, Section, components, layer_name, shorten
from layerbeam.pipeline.report.stats import Array, Grouping, group, mean_within_across, unit
from layerbeam.pipeline.report.texts import place

_NAMES = "ABCDEFGH"


def senses(asked: Asked) -> Section:
    """A part for each word that was asked for."""
    name, title = "words", "A word over the layers"
    if not asked.words:
        return Section.missing(
            name, title, "No word was asked for; `layerbeam report OUT --word bank` shows one, in every layer."
        )
    numbers: dict[str, Any] = {}
    parts = [_word(asked, number, word, numbers) for number, word in enumerate(asked.words)]
    return Section(name, title, join(parts), numbers)


def _word(asked: Asked, number: int, word: str, numbers: dict[str, Any]) -> Html:
    head = tag("h3", foreign(word))
    add = f"`words: {{level: word, layers: all, keep_words: [{word}], include_text: true}}` under `views`"
    found = find_word(asked.folder, word, asked.seed)
    if found is None:
        return join([head, lacking(f"No view of words or tokens has rows; add {add}.")])
    if not found.count:
        numbers[word] = {"occurrences": 0}
        where = f"the {found.rows_searched:,} rows that were looked through"
        return join(
            [head, lacking(f"“{word}” does not come in {where}; views with keep_words need it in their list: {add}.")]
        )
    occurrences = found.occurrences
    columns = found.view.vectors
    vectors = {column: found.vectors(column) for column in columns}
    cosines = {column: unit(of_layer) @ unit(of_layer).T for column, of_layer in vectors.items()}
    chosen, best = _best_grouping(cosines)
    baseline = _baseline(asked, found)
    contrast = {column: mean_within_across(cosines[column], best.groups) for column in columns}
    numbers[word] = {
        "occurrences": found.count,
        "shown": len(occurrences),
        "view": found.view.name,
        "groups": np.bincount(best.groups).tolist(),
        "grouped_in": chosen,
        "silhouette": best.silhouette,
        "layers": {
            column: {"within": contrast[column][0], "across": contrast[column][1], "random_rows": baseline.get(column)}
            for column in columns
        },
    }
    prefix = f"word-{number}"
    some = f"{len(occurrences):,} of " if len(occurrences) < found.count else ""
    said = (
        f"{some}{found.count:,} occurrence{'s' * (found.count > 1)} in view {found.view.name} "
        f"({found.rows_searched:,} of {found.view.num_rows:,} rows looked through)."
    )
    shown: list[Html] = [head, tag("p", said)]
    if len(occurrences) > 1:
        shown += [
            tag("p", _groups_in_words(best, chosen)),
            _legend(best),
            _contrast(asked, columns, contrast, baseline, best),
            _matrices(asked, cosines, best),
            _projections(asked, vectors, best),
        ]
    shown.append(_sentences(occurrences, best, prefix))
    return tag("section", *shown, class_="linked", data_rows=prefix)


def _best_grouping(cosines: dict[str, Array]) -> tuple[str, Grouping]:
    """The layer whose groups are furthest apart. Layer 0 knows no context: its groups are places in the text."""
    choice = [column for column in cosines if column != "layer_0"] or list(cosines)
    groupings = {column: group(cosines[column]) for column in choice}
    best = max(choice, key=lambda column: groupings[column].best_silhouette)
    return best, groupings[best]


def _baseline(asked: Asked, found: Found) -> dict[str, float]:
    """The mean cosine of random rows by layer, from the view itself or one like it that holds all words."""
    views = [found.view, *asked.folder.of_level("word", "token")]
    whole = [view for view in views if view.has_all_words]
    return {
        column: cosine
        for view in reversed(whole)
        for column, cosine in asked.baseline.get(view.name, {}).items()
        if column in found.view.vectors and not np.isnan(cosine)
    }


def _groups_in_words(best: Grouping, chosen: str) -> str:
    sizes = np.bincount(best.groups)
    if len(sizes) == 1:
        return "Average linkage by cosine finds no groups: one sense, or senses that these layers do not part."
    named = ", ".join(f"{_NAMES[i]} with {size}" for i, size in enumerate(sizes))
    strong = "clearly" if best.silhouette >= 0.25 else "barely"
    return (
        f"Average linkage by cosine parts them best in {layer_name(chosen)}: {named}; {strong} apart (silhouette "
        f"{best.silhouette:.2f}, of -1 to 1). The sentences show what a group shares: no sense is known here."
    )


def _legend(best: Grouping) -> Html:
    sizes = np.bincount(best.groups)
    return tag("ul", *(tag("li", _sign(i), f" {size}") for i, size in enumerate(sizes)), class_="legend")


def _sign(number: int) -> Html:
    return tag("span", SIGNS[number], " ", _NAMES[number], class_=f"k{number}")


def _contrast(
    asked: Asked,
    columns: list[str],
    contrast: dict[str, tuple[float, float]],
    baseline: dict[str, float],
    best: Grouping,
) -> Html:
    within = np.array([contrast[column][0] for column in columns])
    across = np.array([contrast[column][1] for column in columns])
    random = np.array([baseline.get(column, np.nan) for column in columns])
    parted = len(np.bincount(best.groups)) > 1
    lines = [(within, "o"), *([(across, "s")] if parted else []), *([(random, "^")] if baseline else [])]
    names = [
        "two of one group" if parted else "two occurrences",
        *(["two of different groups"] if parted else []),
        *(["two random rows"] if baseline else []),
    ]
    classes, signs = ["plot", "cut", "ink"][: len(names)], ["●", *("■" * parted), *("▲" * bool(baseline))]
    key = tag(
        "ul",
        *(
            tag("li", tag("span", sign, class_=f"c-{c}", aria_hidden="true"), f" {name}")
            for name, c, sign in zip(names, classes, signs, strict=True)
        ),
        class_="legend",
    )
    plot = asked.plots.lines(columns, lines, y="mean cosine", label="Mean cosines over the layers; the table has them")
    read = (
        "Where the first two lines part, the layer tells the groups apart. " if parted else ""
    ) + "A high line alone says little: compare it with random rows (Ethayarajh 2019)."
    head = ["layer", *names]
    rows = [(layer_name(c), *(f"{values[i]:.3f}" for values, _ in lines)) for i, c in enumerate(columns)]
    more = folded("The lines as a table", table(head, rows, caption="Mean cosines by layer", numbers=names))
    return figure(join([key, plot]), read, more, class_="narrow")


def _matrices(asked: Asked, cosines: dict[str, Array], best: Grouping) -> Html:
    order = _order(best)
    low = float(min(np.quantile(matrix, 0.02) for matrix in cosines.values()))
    borders = np.flatnonzero(np.diff(best.groups[order])) + 1
    plots = []
    for column, matrix in cosines.items():
        label = f"Cosines of {len(order)} occurrences in {layer_name(column)}"
        drawn = asked.plots.matrix(matrix[np.ix_(order, order)], borders.tolist(), low, label=label)
        plots.append((layer_name(column), drawn))
    read = join(
        [
            "Each row and column is an occurrence, in the same order in every layer, like ones side by side; a cell is "
            "the cosine of two, ",
            tag("span", f"{low:.2f} ", tag("span", class_="scale", aria_hidden="true"), " 1", class_="nowrap"),
            " (dark to bright). Bright squares along the diagonal are groups; white lines are their borders.",
        ]
    )
    return figure(panels(plots), read, class_="small")


def _projections(asked: Asked, vectors: dict[str, Array], best: Grouping) -> Html:
    order = _order(best)
    plots, _ = components(asked.plots, vectors.items(), order, best.groups, f"{len(order):,} occurrences")
    return figure(
        plots,
        "Each point is an occurrence, by the first two principal components of its layer; point at one, or go through "
        "the sentences below, and the same occurrence shows in every layer.",
        class_="small",
    )


def _order(best: Grouping) -> Array:
    """Group by group, like ones side by side within each."""
    return np.asarray(best.order[np.argsort(best.groups[best.order], kind="stable")])


def _sentences(occurrences: Any, best: Grouping, prefix: str) -> Html:
    order = _order(best)
    rows = [
        (
            _sign(int(best.groups[i])),
            place(vars(occurrences[i])),
            _sentence(occurrences[i]),
        )
        for i in order
    ]
    shown = table(
        ["group", "place", "sentence"],
        rows,
        caption=f"The {len(rows):,} occurrences, in the order of the matrices",
        row_ids=[f"{prefix}-{number}" for number in range(len(rows))],
    )
    if any(occurrence.text is None for occurrence in occurrences):
        return join([shown, lacking("Sentences are missing; add `include_text: true` to the view of words.")])
    return shown


def _sentence(occurrence: Occurrence) -> Html:
    """The text with the word marked; of a long one what is around the word."""
    if occurrence.text is None:
        return escape("")
    text, span = occurrence.text, occurrence.span
    begin, piece = shorten(text, span[0] if span else 0)
    before, after = "…" if begin else "", "…" if begin + len(piece) < len(text) else ""
    if span is None:
        return tag("bdi", before, piece, after)
    start, end = span[0] - begin, min(span[1] - begin, len(piece))
    return tag("bdi", before, piece[:start], tag("mark", piece[start:end]), piece[end:], after)
