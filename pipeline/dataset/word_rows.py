"""The rows of a word in a view, found by the word's characters in the texts, and compared as `keep_words` are."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.dataset.reader import Run
from layerbeam.pipeline.dataset.row_texts import RowText, place_of, text_views
from layerbeam.pipeline.dataset.view import View
from layerbeam.pipeline.output.normalizer import load_comparison
from layerbeam.transforms.flow.commits import Part

_PLACE = ("file", "line", "sentence")
Rows = npt.NDArray[np.integer[Any]]


class WordRows:
    """A word in a run. `seen`: the words of the texts that were compared with it.

    `lacks_texts`: whether tokens were passed over, because their texts cannot be read.
    """

    def __init__(self, run: Run, word: str) -> None:
        self._run = run
        self._comparison = load_comparison(next(iter(run.members)), run.manifest["encoder"])
        self._key = self._comparison.key(word)
        self._known: dict[str, bool] = {}
        self.lacks_texts = False

    @property
    def seen(self) -> list[str]:
        return list(self._known)

    def is_word(self, word: str) -> bool:
        """Whether characters of a text are the word."""
        found = self._known.get(word)
        if found is None:
            found = self._known[word] = self._comparison.key(word) == self._key
        return found

    def find(self, view: View, part: Part, rows: Rows | None = None) -> list[tuple[int, ...]]:
        """Each occurrence in a part, or in some of its rows: one row, or in a view of tokens those of its pieces.

        Tokens are found in texts that a view has, or that can be read again from the input files.
        """
        if view.level == "token":
            return [found for found, word in self._words_of_tokens(view, part, rows) if self.is_word(word)]
        words = pc.dictionary_encode(view.read(part, ["word"], rows)["word"]).combine_chunks()
        is_word = np.array([self.is_word(word) for word in words.dictionary.to_pylist()], bool)
        found = np.flatnonzero(is_word[words.indices.to_numpy(zero_copy_only=False)])
        return [(row,) for row in (found if rows is None else rows[found]).tolist()]

    def _words_of_tokens(self, view: View, part: Part, rows: Rows | None) -> Iterator[tuple[tuple[int, ...], str]]:
        """(the rows, the characters) of each word: adjacent rows of one text with the same word_index."""
        table = view.read(part, [*_PLACE, "segment_id", "word_index", "start", "end"], rows)
        files = pc.dictionary_encode(table["file"]).combine_chunks()
        names = ("line", "sentence", "segment_id", "word_index")
        keys = np.stack([files.indices.to_numpy(), *(table[name].to_numpy() for name in names)])
        begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: table.num_rows])
        start, end = (table[name].to_numpy() for name in ("start", "end"))
        last = np.maximum.reduceat(end, begins) if len(begins) else begins
        numbers = range(part.rows) if rows is None else rows.tolist()
        of_files, texts = files.dictionary.to_pylist(), PartTexts(self._run, part)
        bounds = zip(begins.tolist(), [*begins[1:].tolist(), table.num_rows], last.tolist(), strict=True)
        for begin, stop, until in bounds:
            file, line, sentence, segment, word = keys[:, begin].tolist()
            if word < 0:
                continue
            text = texts.find(of_files[file], line, sentence, segment)
            if text is None:
                self.lacks_texts = True
            else:
                own = text.text[start[begin] - text.start : until - text.start]
                yield tuple(numbers[begin:stop]), own.strip()


LACKS_TEXTS = (
    "its texts are not known: no view has them, and the input files are missing, or have changed; add a view of level "
    "text or word"
)


class PartTexts:
    """The texts of a part's block: those of a view of texts, else the records of the input files."""

    def __init__(self, run: Run, part: Part) -> None:
        self._run, self._block = run, run.block_of(part)
        self._rows: dict[tuple[str, int, int], RowText] | None = None
        self._records: dict[int, dict[tuple[str, int], str]] = {}
        for view in text_views(run):
            sibling = run.same_texts(part, view.name)
            if sibling is not None:
                rows = view.read(sibling, [*_PLACE, "text", "start"]).to_pylist()
                self._rows = {place_of(row): RowText(row["text"], row["start"]) for row in rows}
                break

    def find(self, file: str, line: int, sentence: int, segment: int) -> RowText | None:
        """The text at a place; `segment` 1: the second one of a pair, which no view has. None if it cannot be read."""
        if self._rows is not None and segment == 0:
            return self._rows.get((file, line, sentence))
        if segment not in self._records:
            self._records[segment] = {}
            with contextlib.suppress(OSError):  # missing, or changed since
                if self._block is not None:
                    self._records[segment] = self._run.record_texts(self._block, pairs=segment == 1)
        record = self._records[segment].get((file, line))
        return None if record is None else RowText(record, 0)


def same_words(run: Run, view: View) -> Callable[[str], pa.Array]:
    """What gives the spellings in a view of words that count as a word. The view's words are read once, if at all."""
    comparison = load_comparison(next(iter(run.members)), run.manifest["encoder"])

    @functools.cache
    def spellings() -> dict[str, list[str]]:
        of_parts = (view.read(part, ["word"])["word"] for part in view.parts)
        words = sorted({word for column in of_parts for word in pc.unique(column).to_pylist()})
        return {key: list(same) for key, same in itertools.groupby(sorted(words, key=comparison.key), comparison.key)}

    return lambda word: pa.array(spellings().get(comparison.key(word), []), pa.string())
