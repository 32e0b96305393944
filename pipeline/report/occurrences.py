"""The occurrences of a word in a run, found in the columns next to the vectors; a sample of them with their texts."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.report.context import location
from layerbeam.pipeline.report.rows import RowsOfView, RunFolder, column_matrix
from layerbeam.pipeline.report.stats import Array
from layerbeam.transforms.commits import Part

_MAX_OCCURRENCES = 160
# Of a larger view, random parts with about this many rows are searched.
_SEARCH_ROWS = 5_000_000
_SEARCH_BYTES_OF_SLOW_FORMATS = 48 << 20


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """`rows`: of its pieces, in the part; `text`: None if the run kept none; `span`: of the word in the text."""

    part: Part
    rows: tuple[int, ...]
    location: str
    text: str | None
    span: tuple[int, int] | None


@dataclasses.dataclass(frozen=True)
class WordSearch:
    """`count` occurrences in the rows searched, and a sample of them in the order file, line."""

    view: RowsOfView
    occurrences: Sequence[Occurrence]
    count: int
    rows_searched: int

    def vectors(self, column: str) -> Array:
        """[n, W]: for a word of several pieces their mean."""
        means = []
        for part, occurrences in itertools.groupby(self.occurrences, lambda occurrence: occurrence.part):
            pieces = [occurrence.rows for occurrence in occurrences]
            rows = np.unique(np.concatenate(pieces))
            read = column_matrix(self.view.read(part, [column], rows)[column])
            means += [read[np.searchsorted(rows, numbers)].mean(axis=0) for numbers in pieces]
        return np.stack(means)


def find_word(folder: RunFolder, word: str, seed: int) -> WordSearch | None:
    """Search the views, most layers first, until one has the word; None if no view has words or tokens with offsets."""
    views = [view for view in folder.of_level("word", "token") if view.has_places]
    search = None
    for view in sorted(views, key=lambda view: (-len(view.vectors), view.level != "word")):
        hits, rows_searched = _search(view, _forms(word))
        drawn = np.sort(np.random.default_rng([seed, *word.encode()]).permutation(len(hits))[:_MAX_OCCURRENCES])
        found: list[Occurrence] = []
        for part, in_part in itertools.groupby((hits[number] for number in drawn), lambda hit: hit[0]):
            found += _occurrences(folder, view, part, [rows for _, rows in in_part])
        search = WordSearch(view, found, len(hits), rows_searched)
        if hits:
            break
    return search


def _search(view: RowsOfView, forms: set[str]) -> tuple[list[tuple[Part, tuple[int, ...]]], int]:
    """(part and rows of each occurrence, in the order file, line; number of rows searched)."""
    find = _find_words if view.level == "word" else _find_tokens
    hits: list[tuple[Part, tuple[int, ...]]] = []
    rows = read = 0
    for part in view.random_parts():
        hits += [(part, found) for found in find(view, part, forms)]
        rows, read = rows + part.rows, read + part.bytes
        if rows >= _SEARCH_ROWS or (view.entry["format"] != "parquet" and read >= _SEARCH_BYTES_OF_SLOW_FORMATS):
            break
    order = {part: number for number, part in enumerate(view.parts)}
    return sorted(hits, key=lambda hit: (order[hit[0]], hit[1])), rows


def _forms(word: str) -> set[str]:
    """The word in lower case, with and without accents: encoders that lower-case strip accents from their pieces."""
    lower = word.lower()
    return {lower, "".join(c for c in unicodedata.normalize("NFD", lower) if unicodedata.category(c) != "Mn")}


def _find_words(view: RowsOfView, part: Part, forms: set[str]) -> list[tuple[int, ...]]:
    words = pc.utf8_lower(view.read(part, ["word"])["word"])
    return [(int(row),) for row in np.flatnonzero(pc.is_in(words, pa.array(sorted(forms))).to_numpy())]


def _find_tokens(view: RowsOfView, part: Part, forms: set[str]) -> list[tuple[int, ...]]:
    """Words made of their pieces: adjacent rows with the same line, sentence and word_index."""
    table = view.read(part, ["token", "line", "sentence", "word_index"])
    tokens = pc.utf8_lower(table["token"])
    keys = np.stack([table[name].to_numpy() for name in ("line", "sentence", "word_index")])
    begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    ends = np.append(begins[1:], table.num_rows)
    prefixes = pa.array(sorted({form[:length] for form in forms for length in range(1, len(form) + 1)}))
    candidates = pc.is_in(tokens, prefixes).to_numpy()[begins]
    hits = []
    for begin, end in zip(begins[candidates].tolist(), ends[candidates].tolist(), strict=True):
        first, *more = tokens[begin:end].to_pylist()
        if first + "".join(piece.removeprefix("##") for piece in more) in forms:
            hits.append(tuple(range(begin, end)))
    return hits


def _occurrences(folder: RunFolder, view: RowsOfView, part: Part, hits: list[tuple[int, ...]]) -> Iterator[Occurrence]:
    columns = [name for name in ("file", "id", "line", "sentence", "start", "end", "text") if name in view.schema.names]
    firsts = view.read(part, columns, np.array([rows[0] for rows in hits])).to_pylist()
    ends = view.read(part, ["end"], np.array([rows[-1] for rows in hits]))["end"].to_pylist()
    keys = {(first["line"], first["sentence"]) for first in firsts}
    texts = {} if "text" in columns else _texts(folder, view, part, keys)
    for rows, first, end in zip(hits, firsts, ends, strict=True):
        text, origin = texts.get((first["line"], first["sentence"]), (first.get("text"), 0))
        span = None if text is None else _span(text, first["start"] - origin, end - origin)
        yield Occurrence(part, rows, location(first), text, span)


def _span(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The word's place; None if another word is there: in sentences and second texts of pairs offsets differ."""
    is_word = 0 <= start < end <= len(text) and not re.search(r"\s", text[start:end])
    cut = is_word and not (re.match(r"\w\w", text[start - 1 : start + 1]) or re.match(r"\w\w", text[end - 1 : end + 1]))
    return (start, end) if cut else None


def _texts(
    folder: RunFolder, view: RowsOfView, part: Part, keys: set[tuple[int, int]]
) -> dict[tuple[int, int], tuple[str, int]]:
    """(text, its offset in the record) by (line, sentence): from a view of texts, or joined from all tokens."""
    for texts in folder.of_level("text"):
        sibling = view.sibling_part(part, texts.name)
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
