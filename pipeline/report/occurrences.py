"""The occurrences of a word in a run: found in the columns beside the vectors, drawn by the seed, with their texts."""

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

MOST = 160
# Of a larger view so many rows are looked through, in parts drawn at random.
_SEARCH_ROWS = 5_000_000
_SEARCH_BYTES_OF_SLOW_FORMATS = 48 << 20


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """`rows`: of the part, those of its pieces; `text` None where the run kept none; `span`: of the word in it."""

    part: Part
    rows: tuple[int, ...]
    file: str = ""
    line: int = 0
    id: str | None = None
    text: str | None = None
    span: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Found:
    """`count` occurrences in so many rows of a view, and those of them that were drawn, in the order file, line."""

    view: RowsOfView
    occurrences: Sequence[Occurrence]
    count: int
    rows_searched: int

    def vectors(self, column: str) -> Array:
        """[n, W]: of a word of several pieces their mean."""
        out = []
        for part, of_part in _by_part(self.occurrences):
            rows = np.array(sorted({row for occurrence in of_part for row in occurrence.rows}))
            read = column_matrix(self.view.read(part, [column], rows)[column])
            out += [read[np.searchsorted(rows, occurrence.rows)].mean(axis=0) for occurrence in of_part]
        return np.stack(out)


def find_word(folder: RunFolder, word: str, seed: int) -> Found | None:
    """In the view with most layers that has the word; None where no view has words or tokens with their places."""
    views = [view for view in folder.of_level("word", "token") if view.has_places]
    found = None
    for view in sorted(views, key=lambda view: (-len(view.vectors), view.level != "word")):
        found = _search(view, word, seed)
        if found.count:
            occurrences = [
                o for part, some in _by_part(found.occurrences) for o in _with_texts(folder, view, part, some)
            ]
            return dataclasses.replace(found, occurrences=occurrences)
    return found


def _by_part(occurrences: Sequence[Occurrence]) -> list[tuple[Part, list[Occurrence]]]:
    parts: dict[Part, list[Occurrence]] = {}
    for occurrence in occurrences:
        parts.setdefault(occurrence.part, []).append(occurrence)
    return list(parts.items())


def _search(view: RowsOfView, word: str, seed: int) -> Found:
    forms = _forms(word)
    hits: list[tuple[Part, tuple[int, ...]]] = []
    searched = read = 0
    for part in view.random_parts():
        hits += [(part, rows) for rows in (_words if view.level == "word" else _tokens)(view, part, forms)]
        searched, read = searched + part.rows, read + part.bytes
        if searched >= _SEARCH_ROWS or (view.entry["format"] != "parquet" and read >= _SEARCH_BYTES_OF_SLOW_FORMATS):
            break
    order = {part: number for number, part in enumerate(view.parts)}
    hits.sort(key=lambda hit: (order[hit[0]], hit[1]))
    drawn = np.sort(np.random.default_rng([seed, *word.encode()]).permutation(len(hits))[:MOST])
    occurrences = [Occurrence(*hits[number]) for number in drawn]
    return Found(view, occurrences, len(hits), searched)


def _forms(word: str) -> set[str]:
    """In lower case, also without accents: the pieces of an encoder that lower-cases have none."""
    lower = word.lower()
    return {lower, "".join(c for c in unicodedata.normalize("NFD", lower) if unicodedata.category(c) != "Mn")}


def _words(view: RowsOfView, part: Part, forms: set[str]) -> list[tuple[int, ...]]:
    words = pc.utf8_lower(view.read(part, ["word"])["word"])
    return [(int(row),) for row in np.flatnonzero(pc.is_in(words, pa.array(sorted(forms))).to_numpy())]


def _tokens(view: RowsOfView, part: Part, forms: set[str]) -> list[tuple[int, ...]]:
    """Words by their pieces: neighbouring rows with one line, sentence and word_index."""
    table = view.read(part, ["token", "line", "sentence", "word_index"])
    tokens = pc.utf8_lower(table["token"])
    keys = np.stack([table[name].to_numpy() for name in ("line", "sentence", "word_index")])
    begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    ends = np.append(begins[1:], table.num_rows)
    starts = pa.array(sorted({form[:length] for form in forms for length in range(1, len(form) + 1)}))
    may_be = pc.is_in(tokens, starts).to_numpy()[begins]
    hits = []
    for begin, end in zip(begins[may_be], ends[may_be], strict=True):
        first, *more = tokens[int(begin) : int(end)].to_pylist()
        if first + "".join(piece.removeprefix("##") for piece in more) in forms:
            hits.append(tuple(range(int(begin), int(end))))
    return hits


def _with_texts(folder: RunFolder, view: RowsOfView, part: Part, some: list[Occurrence]) -> list[Occurrence]:
    own = [name for name in ("file", "id", "line", "sentence", "start", "end", "text") if name in view.schema.names]
    rows = np.array([occurrence.rows[0] for occurrence in some])
    ends = view.read(part, ["end"], np.array([occurrence.rows[-1] for occurrence in some]))["end"].to_pylist()
    keys = view.read(part, own, rows).to_pylist()
    texts = {} if "text" in own else _texts(folder, view, part, keys)
    done = []
    for occurrence, row, end in zip(some, keys, ends, strict=True):
        text, begins = (row["text"], 0) if "text" in own else texts.get((row["line"], row["sentence"]), (None, 0))
        span = None if text is None else _span(text, row["start"] - begins, end - begins)
        done.append(
            dataclasses.replace(occurrence, file=row["file"], line=row["line"], id=row.get("id"), text=text, span=span)
        )
    return done


def _span(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Where the word is; of a text that is a sentence, or the second of a pair, `start` counts from elsewhere."""
    is_word = 0 <= start < end <= len(text) and not re.search(r"\s", text[start:end])
    cut = is_word and not (re.match(r"\w\w", text[start - 1 : start + 1]) or re.match(r"\w\w", text[end - 1 : end + 1]))
    return (start, end) if cut else None


def _texts(
    folder: RunFolder, view: RowsOfView, part: Part, keys: list[dict[str, Any]]
) -> dict[tuple[int, int], tuple[str, int]]:
    """By (line, sentence): the text, from a view of texts or the tokens, and where in the record it begins."""
    wanted = {(row["line"], row["sentence"]) for row in keys}
    for texts in folder.of_level("text"):
        beside = view.beside(part, texts.name)
        if beside is not None:
            rows = texts.read(beside, ["line", "sentence", "text"]).to_pylist()
            return {key: (row["text"], 0) for row in rows if (key := (row["line"], row["sentence"])) in wanted}
    if view.level != "token" or not view.has_all_words:
        return {}
    table = view.read(part, ["line", "sentence", "start", "end", "token"])
    lines = pc.is_in(table["line"], pa.array(sorted({line for line, _ in wanted}), pa.int64()))
    pieces: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in table.filter(lines).to_pylist():
        if row["start"] >= 0 and (row["line"], row["sentence"]) in wanted:
            pieces.setdefault((row["line"], row["sentence"]), []).append(row)
    return {key: (_rebuilt(rows), rows[0]["start"]) for key, rows in pieces.items()}


def _rebuilt(rows: list[dict[str, Any]]) -> str:
    """A text as far as its tokens tell it, each at its place: spaces stand for what is between them."""
    text, begins = "", rows[0]["start"]
    for row in rows:
        length = row["end"] - row["start"]
        text = text.ljust(row["start"] - begins)
        text += row["token"].removeprefix("##")[:length].ljust(length)
    return text
