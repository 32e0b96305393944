"""The tokens of each row of a view: a row is a token, a word or a text; `keep_words` selects some words.

Shapes as in `layerbeam.transforms.blocks`; W words, R rows of a view.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.blocks import (
    BoolArray,
    Int32Array,
    Int64Array,
    Rows,
    TextBlock,
    TokenBlock,
    Words,
    row_of_each,
    row_splits_of,
)
from layerbeam.transforms.columns import own_characters
from layerbeam.transforms.tokenize.wordpiece import WordPiece, normalize_character
from layerbeam.transforms.views import View

# Names in `Rows.counts`; a colon and the name of the view follow.
LOST_WORDS = "words_lost"  # words with tokens cut off at max_seq_length
EMPTY_WORDS = "words_empty"  # words that normalize to nothing
KEPT_WORDS = "kept_word"  # rows of a form of keep_words; another colon and the form follow

# BERT's white space.
_SPACES = np.array([c for c in range(0x3001) if normalize_character(chr(c), False) == " "], np.uint32)


@dataclasses.dataclass
class _WordIndex:
    """The W words of a block, kept or not: text, first token and token count.

    `is_cut`: tokens of the word were cut off. `lost_forms`: the form of each such word.
    """

    text: Int64Array
    first: Int64Array
    count: Int64Array
    places: Words
    is_cut: BoolArray
    lost_forms: Int32Array


class KeepWords:
    """The forms that a view keeps, as the encoder normalizes them."""

    def __init__(self, view: View, wordpiece: WordPiece) -> None:
        self.given = view.keep_words or ()
        self._match_case = view.match_case
        pieces = wordpiece.tokenize(pa.array(self.given, pa.string()))
        words = pieces.forms.take(pa.array(pieces.form)).to_pylist()
        self._place: dict[str, int] = {}
        # Forms equal to the encoder (`bank`, `Bank`) are found as the first of them and counted for all of them.
        self.alike: dict[int, list[str]] = {}
        for index, (begin, end) in enumerate(zip(pieces.row_splits[:-1], pieces.row_splits[1:], strict=True)):
            of_form = dict(zip(pieces.word_index[begin:end].tolist(), words[begin:end], strict=True))
            place = self._place.setdefault("".join(of_form.values()).lower(), index)
            self.alike.setdefault(index if self._match_case else place, []).append(self.given[index])

    def find(self, words: _WordIndex, texts: TextBlock) -> Int32Array:
        """For each word the index of its form in `given`, -1 if it is not kept."""
        places = words.places
        index = np.array([self._place.get(form.lower(), -1) for form in places.forms.to_pylist()], np.int32)
        found = index[places.form] if len(index) else np.full(len(places.form), -1, np.int32)
        if self._match_case:
            exact = {form: index for index, form in enumerate(self.given)}
            candidates = np.flatnonzero(found >= 0)
            chosen = places.take(candidates)
            own = own_characters(texts, words.text[candidates], chosen.segment, chosen.start, chosen.end)
            found[candidates] = [exact.get(word, -1) for word in own]
        return found

    def matches(self, forms: pa.StringArray) -> BoolArray:
        """Which of these forms are kept, ignoring case."""
        return np.array([form.lower() in self._place for form in forms.to_pylist()], bool)


def keep_words_of(views: Iterable[View], wordpiece: WordPiece) -> dict[str, KeepWords]:
    """{name: kept words} for the views that have `keep_words`."""
    return {view.name: KeepWords(view, wordpiece) for view in views if view.keep_words is not None}


def rows_of(view: View, tokens: TokenBlock, keep: KeepWords | None = None) -> Rows:
    """The rows of a view in a block."""
    if view.has_word_rows:
        return _word_rows(view, tokens, keep)
    if view.level == "token":
        return _token_rows(view, tokens, keep)
    return _text_rows(view, tokens)


def _token_rows(view: View, tokens: TokenBlock, keep: KeepWords | None) -> Rows:
    counts: dict[str, int] = {}
    if keep is not None:
        words = _find(view, tokens)
        kept = keep.find(words, tokens.text)
        counts = _count(view, words, kept, keep)
        positions, _ = _tokens_of(words, np.flatnonzero(kept >= 0))
    elif view.special_tokens:
        positions = np.arange(len(tokens.token_ids))
    else:
        positions = np.flatnonzero(tokens.start >= 0)
    text = row_of_each(tokens.row_splits)[positions]
    return Rows(text, positions, np.arange(len(positions) + 1), counts=counts)


def _text_rows(view: View, tokens: TokenBlock) -> Rows:
    texts = len(tokens.num_dropped)
    if view.level == "text" and view.pooling in ("cls", "pooler"):
        return Rows(np.arange(texts), tokens.row_splits[:-1], np.arange(texts + 1))
    if view.special_tokens:
        return Rows(np.arange(texts), np.arange(len(tokens.token_ids)), tokens.row_splits)
    positions = np.flatnonzero(tokens.start >= 0)
    return Rows(np.arange(texts), positions, np.searchsorted(positions, tokens.row_splits))


def _word_rows(view: View, tokens: TokenBlock, keep: KeepWords | None) -> Rows:
    words = _find(view, tokens)
    kept = np.zeros(len(words.text), np.int32) if keep is None else keep.find(words, tokens.text)
    counts = _count(view, words, kept, keep)
    chosen = np.flatnonzero((kept >= 0) & ~words.is_cut & (words.count > 0))
    positions, splits = _tokens_of(words, chosen)
    return Rows(words.text[chosen], positions, splits, words.places.take(chosen), counts)


def _tokens_of(words: _WordIndex, chosen: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(tokens of these words, one word after the other; row splits of the words)."""
    splits = row_splits_of(words.count[chosen])
    return np.repeat(words.first[chosen] - splits[:-1], words.count[chosen]) + np.arange(splits[-1]), splits


def _count(view: View, words: _WordIndex, kept: Int32Array, keep: KeepWords | None) -> dict[str, int]:
    """Counts of the view's lost and empty words and, with `keep_words`, of each kept form."""
    lost, empty = len(words.lost_forms), int(((words.count == 0) & ~words.is_cut).sum())
    if keep is not None:
        lost, empty = int(keep.matches(words.places.forms)[words.lost_forms].sum()), 0
    counts = {f"{LOST_WORDS}:{view.name}": lost, f"{EMPTY_WORDS}:{view.name}": empty}
    if keep is not None:
        whole = kept[(kept >= 0) & ~words.is_cut]
        for index, count in zip(*np.unique(whole, return_counts=True), strict=True):
            for form in keep.alike[int(index)]:
                counts[f"{KEPT_WORDS}:{view.name}:{form}"] = int(count)
    return {name: count for name, count in counts.items() if count}


def _find(view: View, tokens: TokenBlock) -> _WordIndex:
    return _whitespace_words(tokens) if view.words == "whitespace" else _basic_words(tokens)


def _key(text: npt.ArrayLike, segment: npt.ArrayLike, value: npt.ArrayLike) -> Int64Array:
    """A number for each (text, segment, value) that sorts like the triple; value is not negative."""
    high = np.asarray(text, np.int64) * 2 + np.asarray(segment, np.int64)
    key: Int64Array = (high << 32) + np.asarray(value, np.int64)
    return key


def _basic_words(tokens: TokenBlock) -> _WordIndex:
    """The words that are BERT's basic tokens: runs of tokens with one `word_index`."""
    real = np.flatnonzero(tokens.start >= 0)
    text = row_of_each(tokens.row_splits)[real]
    key = _key(text, 0, tokens.word_index[real])
    begins = np.flatnonzero(np.diff(key, prepend=-1) != 0)
    first = real[begins]
    lost, places = np.unique(_key(tokens.dropped.text, 0, tokens.dropped.word_index), return_index=True)
    return _WordIndex(
        text=text[begins],
        first=first,
        count=np.diff(np.append(begins, len(real))),
        places=Words(
            start=np.minimum.reduceat(tokens.start[real], begins) if len(begins) else tokens.start[:0],
            end=np.maximum.reduceat(tokens.end[real], begins) if len(begins) else tokens.end[:0],
            word_index=tokens.word_index[first],
            form=tokens.form[first],
            segment=tokens.segment_ids[first],
            forms=tokens.forms,
        ),
        is_cut=np.isin(key[begins], lost),
        lost_forms=tokens.dropped.form[places],
    )


@dataclasses.dataclass
class _Spans:
    """Runs of characters between white space, ordered by (text, segment, start). `start`, `end`: in the record."""

    text: Int64Array
    segment: Int64Array
    start: Int64Array
    end: Int64Array

    def find(self, text: npt.ArrayLike, segment: npt.ArrayLike, start: npt.ArrayLike) -> Int64Array:
        """The index of the run that holds each of these places."""
        runs = _key(self.text, self.segment, self.start)
        return np.searchsorted(runs, _key(text, segment, start), side="right") - 1


def _whitespace_words(tokens: TokenBlock) -> _WordIndex:
    """The words between white space, for a corpus that is tokenized already; BERT may cut them into several."""
    spans = _find_spans(tokens.text)
    num_words = len(spans.text)
    real = np.flatnonzero(tokens.start >= 0)
    text = row_of_each(tokens.row_splits)[real]
    word = spans.find(text, tokens.segment_ids[real], tokens.start[real])
    first = np.zeros(num_words, np.int64)
    first[word[::-1]] = real[::-1]
    dropped = tokens.dropped
    cut_word = spans.find(dropped.text, dropped.segment, dropped.start)
    is_cut = np.zeros(num_words, bool)
    is_cut[cut_word] = True
    joined = _join_forms(
        num_words,
        np.concatenate([word, cut_word]),
        np.concatenate([tokens.word_index[real], dropped.word_index]),
        tokens.forms.take(pa.array(np.concatenate([tokens.form[real], dropped.form]))),
    ).dictionary_encode()
    form = joined.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    first_of_text = np.searchsorted(spans.text, np.arange(len(tokens.num_dropped)))
    return _WordIndex(
        text=spans.text,
        first=first,
        count=np.bincount(word, minlength=num_words),
        places=Words(
            start=spans.start.astype(np.int32),
            end=spans.end.astype(np.int32),
            word_index=(np.arange(num_words) - first_of_text[spans.text]).astype(np.int32),
            form=form,
            segment=spans.segment.astype(np.int8),
            forms=joined.dictionary,
        ),
        is_cut=is_cut,
        lost_forms=form[is_cut],
    )


def _join_forms(num_words: int, word: Int64Array, part: Int32Array, forms: pa.StringArray) -> pa.StringArray:
    """The form of each word: the forms of its parts joined in order, "" for a word without parts.

    `word`, `part`, `forms`: of each token. The tokens of one part have the same form, which counts once.
    """
    order = np.lexsort((part, word))
    word, part = word[order], part[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(word) != 0) | (np.diff(part) != 0)
    splits = row_splits_of(np.bincount(word[is_first], minlength=num_words)).astype(np.int32)
    parts = pa.ListArray.from_arrays(pa.array(splits), forms.take(pa.array(order[is_first])))
    return pc.binary_join(parts, "")


def _find_spans(block: TextBlock) -> _Spans:
    """The runs without white space in all texts of a block."""
    sides = [_spans_of(block.texts, block.offset)]
    if block.pairs is not None and block.pair_offset is not None:
        sides.append(_spans_of(block.pairs.fill_null(""), block.pair_offset))
    text, start, end = (np.concatenate(columns) for columns in zip(*sides, strict=True))
    segment = np.repeat(np.arange(len(sides)), [len(side[0]) for side in sides])
    order = np.lexsort((segment, text))  # stable: within a text, starts ascend
    return _Spans(text[order], segment[order], start[order], end[order])


def _spans_of(texts: pa.StringArray, offset: Int32Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(text, start, end) of each run without white space, in code points of the record."""
    source = np.frombuffer("\n".join(texts.to_pylist()).encode("utf-32-le"), np.uint32)
    lengths = pc.utf8_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
    begin = np.cumsum(lengths + 1) - (lengths + 1)
    is_word = np.concatenate([[False], ~np.isin(source, _SPACES), [False]])
    edges = np.flatnonzero(np.diff(is_word))
    starts, ends = edges[::2], edges[1::2]
    text = np.searchsorted(begin, starts, side="right") - 1
    shift = offset[text] - begin[text]
    return text, starts + shift, ends + shift
