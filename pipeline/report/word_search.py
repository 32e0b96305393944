"""A word in the rows of a run: its occurrences, with their texts and vectors."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.dataset.view import View
from layerbeam.pipeline.report.context import PLACE, ReportContext, SampledView, to_matrix
from layerbeam.pipeline.report.stats import Array
from layerbeam.transforms.commits import Part

_TextKey: TypeAlias = tuple[str, int, int]  # file, line, sentence: a part may hold several small files
_MAX_OCCURRENCES = 160
# Of a larger view, random parts with about this many rows are searched, or fewer if the file is read whole.
_SEARCH_ROWS = 5_000_000


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
    """Search the views, most layers first, until one has the word; None if no view has words or tokens with offsets.

    If none has it, the result is of a view with all words, if there is one.
    """
    views = [view for view in context.of_level("word", "token") if view.has_places]
    missing: list[WordSearch] = []
    for view in sorted(views, key=lambda view: (-len(view.vectors), view.level != "word")):
        hits, rows_searched, words = _search(view, forms_of(word))
        drawn = np.sort(np.random.default_rng([context.seed, *word.encode()]).permutation(len(hits))[:_MAX_OCCURRENCES])
        by_part = itertools.groupby((hits[number] for number in drawn), lambda hit: hit[0])
        found = [_occurrences(context, view, part, [rows for _, rows in of_part]) for part, of_part in by_part]
        search = WordSearch(view, list(itertools.chain(*found)), len(hits), rows_searched, words)
        if hits:
            return search
        missing.append(search)
    return max(missing, key=lambda search: search.view.has_all_words, default=None)


def _search(view: SampledView, forms: set[str]) -> tuple[list[tuple[Part, tuple[int, ...]]], int, frozenset[str]]:
    """(part and rows of each occurrence, in the order file, line; number of rows searched; the words seen)."""
    format_ = view.file_format
    hits: dict[Part, list[tuple[int, ...]]] = {}
    words: set[str] = set()
    rows = read = 0
    for part in view.random_parts():
        hits[part] = find_forms(view, part, forms, words)
        rows, read = rows + part.rows, read + part.bytes
        if rows >= _SEARCH_ROWS or (not format_.is_columnar and read >= format_.sample_bytes):
            break
    return [(part, found) for part in view.parts for found in hits.get(part, [])], rows, frozenset(words)


def forms_of(word: str) -> set[str]:
    """The word in lower case, with and without accents: encoders that lower-case strip accents from their pieces."""
    lower = word.lower()
    return {lower, "".join(c for c in unicodedata.normalize("NFD", lower) if unicodedata.category(c) != "Mn")}


def find_forms(view: View, part: Part, forms: set[str], seen: set[str]) -> list[tuple[int, ...]]:
    """The rows of each occurrence. Of tokens: adjacent rows with the same file, line, sentence and word_index.

    The part's words of one piece are added to `seen`: those of several pieces would each have to be joined.
    """
    if view.level == "word":
        words = pc.utf8_lower(view.read(part, ["word"])["word"])
        seen.update(pc.unique(words).to_pylist())
        return [(int(row),) for row in np.flatnonzero(pc.is_in(words, pa.array(sorted(forms))).to_numpy())]
    table = view.read(part, ["token", "file", "line", "sentence", "word_index"])
    tokens = pc.utf8_lower(table["token"])
    files = pc.dictionary_encode(table["file"]).combine_chunks().indices
    keys = np.stack([files.to_numpy(), *(table[name].to_numpy() for name in ("line", "sentence", "word_index"))])
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
    keys = {_text_key(first) for first in firsts}
    texts = {} if "text" in columns else _texts(context, view, part, keys)
    for rows, first, end in zip(hits, firsts, ends, strict=True):
        text, origin = texts.get(_text_key(first), (first.get("text"), 0))
        span = None if text is None else _span(text, first["start"] - origin, end - origin)
        place = {name: first[name] for name in PLACE if name in first}
        yield Occurrence(part, rows, place, first["word_index"], text, span)


def _span(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The word's place; None if another word is there: in sentences and second texts of pairs offsets differ."""
    is_word = 0 <= start < end <= len(text) and not re.search(r"\s", text[start:end])
    cut = is_word and not (re.match(r"\w\w", text[start - 1 : start + 1]) or re.match(r"\w\w", text[end - 1 : end + 1]))
    return (start, end) if cut else None


def _text_key(row: Mapping[str, Any]) -> _TextKey:
    return row["file"], row["line"], row["sentence"]


def _texts(
    context: ReportContext, view: SampledView, part: Part, keys: set[_TextKey]
) -> dict[_TextKey, tuple[str, int]]:
    """(text, its offset in the record): from a view of texts, or joined from all tokens."""
    place = ["file", "line", "sentence"]
    for texts in context.of_level("text", with_lists=True):
        sibling = context.run.same_texts(part, texts.name)
        if sibling is not None:
            rows = texts.read(sibling, [*place, "text"]).to_pylist()
            return {key: (row["text"], 0) for row in rows if (key := _text_key(row)) in keys}
    if view.level != "token" or not view.has_all_words:
        return {}
    table = view.read(part, [*place, "start", "end", "token"])
    lines = pc.is_in(table["line"], pa.array(sorted({line for _, line, _ in keys}), pa.int64()))
    pieces: dict[_TextKey, list[dict[str, Any]]] = {}
    for row in table.filter(lines).to_pylist():
        if row["start"] >= 0 and (key := _text_key(row)) in keys:
            pieces.setdefault(key, []).append(row)
    return {key: (_join_tokens(rows), rows[0]["start"]) for key, rows in pieces.items()}


def _join_tokens(rows: list[dict[str, Any]]) -> str:
    """The text as far as its tokens show it, each at its offset, with spaces for everything between."""
    text, origin = "", rows[0]["start"]
    for row in rows:
        length = row["end"] - row["start"]
        text = text.ljust(row["start"] - origin)
        text += row["token"].removeprefix("##")[:length].ljust(length)
    return text
