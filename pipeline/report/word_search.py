"""A word in the rows of a run: its occurrences, with their texts and vectors."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from layerbeam.pipeline.dataset.row_texts import place_of
from layerbeam.pipeline.dataset.word_rows import PartTexts, WordRows
from layerbeam.pipeline.report.context import PLACE, ReportContext, SampledView, to_matrix
from layerbeam.pipeline.report.stats import Array
from layerbeam.transforms.flow.commits import Part

_MAX_OCCURRENCES = 160
# Of a larger view, random parts with about this many rows are searched, or fewer if the file is read whole.
_SEARCH_ROWS = 5_000_000


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """`rows`: of its pieces, in the part; `place`: file, line, sentence and id, if there is one; `span`: of the word.

    `word_index`: in its text. `text` is None if the run kept none. `label`: the value of the column to colour by.
    """

    part: Part
    rows: tuple[int, ...]
    place: Mapping[str, Any]
    word_index: int
    text: str | None
    span: tuple[int, int] | None
    label: Any


@dataclasses.dataclass(frozen=True)
class WordSearch:
    """`count` occurrences in the rows searched, and a sample of them in the order file, line.

    `words`: those seen; `lacks_texts`: as of `WordRows`.
    """

    view: SampledView
    occurrences: Sequence[Occurrence]
    count: int
    rows_searched: int
    words: Sequence[str]
    lacks_texts: bool

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
    for view in sorted(views, key=lambda view: (-len(view.vectors), not view.has_all_words, view.level != "word")):
        named = WordRows(context.run, word)
        hits, rows_searched = _search(view, named)
        drawn = np.sort(np.random.default_rng([context.seed, *word.encode()]).permutation(len(hits))[:_MAX_OCCURRENCES])
        by_part = itertools.groupby((hits[number] for number in drawn), lambda hit: hit[0])
        found = [_occurrences(context, named, view, part, [rows for _, rows in of_part]) for part, of_part in by_part]
        shown = list(itertools.chain(*found))
        search = WordSearch(view, shown, len(hits), rows_searched, named.seen, named.lacks_texts)
        if hits:
            return search
        missing.append(search)
    return max(missing, key=lambda search: search.view.has_all_words, default=None)


def _search(view: SampledView, word: WordRows) -> tuple[list[tuple[Part, tuple[int, ...]]], int]:
    """(part and rows of each occurrence, in the order file, line; number of rows searched)."""
    format_ = view.file_format
    hits: dict[Part, list[tuple[int, ...]]] = {}
    rows = read = 0
    for part in view.random_parts():
        hits[part] = word.find(view, part)
        rows, read = rows + part.rows, read + part.bytes
        if rows >= _SEARCH_ROWS or (not format_.is_columnar and read >= format_.sample_bytes):
            break
    return [(part, found) for part in view.parts for found in hits.get(part, [])], rows


def _occurrences(
    context: ReportContext, word: WordRows, view: SampledView, part: Part, hits: list[tuple[int, ...]]
) -> Iterator[Occurrence]:
    color_by = context.color_by or "file"
    columns = view.existing(*dict.fromkeys((*PLACE, "word_index", "start", "end", "text", color_by)))
    firsts = view.read(part, columns, np.array([rows[0] for rows in hits])).to_pylist()
    ends = view.read(part, ["end"], np.array([rows[-1] for rows in hits]))["end"].to_pylist()
    texts = PartTexts(context.run, part)
    for rows, first, end in zip(hits, firsts, ends, strict=True):
        text, origin = texts.find(*place_of(first), 0) or (first.get("text"), 0)
        start, stop = first["start"] - origin, end - origin
        # Places in the second text of a pair are not those of the text that is shown.
        is_there = text is not None and 0 <= start < stop and word.is_word(text[start:stop].strip())
        place = {name: first[name] for name in PLACE if name in first}
        span = (start, stop) if is_there else None
        yield Occurrence(part, rows, place, first["word_index"], text, span, first.get(color_by))
