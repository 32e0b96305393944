"""Texts cut by Hugging Face's tokenizers, from an encoder's tokenizer.json: byte-level BPE, Unigram and others.

Ids and places are the library's, but that a piece has the marks of its letters, too. The words are ours, because the
library has others for each tokenizer: runs of characters between white space, in which each punctuation mark, symbol
and emoji is a word by itself, and each character that the normalizer puts between spaces, or of a script without
spaces; where a piece covers the border of two words, they are one.
"""

from __future__ import annotations

import itertools
import unicodedata
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.transforms.encoders import SpecialTokens
from layerbeam.transforms.flow.blocks import BoolArray, Int64Array, row_of_each, row_splits_of
from layerbeam.transforms.panics import panics_as_errors
from layerbeam.transforms.tokenize.comparison import WITHOUT_SPACES, in_nfc, normalized
from layerbeam.transforms.tokenize.pieces import Pieces, UInt32Array, is_punctuation, join_texts

_SPACE, _ALONE, _LETTER, _MARK = range(4)
_JOINER = 0x200D  # between the parts of one emoji
_CODE_POINTS = 0x110000


class LibraryTokenizer:
    """A tokenizer of the library `tokenizers`: the same ids and places, and our words. One instance per thread."""

    def __init__(self, tokenizer: Any, special: SpecialTokens) -> None:
        self.special = special
        self._tokenizer = tokenizer
        self._kind = np.full(_CODE_POINTS, 255, np.uint8)

    @panics_as_errors()
    def tokenize(self, texts: pa.StringArray) -> Pieces:
        """The pieces of `texts`: string [T] without nulls. Special tokens in texts are as the tokenizer has them."""
        strings = texts.to_pylist()
        encodings = self._tokenizer.encode_batch(strings, add_special_tokens=False)
        row_splits = row_splits_of(np.array([len(encoding) for encoding in encodings], np.int64))
        row = row_of_each(row_splits)
        count = int(row_splits[-1])
        ids = np.fromiter(itertools.chain.from_iterable(encoding.ids for encoding in encodings), np.int32, count)
        spans = itertools.chain.from_iterable(itertools.chain.from_iterable(e.offsets for e in encodings))
        start, end = np.fromiter(spans, np.int64, 2 * count).reshape(-1, 2).T
        theirs = (-1 if word is None else word for encoding in encodings for word in encoding.word_ids)
        their_word = np.fromiter(theirs, np.int64, count)

        source, text_start = join_texts(strings)
        kind = self._kinds(source)
        start, end = _with_marks(start + text_start[row], end + text_start[row], kind)
        word_char = _word_chars(start, end, kind == _SPACE, row, their_word)
        word, begins, ends = _words(word_char, end, kind, source)
        joined = "\n".join(strings)
        form, forms = self._forms(pa.array([joined[a:b] for a, b in zip(begins, ends, strict=True)], pa.string()))
        first_word = np.searchsorted(begins, text_start)
        return Pieces(
            row_splits=row_splits,
            ids=ids,
            start=(start - text_start[row]).astype(np.int32),
            end=(end - text_start[row]).astype(np.int32),
            word_char=np.where(word < 0, -1, word_char - text_start[row]).astype(np.int32),
            word_index=np.where(word < 0, -1, word - first_word[row]).astype(np.int32),
            form=np.append(form, -1)[word].astype(np.int32),
            forms=forms,
        )

    def _forms(self, words: pa.StringArray) -> tuple[Int64Array, pa.StringArray]:
        """(the normalized form of each word, the distinct forms)."""
        words = words.dictionary_encode()
        normalizer = self._tokenizer.normalizer
        if normalizer is not None:
            forms = pa.array([normalized(normalizer, form) for form in words.dictionary.to_pylist()], pa.string())
            words = pa.DictionaryArray.from_arrays(words.indices, forms)
        return in_nfc(words)

    def _kinds(self, source: UInt32Array) -> Any:
        unseen = np.unique(source[self._kind[source] == 255])
        characters = map(chr, unseen.tolist())
        self._kind[unseen] = [_ALONE if self._is_spaced(c) else _kind(c) for c in characters]
        return self._kind[source]

    def _is_spaced(self, character: str) -> bool:
        """Whether the normalizer puts it between spaces, as BERT's does with Chinese characters."""
        normalizer = self._tokenizer.normalizer
        normal = "" if normalizer is None else normalizer.normalize_str(character)
        return len(normal) > 2 and normal[0] == " " == normal[-1]


def _kind(character: str) -> int:
    """White space, a character that is a word by itself, a letter of words, or a mark that belongs to what it follows.

    >>> [_kind(character) for character in "a1 \\u2028$-\\u4f60\\u20ac\\u0301"]
    [2, 2, 0, 0, 1, 1, 1, 1, 3]
    """
    if character.isspace():
        return _SPACE
    category = unicodedata.category(character)
    if character == "\u200b":  # a space without width
        return _ALONE
    if category[0] == "M" or category == "Cf" or "\U0001f3fb" <= character <= "\U0001f3ff":  # colours of skin
        return _MARK
    is_alone = category[0] == "S" or is_punctuation(character) or WITHOUT_SPACES.match(character)
    return _ALONE if is_alone else _LETTER


def _word_chars(
    start: Int64Array, end: Int64Array, is_space: BoolArray, row: Int64Array, their_word: Int64Array
) -> Any:
    """The first character of each piece that is not white space; -1 if there is none.

    A piece of white space that the library counts to the next piece's word, such as the `\\u2581` of Unigram before
    Chinese, has the next piece's word_char.
    """
    size = len(is_space)
    # The next character that is not white space: a running minimum from the end.
    following = np.append(np.where(is_space, size, np.arange(size)), size)
    following = np.minimum.accumulate(following[::-1])[::-1]
    word_char = following[start]
    is_empty = word_char >= end
    joins_next = np.zeros(len(start), bool)
    joins_next[:-1] = (
        is_empty[:-1] & (row[:-1] == row[1:]) & (their_word[:-1] == their_word[1:]) & (their_word[1:] >= 0)
    )
    word_char[is_empty] = -1
    for place in np.flatnonzero(joins_next)[::-1].tolist():
        word_char[place] = word_char[place + 1]
    return np.where(word_char < 0, -1, np.maximum.accumulate(word_char))


def _with_marks(start: Int64Array, end: Int64Array, kind: Any) -> tuple[Int64Array, Int64Array]:
    """The places of the pieces, each with the letters and marks next to it that no piece has.

    The library gives to a letter that the normalizer composed of several characters, or from which it took marks, the
    place of the first character only.
    """
    size = len(kind)
    covers = np.zeros(size + 1, np.int64)
    np.add.at(covers, start, 1)
    np.add.at(covers, end, -1)
    is_covered = np.cumsum(covers) > 0
    is_inside = np.append((kind == _LETTER) | (kind == _MARK), False)
    taken = np.flatnonzero(is_covered | ~is_inside)
    more_end = taken[np.searchsorted(taken, end)]
    more_start = np.append(-1, taken)[np.searchsorted(taken, start)] + 1
    # What is between two pieces belongs to the first one.
    is_first = ~is_covered[more_start - 1] | (more_start == 0)
    is_full = end > start
    return np.where(is_full & is_inside[start] & is_first, more_start, start), np.where(is_full, more_end, end)


def _words(word_char: Int64Array, end: Int64Array, kind: Any, source: UInt32Array) -> tuple[Int64Array, Any, Any]:
    """(the word of each piece, or -1; the first character, and the one after the last, of each word with pieces)."""
    size = len(kind)
    breaks = (kind == _SPACE) | (kind == _ALONE)
    is_first = breaks.copy()
    is_first[1:] |= breaks[:-1] & ((kind[1:] != _MARK) | (kind[:-1] == _SPACE))
    # Behind the marks of a character that is a word by itself, a letter begins another word.
    last_base = np.maximum.accumulate(np.where(kind == _MARK, 0, np.arange(size)))
    is_first[1:] |= (kind[1:] == _LETTER) & (kind[last_base[:-1]] == _ALONE)
    is_first[1:] &= (source[:-1] != _JOINER) | (kind[1:] == _SPACE)
    is_first[:1] = True
    has_word = word_char >= 0
    covers = np.zeros(size + 1, np.int64)  # how many pieces cover the border before each character
    np.add.at(covers, word_char[has_word] + 1, 1)
    np.add.at(covers, np.maximum(end, word_char + 1)[has_word], -1)
    is_first &= np.cumsum(covers)[:size] == 0
    firsts = np.flatnonzero(is_first)
    of_piece = np.searchsorted(firsts, word_char, side="right") - 1
    used, number = np.unique(of_piece[has_word], return_inverse=True)
    word = np.full(len(word_char), -1, np.int64)
    word[has_word] = number
    return word, firsts[used], np.append(firsts[1:], size)[used]
