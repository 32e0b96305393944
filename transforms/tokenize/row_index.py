"""Which tokens each row of a view is made of: its tokens, words or texts; all of them, or some words only.

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
    Int8Array,
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

# What `Rows.counts` counts, each with the view's name behind a colon.
LOST_WORDS = "words_lost"  # some of their tokens are over max_seq_length
EMPTY_WORDS = "words_empty"  # nothing is left of them after cleaning
KEPT_WORDS = "kept_word"  # with the view and the form: how often a form of keep_words got rows

# What BERT takes for white space.
_SPACES = np.array([c for c in range(0x3001) if normalize_character(chr(c), False) == " "], np.uint32)


@dataclasses.dataclass
class _Found:
    """The W words of a block: of which text, their tokens, the first of which is `first`; all of them kept or not."""

    text: Int64Array
    segment: Int8Array
    first: Int64Array
    count: Int64Array
    start: Int32Array
    end: Int32Array
    word_index: Int32Array
    form: Int32Array
    forms: pa.StringArray
    is_cut: BoolArray
    lost_forms: Int32Array
    """Forms of the words of which tokens were cut off, each word once."""


class KeepWords:
    """The forms that a view keeps, as the encoder normalizes them."""

    def __init__(self, view: View, wordpiece: WordPiece) -> None:
        self.given = view.keep_words or ()
        self._match_case = view.match_case
        pieces = wordpiece.tokenize(pa.array(self.given, pa.string()))
        words = pieces.forms.take(pa.array(pieces.form)).to_pylist()
        self._place: dict[str, int] = {}
        # Forms that are one to the encoder (`bank`, `Bank`) are found as the first of them and counted for all.
        self.alike: dict[int, list[str]] = {}
        for index, (begin, end) in enumerate(zip(pieces.row_splits[:-1], pieces.row_splits[1:], strict=True)):
            of_form = dict(zip(pieces.word_index[begin:end].tolist(), words[begin:end], strict=True))
            place = self._place.setdefault("".join(of_form.values()).lower(), index)
            self.alike.setdefault(index if self._match_case else place, []).append(self.given[index])

    def find(self, words: _Found, texts: TextBlock) -> Int32Array:
        """Of each word the index in `given` of the form that it is, -1 for none."""
        place = np.array([self._place.get(form.lower(), -1) for form in words.forms.to_pylist()], np.int32)
        found = place[words.form] if len(place) else np.full(len(words.form), -1, np.int32)
        if self._match_case:
            exact = {form: index for index, form in enumerate(self.given)}
            candidates = np.flatnonzero(found >= 0)
            own = own_characters(
                texts,
                words.text[candidates],
                words.segment[candidates],
                words.start[candidates],
                words.end[candidates],
            )
            found[candidates] = [exact.get(word, -1) for word in own]
        return found

    def matches(self, forms: pa.StringArray) -> BoolArray:
        """Which of these forms are kept, without regard to case."""
        return np.array([form.lower() in self._place for form in forms.to_pylist()], bool)


def keep_words_of(views: Iterable[View], wordpiece: WordPiece) -> dict[str, KeepWords]:
    """Of each view that keeps some words only, by its name, which."""
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
    of_rows = Words(
        start=words.start[chosen],
        end=words.end[chosen],
        word_index=words.word_index[chosen],
        form=words.form[chosen],
        segment=words.segment[chosen],
        forms=words.forms,
    )
    return Rows(words.text[chosen], positions, splits, of_rows, counts)


def _tokens_of(words: _Found, chosen: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(tokens of these words, one word after the other, where each begins among them and the last ends)."""
    splits = row_splits_of(words.count[chosen])
    return np.repeat(words.first[chosen] - splits[:-1], words.count[chosen]) + np.arange(splits[-1]), splits


def _count(view: View, words: _Found, kept: Int32Array, keep: KeepWords | None) -> dict[str, int]:
    """What is lost of the view's words, and how often each form that is kept comes."""
    lost, empty = len(words.lost_forms), int(((words.count == 0) & ~words.is_cut).sum())
    if keep is not None:
        lost, empty = int(keep.matches(words.forms)[words.lost_forms].sum()), 0
    counts = {f"{LOST_WORDS}:{view.name}": lost, f"{EMPTY_WORDS}:{view.name}": empty}
    if keep is not None:
        whole = kept[(kept >= 0) & ~words.is_cut]
        for index, count in zip(*np.unique(whole, return_counts=True), strict=True):
            for form in keep.alike[int(index)]:
                counts[f"{KEPT_WORDS}:{view.name}:{form}"] = int(count)
    return {name: count for name, count in counts.items() if count}


def _find(view: View, tokens: TokenBlock) -> _Found:
    return _whitespace_words(tokens) if view.words == "whitespace" else _basic_words(tokens)


def _key(text: npt.ArrayLike, segment: npt.ArrayLike, value: npt.ArrayLike) -> Int64Array:
    """Ordered as (text, segment, value)."""
    high = np.asarray(text, np.int64) * 2 + np.asarray(segment, np.int64)
    key: Int64Array = (high << 32) + np.asarray(value, np.int64)
    return key


def _basic_words(tokens: TokenBlock) -> _Found:
    """BERT's basic tokens: a run of tokens with one `word_index`."""
    real = np.flatnonzero(tokens.start >= 0)
    text = row_of_each(tokens.row_splits)[real]
    key = _key(text, 0, tokens.word_index[real])
    begins = np.flatnonzero(np.diff(key, prepend=-1) != 0)
    first = real[begins]
    lost, places = np.unique(_key(tokens.dropped.text, 0, tokens.dropped.word_index), return_index=True)
    return _Found(
        text=text[begins],
        segment=tokens.segment_ids[first],
        first=first,
        count=np.diff(np.append(begins, len(real))),
        start=np.minimum.reduceat(tokens.start[real], begins) if len(begins) else tokens.start[:0],
        end=np.maximum.reduceat(tokens.end[real], begins) if len(begins) else tokens.end[:0],
        word_index=tokens.word_index[first],
        form=tokens.form[first],
        forms=tokens.forms,
        is_cut=np.isin(key[begins], lost),
        lost_forms=tokens.dropped.form[places],
    )


def _whitespace_words(tokens: TokenBlock) -> _Found:
    """What stands between white space, of a corpus that is tokenized already; it may be several of BERT's words."""
    block = tokens.text
    spans = [_spans(block.texts, block.offset, 0)]
    if block.pairs is not None and block.pair_offset is not None:
        spans.append(_spans(block.pairs.fill_null(""), block.pair_offset, 1))
    key, end = (np.concatenate(columns) for columns in zip(*spans, strict=True))
    order = np.argsort(key, kind="stable")
    key, end = key[order], end[order]
    text, start = key >> 33, (key & 0xFFFFFFFF).astype(np.int32)
    real = np.flatnonzero(tokens.start >= 0)
    token_text = row_of_each(tokens.row_splits)[real]
    of_token = np.searchsorted(key, _key(token_text, tokens.segment_ids[real], tokens.start[real]), side="right") - 1
    count = np.bincount(of_token, minlength=len(key))
    first = np.zeros(len(key), np.int64)
    first[of_token[::-1]] = real[::-1]
    dropped = tokens.dropped
    of_dropped = np.searchsorted(key, _key(dropped.text, dropped.segment, dropped.start), side="right") - 1
    is_cut = np.zeros(len(key), bool)
    is_cut[of_dropped] = True
    # A word's form is its basic words' joined; those cut off belong to it as much.
    parts: list[dict[int, int]] = [{} for _ in range(len(key))]
    places = zip(of_token.tolist(), tokens.word_index[real].tolist(), tokens.form[real].tolist(), strict=True)
    for word, index, form in places:
        parts[word][index] = form
    for word, index, form in zip(of_dropped.tolist(), dropped.word_index.tolist(), dropped.form.tolist(), strict=True):
        parts[word][index] = form
    strings = tokens.forms.to_pylist()
    joined = pa.array(["".join(strings[form] for form in part.values()) for part in parts], pa.string())
    encoded = joined.dictionary_encode()
    form = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    begins = np.searchsorted(text, np.arange(len(tokens.num_dropped)))
    return _Found(
        text=text,
        segment=(key >> 32 & 1).astype(np.int8),
        first=first,
        count=count,
        start=start,
        end=end,
        word_index=(np.arange(len(key)) - begins[text]).astype(np.int32),
        form=form,
        forms=encoded.dictionary,
        is_cut=is_cut,
        lost_forms=form[is_cut],
    )


def _spans(texts: pa.StringArray, offset: Int32Array, segment: int) -> tuple[Int64Array, Int32Array]:
    """(key of the start, end) of each run without white space, in code points of the record."""
    source = np.frombuffer("\n".join(texts.to_pylist()).encode("utf-32-le"), np.uint32)
    lengths = pc.utf8_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
    begin = np.cumsum(lengths + 1) - (lengths + 1)
    is_word = np.concatenate([[False], ~np.isin(source, _SPACES), [False]])
    edges = np.flatnonzero(np.diff(is_word))
    starts, ends = edges[::2], edges[1::2]
    text = np.searchsorted(begin, starts, side="right") - 1
    shift = offset[text] - begin[text]
    return _key(text, segment, starts + shift), (ends + shift).astype(np.int32)
