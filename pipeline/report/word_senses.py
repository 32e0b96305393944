"""A word over the layers: its occurrences and their texts, how similar they are, and which groups they form."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from layerbeam.pipeline.report.context import PLACE, ReportContext, SampledView, Section, location, to_matrix
from layerbeam.pipeline.report.stats import (
    Array,
    Grouping,
    describe_structure,
    follow_places,
    group,
    mean_within_across,
    project_layers,
    unit,
)
from layerbeam.transforms.commits import Part
from layerbeam.transforms.reference import ReferenceWordPiece

_EXCERPT = 280
_MAX_OCCURRENCES = 160
# Of a larger view, random parts with about this many rows are searched, or fewer if the file is read whole.
_SEARCH_ROWS = 5_000_000


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
            seen = [] if search is None else sorted(search.words)
            similar = difflib.get_close_matches(word.lower(), seen, cutoff=0.7)
            figures[word] = {"occurrences": 0, "similar": similar}
            details = {"problem": _not_found(context, word, search, similar)}
        shown.append({"word": word, "search": search, **details})
    return Section(figures, {"words": shown}, problems=[of["problem"] for of in shown if "problem" in of])


def _not_found(context: ReportContext, word: str, search: WordSearch | None, similar: Sequence[str]) -> str:
    """What to do about a word that does not occur."""
    encoder = context.run.manifest["encoder"]
    words = re.findall(r"\w+|[^\w\s]", word)
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
    cosines = {column: unit(layer) @ unit(layer).T for column, layer in vectors.items()}
    places = np.array([occurrence.word_index for occurrence in search.occurrences])
    grouped_in, grouping = _best_grouping(cosines, places)
    follows_place, place_share = follow_places(grouping.groups, places)
    random, samples = _random_rows(context, search)
    layers = {}
    for column, matrix in cosines.items():
        within, across = mean_within_across(matrix, grouping.groups)
        layers[column] = {"within": within, "across": across, "random_rows": random.get(column, np.nan)}
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
        "places": [{"group": int(groups[n]), **search.occurrences[i].place} for n, i in enumerate(order)],
    }
    details = {
        "structure": describe_structure(grouping.silhouette),
        "lines": _lines(layers, len(figures["groups"])),
        "random_samples": samples,
        "matrices": {column: matrix[np.ix_(order, order)] for column, matrix in cosines.items()},
        "lowest": float(min(np.quantile(matrix, 0.02) for matrix in cosines.values())),
        "borders": (np.flatnonzero(np.diff(groups)) + 1).tolist(),
        "projections": project_layers(vectors.items()),
        "order": order,
        "groups": groups,
        "sentences": [
            (int(number), location(occurrence.place), *_excerpt(occurrence))
            for number, occurrence in zip(groups, (search.occurrences[i] for i in order), strict=True)
        ],
        "lacks_text": any(occurrence.text is None for occurrence in search.occurrences),
    }
    return figures, details


def _best_grouping(cosines: Mapping[str, Array], places: Array) -> tuple[str, Grouping]:
    """The layer with the best separated groups that do not follow the word's place in its text, if there is one.

    Layer 0 is excluded: without context its groups are places.
    """
    columns = [column for column in cosines if column != "layer_0"] or list(cosines)
    found = [(column, group(cosines[column])) for column in columns]
    other = [one for one in found if one[1].best_silhouette > 0 and not follow_places(one[1].groups, places)[0]]
    return max(other or found, key=lambda one: one[1].best_silhouette)


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


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """`rows`: of its pieces, in the part; `place`: file, line, sentence and id, if there is one; `span`: of the word.

    `word_index`: in its text. `text` is None if the run kept none.
    """

    part: Part
    rows: tuple[int, ...]
    place: Mapping[str, Any]
    word_index: int
    text: str | None
    span: tuple[int, int] | None


@dataclasses.dataclass(frozen=True)
class WordSearch:
    """`count` occurrences in the rows searched, and a sample of them in the order file, line.

    `words`: those seen, in lower case, if there is no occurrence.
    """

    view: SampledView
    occurrences: Sequence[Occurrence]
    count: int
    rows_searched: int
    words: frozenset[str]

    def vectors(self, column: str) -> Array:
        """[n, W]: for a word of several pieces their mean."""
        means = []
        for part, occurrences in itertools.groupby(self.occurrences, lambda occurrence: occurrence.part):
            pieces = [occurrence.rows for occurrence in occurrences]
            rows = np.unique(np.concatenate(pieces))
            read = to_matrix(self.view.read(part, [column], rows)[column])
            means += [read[np.searchsorted(rows, numbers)].mean(axis=0) for numbers in pieces]
        return np.stack(means)


def find_word(context: ReportContext, word: str) -> WordSearch | None:
    """Search the views, most layers first, until one has the word; None if no view has words or tokens with offsets."""
    views = [view for view in context.of_level("word", "token") if view.has_places]
    search = None
    for view in sorted(views, key=lambda view: (-len(view.vectors), view.level != "word")):
        hits, rows_searched, words = _search(view, _forms(word))
        drawn = np.sort(np.random.default_rng([context.seed, *word.encode()]).permutation(len(hits))[:_MAX_OCCURRENCES])
        found: list[Occurrence] = []
        for part, in_part in itertools.groupby((hits[number] for number in drawn), lambda hit: hit[0]):
            found += _occurrences(context, view, part, [rows for _, rows in in_part])
        search = WordSearch(view, found, len(hits), rows_searched, words)
        if hits:
            break
    return search


def _search(view: SampledView, forms: set[str]) -> tuple[list[tuple[Part, tuple[int, ...]]], int, frozenset[str]]:
    """(part and rows of each occurrence, in the order file, line; number of rows searched; the words seen)."""
    format_ = view.file_format
    hits: dict[Part, list[tuple[int, ...]]] = {}
    words: set[str] = set()
    rows = read = 0
    for part in view.random_parts():
        hits[part] = _find(view, part, forms, words)
        rows, read = rows + part.rows, read + part.bytes
        if rows >= _SEARCH_ROWS or (not format_.is_columnar and read >= format_.sample_bytes):
            break
    return [(part, found) for part in view.parts for found in hits.get(part, [])], rows, frozenset(words)


def _forms(word: str) -> set[str]:
    """The word in lower case, with and without accents: encoders that lower-case strip accents from their pieces."""
    lower = word.lower()
    return {lower, "".join(c for c in unicodedata.normalize("NFD", lower) if unicodedata.category(c) != "Mn")}


def _find(view: SampledView, part: Part, forms: set[str], seen: set[str]) -> list[tuple[int, ...]]:
    """The rows of each occurrence. Of tokens: adjacent rows with the same line, sentence and word_index.

    The part's words of one piece are added to `seen`: those of several pieces would each have to be joined.
    """
    if view.level == "word":
        words = pc.utf8_lower(view.read(part, ["word"])["word"])
        seen.update(pc.unique(words).to_pylist())
        return [(int(row),) for row in np.flatnonzero(pc.is_in(words, pa.array(sorted(forms))).to_numpy())]
    table = view.read(part, ["token", "line", "sentence", "word_index"])
    tokens = pc.utf8_lower(table["token"])
    keys = np.stack([table[name].to_numpy() for name in ("line", "sentence", "word_index")])
    begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    ends = np.append(begins[1:], table.num_rows)
    seen.update(pc.unique(tokens.take(pa.array(begins[ends - begins == 1]))).to_pylist())
    prefixes = pa.array(sorted({form[:length] for form in forms for length in range(1, len(form) + 1)}))
    candidates = pc.is_in(tokens, prefixes).to_numpy()[begins]
    hits = []
    for begin, end in zip(begins[candidates].tolist(), ends[candidates].tolist(), strict=True):
        first, *more = tokens[begin:end].to_pylist()
        if first + "".join(piece.removeprefix("##") for piece in more) in forms:
            hits.append(tuple(range(begin, end)))
    return hits


def _occurrences(
    context: ReportContext, view: SampledView, part: Part, hits: list[tuple[int, ...]]
) -> Iterator[Occurrence]:
    columns = view.existing(*PLACE, "word_index", "start", "end", "text")
    firsts = view.read(part, columns, np.array([rows[0] for rows in hits])).to_pylist()
    ends = view.read(part, ["end"], np.array([rows[-1] for rows in hits]))["end"].to_pylist()
    keys = {(first["line"], first["sentence"]) for first in firsts}
    texts = {} if "text" in columns else _texts(context, view, part, keys)
    for rows, first, end in zip(hits, firsts, ends, strict=True):
        text, origin = texts.get((first["line"], first["sentence"]), (first.get("text"), 0))
        span = None if text is None else _span(text, first["start"] - origin, end - origin)
        place = {name: first[name] for name in PLACE if name in first}
        yield Occurrence(part, rows, place, first["word_index"], text, span)


def _span(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The word's place; None if another word is there: in sentences and second texts of pairs offsets differ."""
    is_word = 0 <= start < end <= len(text) and not re.search(r"\s", text[start:end])
    cut = is_word and not (re.match(r"\w\w", text[start - 1 : start + 1]) or re.match(r"\w\w", text[end - 1 : end + 1]))
    return (start, end) if cut else None


def _texts(
    context: ReportContext, view: SampledView, part: Part, keys: set[tuple[int, int]]
) -> dict[tuple[int, int], tuple[str, int]]:
    """(text, its offset in the record) by (line, sentence): from a view of texts, or joined from all tokens."""
    for texts in context.of_level("text"):
        sibling = context.run.same_texts(part, view.name, texts.name)
        if sibling is not None:
            rows = texts.read(sibling, ["line", "sentence", "text"]).to_pylist()
            return {key: (row["text"], 0) for row in rows if (key := (row["line"], row["sentence"])) in keys}
    if view.level != "token" or not view.has_all_words:
        return {}
    table = view.read(part, ["line", "sentence", "start", "end", "token"])
    lines = pc.is_in(table["line"], pa.array(sorted({line for line, _ in keys}), pa.int64()))
    pieces: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in table.filter(lines).to_pylist():
        if row["start"] >= 0 and (row["line"], row["sentence"]) in keys:
            pieces.setdefault((row["line"], row["sentence"]), []).append(row)
    return {key: (_join_tokens(rows), rows[0]["start"]) for key, rows in pieces.items()}


def _join_tokens(rows: list[dict[str, Any]]) -> str:
    """The text as far as its tokens show it, each at its offset, with spaces for everything between."""
    text, origin = "", rows[0]["start"]
    for row in rows:
        length = row["end"] - row["start"]
        text = text.ljust(row["start"] - origin)
        text += row["token"].removeprefix("##")[:length].ljust(length)
    return text
