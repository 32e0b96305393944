"""The tokens of each row of a view: a row is a token, a word or a text; `keep_words` selects some words.

Shapes as in `layerbeam.transforms.flow.blocks`; W words, R rows of a view.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import (
    BoolArray,
    Int32Array,
    Int64Array,
    Rows,
    TextBlock,
    TokenBlock,
    Words,
    row_of_each,
    row_splits_of,
    token_positions,
)
from layerbeam.transforms.tokenize.comparison import WITHOUT_SPACES, key_of_form, nfc, word_parts
from layerbeam.transforms.tokenize.pieces import TextTokenizer, join_texts
from layerbeam.transforms.tokenize.wordpiece import normalize_character
from layerbeam.transforms.views.columns import own_characters
from layerbeam.transforms.views.view import ViewSpec

# BERT's white space.
_SPACES = np.array([c for c in range(0x3001) if normalize_character(chr(c), False) == " "], np.uint32)


@dataclasses.dataclass
class _WordIndex:
    """The W words of a block, kept or not. Word w has `tokens[splits[w]:splits[w + 1]]`.

    `is_cut`: whether more of its tokens were cut off.
    """

    text: Int64Array
    is_cut: BoolArray
    places: Words
    tokens: Int64Array
    splits: Int64Array

    @property
    def count(self) -> Int64Array:
        return np.diff(self.splits)

    def tokens_of(self, chosen: Int64Array) -> Int64Array:
        """The tokens of these words, one word after the other."""
        return self.tokens[token_positions(self.splits, chosen)]


class KeepWords:
    """The forms that a view keeps, as the encoder normalizes them."""

    def __init__(self, view: ViewSpec, tokenizer: TextTokenizer) -> None:
        self._given = view.keep_words or ()
        self._match_case = view.match_case
        self._exact = {nfc(form): index for index, form in enumerate(self._given)}
        words = tokenizer.tokenize(pa.array(map(nfc, self._given), pa.string())).words()
        self._place: dict[str, int] = {}
        # Forms equal to the encoder (`bank`, `Bank`) are found as the first of them and counted for all of them.
        self.same_form: dict[int, list[str]] = {}
        self._same_key: dict[str, list[int]] = collections.defaultdict(list)
        for index, of_form in enumerate(words):
            key = key_of_form("".join(of_form))
            place = self._place.setdefault(key, index)
            self._same_key[key].append(index)
            self.same_form.setdefault(index if self._match_case else place, []).append(self._given[index])
        self._unspaced = set(filter(WITHOUT_SPACES.fullmatch, self._place))

    def find(self, words: _WordIndex, texts: TextBlock) -> tuple[Int32Array, BoolArray]:
        """For each word the index of its form in `keep_words`, -1 if none; whether there is one but for the case."""
        places = words.places
        index = np.array([self._place.get(key_of_form(form), -1) for form in places.forms.to_pylist()], np.int32)
        found = index[places.form]
        is_form = found >= 0
        if self._match_case:
            candidates = np.flatnonzero(is_form)
            spellings = _own_characters(words, candidates, texts)
            found[candidates] = [self._exact.get(nfc(word), -1) for word in spellings]
        return found, is_form

    def find_inside(self, words: _WordIndex, texts: TextBlock) -> dict[int, list[Int64Array]]:
        """{index of a form: the words in which it begins without being the word}, as `bank` in one word `bank😂`."""
        found: dict[int, list[Int64Array]] = collections.defaultdict(list)
        keys = [key_of_form(form) for form in words.places.forms.to_pylist()]
        for number, key in enumerate(keys):
            parts = word_parts(key)
            spaced = [part for part in parts if part in self._place and part not in self._unspaced]
            if not spaced or parts == [key] or key in self._place:
                continue
            chosen = np.flatnonzero(words.places.form == number)
            if self._match_case:
                for word, spelling in zip(chosen, _own_characters(words, chosen, texts), strict=True):
                    for part in word_parts(nfc(spelling)):
                        if part in self._exact and key_of_form(part) not in self._unspaced:
                            found[self._exact[part]].append(np.array([word]))
            else:
                for part in spaced:
                    found[self._place[part]].append(chosen)
        if self._unspaced:
            self._find_unspaced(words, keys, texts, found)
        return found

    def _find_unspaced(
        self, words: _WordIndex, keys: Sequence[str], texts: TextBlock, found: dict[int, list[Int64Array]]
    ) -> None:
        """The same for forms of scripts without spaces, whose places may begin and end inside of words."""
        places = words.places
        is_next = np.diff(words.text, prepend=-1) == 0
        is_next[1:] &= (places.start[1:] == places.end[:-1]) & (places.segment[1:] == places.segment[:-1])
        parts = [keys[form] if joined else f"\n{keys[form]}" for form, joined in zip(places.form, is_next, strict=True)]
        begins = row_splits_of(np.array([len(part) for part in parts], np.int64))
        begins[:-1] += ~is_next
        for form, match in _occurrences(self._unspaced, "".join(parts)):
            first, last = np.searchsorted(begins[:-1], [match, match + len(form) - 1], side="right") - 1
            if begins[first] == match and keys[places.form[first]] == form:
                continue
            indices = [self._place[form]]
            if self._match_case:
                spelling = nfc("".join(_own_characters(words, np.arange(first, last + 1), texts)))
                indices = [index for index in self._same_key[form] if nfc(self._given[index]) in spelling]
            for index in indices:
                found[index].append(np.array([first]))


def _occurrences(forms: Collection[str], text: str) -> Iterator[tuple[str, int]]:
    """(form, place) of each occurrence of these forms in the runs of a script without spaces, which may overlap."""
    lengths = {len(form) for form in forms}
    for run in WITHOUT_SPACES.finditer(text):
        for length in lengths:
            for place in range(run.start(), run.end() - length + 1):
                form = text[place : place + length]
                if form in forms:
                    yield form, place


def _own_characters(words: _WordIndex, chosen: Int64Array, texts: TextBlock) -> list[str]:
    """The characters of these words in their texts."""
    places = words.places.take(chosen)
    return list(own_characters(texts, words.text[chosen], places.segment, places.start, places.end))


def rows_of(view: ViewSpec, tokens: TokenBlock, keep: KeepWords | None = None) -> Rows:
    """The rows of a view in a block."""
    if view.has_word_rows:
        words, is_kept, counts = _kept_words(view, tokens, keep)
        chosen = np.flatnonzero(is_kept & ~words.is_cut & (words.count > 0))
        splits = row_splits_of(words.count[chosen])
        return Rows(words.text[chosen], words.tokens_of(chosen), splits, words.places.take(chosen), counts)
    texts, counts = np.arange(len(tokens.num_dropped)), {}
    positions = np.arange(len(tokens.token_ids)) if view.special_tokens else np.flatnonzero(tokens.start >= 0)
    if view.has_token_vectors:
        if keep is not None:
            words, is_kept, counts = _kept_words(view, tokens, keep)
            positions = words.tokens_of(np.flatnonzero(is_kept))
        if view.skip_token_ids:
            positions = positions[~np.isin(tokens.token_ids[positions], view.skip_token_ids)]
        text = row_of_each(tokens.row_splits)[positions]
        return Rows(text, positions, np.arange(len(positions) + 1), counts=counts)
    if view.level == "text" and view.pooling in ("cls", "pooler"):
        return Rows(texts, tokens.row_splits[:-1], np.arange(len(texts) + 1))
    return Rows(texts, positions, np.searchsorted(positions, tokens.row_splits))


def _kept_words(
    view: ViewSpec, tokens: TokenBlock, keep: KeepWords | None
) -> tuple[_WordIndex, BoolArray, dict[str, Int64Array]]:
    """(all words; which of them the view keeps; the counts of lost and empty words, or of each kept form)."""
    words = _find_words(view, tokens)

    def count(which: BoolArray | Int64Array) -> Int64Array:
        return tokens.text.count_texts(words.text[which])

    if keep is None:
        is_kept = np.ones(len(words.text), bool)
        empty = (words.count == 0) & ~words.is_cut
        counts = {
            f"{metrics.LOST_WORDS}:{view.name}": count(words.is_cut),
            f"{metrics.EMPTY_WORDS}:{view.name}": count(empty),
        }
    else:
        kept, is_form = keep.find(words, tokens.text)
        is_kept = kept >= 0
        counts = {f"{metrics.LOST_WORDS}:{view.name}": count(is_form & words.is_cut)}
        whole = np.flatnonzero(is_kept & ~words.is_cut)
        whole = whole[np.argsort(kept[whole], kind="stable")]
        for some in np.split(whole, np.flatnonzero(np.diff(kept[whole])) + 1) if len(whole) else ():
            of_form = count(some)
            same_form = keep.same_form[int(kept[some[0]])]
            counts |= {f"{metrics.KEPT_WORDS}:{view.name}:{form}": of_form for form in same_form}
            spellings = _own_characters(words, some, tokens.text)
            for form in same_form:
                other = count(some[[key_of_form(word) != key_of_form(form) for word in spellings]])
                counts[f"{metrics.OTHER_SPELLINGS}:{view.name}:{form}"] = other
        for index, inside in keep.find_inside(words, tokens.text).items():
            number = count(np.concatenate(inside))
            counts |= {f"{metrics.INSIDE_WORDS}:{view.name}:{form}": number for form in keep.same_form[index]}
    return words, is_kept, {name: of_files for name, of_files in counts.items() if of_files.any()}


def _find_words(view: ViewSpec, tokens: TokenBlock) -> _WordIndex:
    real = np.flatnonzero(tokens.word_char >= 0)
    text = row_of_each(tokens.row_splits)[real]
    given = tokens.text.words
    find = _whitespace_words if view.words == "whitespace" and given is None else _basic_words
    of_texts, word, cut_word, places = find(tokens, real, text)
    of_word = row_of_each(of_texts)
    first = 0 if given is None else given.first[of_word]
    places.word_index = (np.arange(of_texts[-1]) - of_texts[of_word] + first).astype(np.int32)
    is_cut = np.zeros(of_texts[-1], bool)
    is_cut[cut_word] = True
    splits = row_splits_of(np.bincount(word, minlength=of_texts[-1]))
    return _WordIndex(of_word, is_cut, places, real, splits)


def _basic_words(
    tokens: TokenBlock, real: Int64Array, text: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Words]:
    """(row splits of the words of each text; the word of each real token, and of each dropped one; the places).

    The words are runs of tokens with one `word_index`: BERT's basic tokens, or the words that the input gives. `real`,
    `text`: the tokens that are not special, and their texts.
    """
    dropped, given = tokens.dropped, tokens.text.words
    # Indices ascend within a text, and of several values for one text the last is stored.
    num_words = np.zeros(len(tokens.num_dropped), np.int64)
    num_words[text] = tokens.word_index[real] + 1
    num_words[dropped.text] = np.maximum(num_words[dropped.text], dropped.word_index + 1)
    of_texts = row_splits_of(num_words) if given is None else given.splits
    before = of_texts[:-1] if given is None else of_texts[:-1] - given.first
    word = before[text] + tokens.word_index[real]
    cut_word = before[dropped.text] + dropped.word_index
    index, start, end, form = np.zeros((4, of_texts[-1]), np.int32)
    begins = np.flatnonzero(np.diff(word, prepend=-1))
    # A token's span may begin with white space, its word_char never is any.
    start[word[begins]] = np.minimum.reduceat(tokens.word_char[real], begins)
    end[word[begins]] = np.maximum.reduceat(tokens.end[real], begins)
    if given is not None:
        start, end = (places + tokens.text.offset[row_of_each(of_texts)] for places in given.places)
    form[cut_word] = dropped.form
    form[word] = tokens.form[real]
    segment = np.zeros(of_texts[-1], np.int8)
    segment[word] = tokens.segment_ids[real]
    return of_texts, word, cut_word, Words(start, end, index, form, segment, tokens.forms)


def _whitespace_words(
    tokens: TokenBlock, real: Int64Array, text: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Words]:
    """The same for the words between white space, if a corpus is tokenized already; BERT may cut them into several."""
    dropped = tokens.dropped
    runs = _Runs(tokens.text)
    word = runs.find(text, tokens.segment_ids[real], tokens.word_char[real])
    cut_word = runs.find(dropped.text, dropped.segment, dropped.word_char)
    forms = _join_forms(
        len(runs.text),
        np.concatenate([word, cut_word]),
        np.concatenate([tokens.word_index[real], dropped.word_index]),
        tokens.forms.take(pa.array(np.concatenate([tokens.form[real], dropped.form]))),
    ).dictionary_encode()
    start, end = runs.start.astype(np.int32), runs.end.astype(np.int32)
    form = forms.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    places = Words(start, end, np.zeros_like(start), form, runs.segment.astype(np.int8), forms.dictionary)
    return row_splits_of(np.bincount(runs.text, minlength=len(tokens.num_dropped))), word, cut_word, places


class _Runs:
    """Runs of characters between white space, ordered by text, segment and place. `start`, `end`: in the record."""

    def __init__(self, block: TextBlock) -> None:
        sides, offset = [block.texts.to_pylist()], block.offset
        if block.pairs is not None and block.pair_offset is not None:
            sides.append(block.pairs.fill_null("").to_pylist())
            offset = np.stack([offset, block.pair_offset], axis=1).ravel()
        source, begin = join_texts([side for text in zip(*sides, strict=True) for side in text])
        is_word = np.concatenate([[False], ~np.isin(source, _SPACES), [False]])
        edges = np.flatnonzero(np.diff(is_word))
        side = np.searchsorted(begin, edges[::2], side="right") - 1
        self._num_sides = len(sides)
        self._before = begin - offset  # from a place in the record of each side to the one in `source`
        self._begins = edges[::2]
        self.text, self.segment = np.divmod(side, len(sides))
        self.start, self.end = edges[::2] - self._before[side], edges[1::2] - self._before[side]

    def find(self, text: npt.ArrayLike, segment: npt.ArrayLike, place: npt.ArrayLike) -> Int64Array:
        """The index of the run that holds each of these places."""
        before = self._before[np.multiply(text, self._num_sides) + segment]
        found: Int64Array = np.searchsorted(self._begins, place + before, side="right") - 1
        return found


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
