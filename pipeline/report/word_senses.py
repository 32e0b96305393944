"""A word over the layers: how similar its occurrences are, and which groups they form."""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from layerbeam.pipeline.dataset.row_texts import location
from layerbeam.pipeline.dataset.word_rows import LACKS_TEXTS
from layerbeam.pipeline.report.context import ReportContext, Section
from layerbeam.pipeline.report.sections import categorize
from layerbeam.pipeline.report.stats import (
    Array,
    Grouping,
    cosine_matrix,
    describe_structure,
    follow_places,
    group,
    mean_within_across,
    min_group_size,
    project_layers,
    separation,
)
from layerbeam.pipeline.report.word_search import Occurrence, WordSearch, find_word
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.tokenize.comparison import word_parts

_EXCERPT = 280
# Those of `Separation`.
_MEASURES = ("agreement", "silhouette")


def word_senses(context: ReportContext) -> Section:
    """The words that the command names."""
    if not context.words:
        hint = "No word was asked for; `layerbeam report OUT --word bank` shows one, in every layer."
        return Section(missing_hint=hint)
    figures: dict[str, Any] = {}
    shown: list[dict[str, Any]] = []
    for word in context.words:
        search = find_word(context, word)
        if search is not None and search.count:
            figures[word], details = _senses(context, search)
        else:
            seen = [] if search is None else sorted({known.lower() for known in search.words})
            similar = difflib.get_close_matches(word.lower(), seen, cutoff=0.7)
            figures[word] = {"occurrences": 0, "similar": similar}
            details = {"problem": _not_found(context, word, search, similar)}
        shown.append({"word": word, "search": search, **details})
    return Section(figures, {"words": shown}, problems=[word["problem"] for word in shown if "problem" in word])


def _not_found(context: ReportContext, word: str, search: WordSearch | None, similar: Sequence[str]) -> str:
    """What to do about a word that does not occur."""
    encoder = context.run.manifest["encoder"]
    words = word_parts(word, with_symbols=True)
    if encoder.get("tokenizer") != "tokenizers":  # BERT's basic tokens; Chinese characters are words
        words = ReferenceWordPiece([], bool(encoder["do_lower_case"])).words(word)
    if len(words) > 1:
        whole = (
            "" if re.search(r"\s", word) else f", or keep it whole: {_view_to_add(context, word)}, words: whitespace}}`"
        )
        each = " ".join(f"--word {shlex.quote(part)}" for part in words)
        return f"“{word}” is several words; ask for each of them: `{each}`{whole}."
    add = f"add {_view_to_add(context, word)}}}` under `views`"
    if search is None:
        return f"“{word}”: no view of words or tokens has rows; {add}."
    if search.lacks_texts:
        return f"“{word}”: view {search.view.name}: {LACKS_TEXTS}."
    only = "" if search.view.has_all_words else f" It has only the words in its `keep_words`: {add}."
    near = f" Similar words there: {', '.join(similar)}." if similar else ""
    rows = f"{search.rows_searched:,} of {search.view.num_rows:,} rows searched"
    return f"“{word}” does not occur in view {search.view.name} ({rows}).{near}{only}"


def _view_to_add(context: ReportContext, word: str) -> str:
    """The setting of a view that keeps the word, without its closing brace."""
    names = itertools.chain(["words"], (f"words_{number}" for number in itertools.count(2)))
    name = next(name for name in names if name not in context.run)
    forms = yaml.safe_dump([word], default_flow_style=True, allow_unicode=True, width=len(word) + 99).strip()
    return f"`{name}: {{level: word, layers: all, keep_words: {forms}, include_text: true"


def _senses(context: ReportContext, search: WordSearch) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what `--json` prints, what else the template shows)."""
    vectors = {column: search.vectors(column) for column in search.view.vectors}
    cosines = {column: cosine_matrix(layer) for column, layer in vectors.items()}
    places = np.array([occurrence.word_index for occurrence in search.occurrences])
    grouped_in, grouping = _best_grouping(cosines, places)
    follows_place, place_share = follow_places(grouping.groups, places)
    random, samples = _random_rows(context, search)
    layers = {}
    for column, matrix in cosines.items():
        within, across = mean_within_across(matrix, grouping.groups)
        layers[column] = {"within": within, "across": across, "random_rows": random.get(column, np.nan)}
    labels, names, by_label = _by_label(context, search, cosines, grouping)
    # Group by group, similar occurrences adjacent within each.
    order = grouping.order[np.argsort(grouping.groups[grouping.order], kind="stable")]
    groups = grouping.groups[order]
    figures = {
        "occurrences": search.count,
        "shown": len(search.occurrences),
        "view": search.view.name,
        "groups": np.bincount(grouping.groups).tolist(),
        "grouped_in": grouped_in,
        "silhouette": grouping.silhouette,
        "follows_place": follows_place,
        "place_share": place_share,
        "layers": layers,
        "by_label": by_label,
        "places": [{"group": int(groups[n]), **search.occurrences[i].place} for n, i in enumerate(order)],
    }
    details = {
        "structure": describe_structure(grouping.silhouette),
        "least": min_group_size(len(search.occurrences)),
        "labels": labels[order],
        "names": names,
        "lines": _lines(layers, len(figures["groups"])),
        "random_samples": samples,
        "matrices": {column: matrix[np.ix_(order, order)] for column, matrix in cosines.items()},
        "lowest": float(min(np.quantile(matrix, 0.02) for matrix in cosines.values())),
        "borders": (np.flatnonzero(np.diff(groups)) + 1).tolist(),
        "projections": project_layers(vectors.items()),
        "order": order,
        "groups": groups,
        "sentences": [
            (int(groups[n]), location(search.occurrences[i].place), int(labels[i]), *_excerpt(search.occurrences[i]))
            for n, i in enumerate(order)
        ],
        "lacks_text": any(occurrence.text is None for occurrence in search.occurrences),
    }
    return figures, details


def _by_label(
    context: ReportContext, search: WordSearch, cosines: Mapping[str, Array], grouping: Grouping
) -> tuple[Array, list[str], dict[str, Any] | None]:
    """([n] label numbers, their names, what `--json` prints of them): the values of the column to colour by.

    Without such a column the labels are the groups. `categorize` joins rare labels; the separation is that of all of
    them, and of numbers that of their fifths. Occurrences without a label do not count there.
    """
    if context.color_by is None or context.color_by not in search.view.schema.names:
        return grouping.groups, [], None
    values = [occurrence.label for occurrence in search.occurrences]
    labels, names = categorize(values)
    known = np.array([i for i, value in enumerate(values) if value is not None], np.int64)
    are_numbers = all(isinstance(values[i], int | float) for i in known)
    given = labels[known] if are_numbers else np.unique([str(values[i]) for i in known], return_inverse=True)[1]
    sizes = np.bincount(given)
    layers = {column: separation(matrix[np.ix_(known, known)], given) for column, matrix in cosines.items()}
    best = {name: max(layers, key=lambda column: getattr(layers[column], name)) for name in _MEASURES}
    # Of pairs of different occurrences, those with the same label.
    by_chance = float((sizes * (sizes - 1)).sum() / max(len(known) * (len(known) - 1), 1))
    table = np.zeros((grouping.groups.max() + 1, len(names)), np.int64)
    np.add.at(table, (grouping.groups, labels), 1)
    figures = {
        "field": context.color_by,
        "labels": names,
        "groups": table.tolist(),
        "labelled": len(known),
        "by_chance": by_chance,
        "layers": {column: {name: getattr(found, name) for name in _MEASURES} for column, found in layers.items()},
        "best": best if 0 < by_chance < 1 else None,
    }
    return labels, names, figures


def _best_grouping(cosines: Mapping[str, Array], places: Array) -> tuple[str, Grouping]:
    """The layer with the best separated groups that do not follow the word's place in its text, if there is one.

    Layer 0 is excluded: without context its groups are places.
    """
    columns = [column for column in cosines if column != "layer_0"] or list(cosines)
    found = [(column, group(cosines[column])) for column in columns]
    other = [one for one in found if one[1].first_silhouette > 0 and not follow_places(one[1].groups, places)[0]]
    return max(other or found, key=lambda one: one[1].first_silhouette)


def _random_rows(context: ReportContext, search: WordSearch) -> tuple[dict[str, float], list[str]]:
    """The mean cosine of random rows by layer, and of which samples: the searched view, or others with all words."""
    cosines: dict[str, float] = {}
    samples = []
    for view in [*reversed(context.of_level("word", "token")), search.view]:
        layers = {
            column: layer.figures["anisotropy"]
            for column, layer in (view.layers if view.has_all_words else {}).items()
            if column in search.view.vectors and not np.isnan(layer.figures["anisotropy"])
        }
        samples += [f"{view.sample_text} of view {view.name}"] if layers.keys() - cosines.keys() else []
        cosines |= layers
    return cosines, samples


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
