"""The occurrences of a word in a run: found in the columns next to the vectors, sampled by the seed, with their texts."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    file: str = ""
    line: int = 0
    id: str | None = None
    text: str | None = None
    span: tuple[int, int] | None = None


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
        for part, occurrences in _by_part(self.occurrences):
            rows = np.array(sorted({row for occurrence in occurrences for row in occurrence.rows}))
            read = column_matrix(self.view.read(part, [column], rows)[column])
            means += [read[np.searchsorted(rows, occurrence.rows)].mean(axis=0) for occurrence in occurrences]
        return np.stack(means)


def find_word(folder: RunFolder, word: str, seed: int) -> WordSearch | None:
    """Search the views, most layers first, until one has the word; None if no view has words or tokens with offsets."""
    views = [view for view in folder.of_level("word", "token") if view.has_places]
    search = None
    for view in sorted(views, key=lambda view: (-len(view.vectors), view.level != "word")):
        search = _search(view, word, seed)
        if search.count:
            occurrences = [
                occurrence
                for part, found in _by_part(search.occurrences)
                for occurrence in _with_texts(folder, view, part, found)
            ]
            return dataclasses.replace(search, occurrences=occurrences)
    return search


def _by_part(occurrences: Sequence[Occurrence]) -> list[tuple[Part, list[Occurrence]]]:
    parts: dict[Part, list[Occurrence]] = {}
    for occurrence in occurrences:
        parts.setdefault(occurrence.part, []).append(occurrence)
    return list(parts.items())


def _search(view: RowsOfView, word: str, seed: int) -> WordSearch:
    forms = _forms(word)
    find = _find_words if view.level == "word" else _find_tokens
    hits: list[tuple[Part, tuple[int, ...]]] = []
    rows = read = 0
    for part in view.random_parts():
        hits += [(part, found) for found in find(view, part, forms)]
        rows, read = rows + part.rows, read + part.bytes
        if rows >= _SEARCH_ROWS or (view.entry["format"] != "parquet" and read >= _SEARCH_BYTES_OF_SLOW_FORMATS):
            break
    order = {part: number for number, part in enumerate(view.parts)}
    hits.sort(key=lambda hit: (order[hit[0]], hit[1]))
    drawn = np.sort(np.random.default_rng([seed, *word.encode()]).permutation(len(hits))[:_MAX_OCCURRENCES])
    return WordSearch(view, [Occurrence(*hits[number]) for number in drawn], len(hits), rows)


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


def _with_texts(folder: RunFolder, view: RowsOfView, part: Part, found: list[Occurrence]) -> list[Occurrence]:
    columns = [name for name in ("file", "id", "line", "sentence", "start", "end", "text") if name in view.schema.names]
    rows = view.read(part, columns, np.array([occurrence.rows[0] for occurrence in found])).to_pylist()
    ends = view.read(part, ["end"], np.array([occurrence.rows[-1] for occurrence in found]))["end"].to_pylist()
    keys = {(row["line"], row["sentence"]) for row in rows}
    texts = {} if "text" in columns else _texts(folder, view, part, keys)
    complete = []
    for occurrence, row, end in zip(found, rows, ends, strict=True):
        text, begin = (row["text"], 0) if "text" in row else texts.get((row["line"], row["sentence"]), (None, 0))
        span = None if text is None else _span(text, row["start"] - begin, end - begin)
        place = {"file": row["file"], "line": row["line"], "id": row.get("id")}
        complete.append(dataclasses.replace(occurrence, **place, text=text, span=span))
    return complete


def _span(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The word's place, or None if it is not there: in a sentence or the second of a pair `start` has another origin."""
    is_word = 0 <= start < end <= len(text) and not re.search(r"\s", text[start:end])
    cut = is_word and not (re.match(r"\w\w", text[start - 1 : start + 1]) or re.match(r"\w\w", text[end - 1 : end + 1]))
    return (start, end) if cut else None


def _texts(
    folder: RunFolder, view: RowsOfView, part: Part, keys: set[tuple[int, int]]
) -> dict[tuple[int, int], tuple[str, int]]:
    """(text, its offset in the record) by (line, sentence): from a view of texts, or joined from all tokens."""
    for texts in folder.of_level("text"):
        sibling = view.beside(part, texts.name)
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
