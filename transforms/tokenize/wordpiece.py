"""WordPiece as Google's reference does it, for a block of texts at once, with exact positions in the texts.

Shapes as in `flow/blocks.py`; C code points of a block's texts, W words, P pieces (tokens without [CLS], [SEP]).

Three steps: a table maps each code point to the characters that BERT's BasicTokenizer makes of it, so that each of
these has a known origin; the characters are cut into words; TF Text's FastWordpieceTokenizer cuts each distinct word
into pieces. `tf.strings.lower` is not used: it depends on the locale (with LC_ALL=tr_TR it turns `I` into a dotless i),
and its Unicode tables are not Python's, which the reference uses.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.encoders import IN_TEXT, MAX_CHARS_PER_WORD, SPECIAL_TOKENS, SpecialTokens
from layerbeam.transforms.flow.blocks import Int32Array, Int64Array, row_of_each, row_splits_of, token_positions
from layerbeam.transforms.hardware import import_tensorflow_text, tf
from layerbeam.transforms.tokenize.comparison import in_nfc
from layerbeam.transforms.tokenize.pieces import Pieces, UInt32Array, code_points, is_punctuation, join_texts

UInt8Array = npt.NDArray[np.uint8]

_CODE_POINTS = 0x110000
_PLACEHOLDER = 0xFDD0  # no character: no normalization changes it
# Unicode, UAX #15, table "Maximum Expansion Factor": NFD makes at most 4 code points of one (U+1F82).
_MAX_EXPANSION = 4
# Kinds of character in normalized text. `_ALONE` is a word by itself: punctuation, CJK.
_LETTER, _ALONE, _SPACE, _MARK = range(4)
# The ranges of the reference's `_is_chinese_char`.
_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_CHAR_BITS, _CHAR_MASK, _OTHER = np.uint32(21), np.uint32((1 << 21) - 1), np.uint32(0xFFFFFFFF)
_CAPITAL_SIGMA, _FINAL_SIGMA, _DOTTED_CAPITAL_I = 0x03A3, 0x03C2, 0x0130


def normalize_character(character: str, do_lower_case: bool) -> str:
    """One character normalized by itself as in the reference's BasicTokenizer, before that drops combining marks (Mn).

    "" if the character is removed, " " for white space.

    >>> [normalize_character(c, True) for c in ("\\u200b", "\\t", "A", "\\u00c9")]
    ['', ' ', 'a', 'e\u0301']
    """
    if character in "\t\n\r":
        return " "
    if character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    # `isspace`, because the reference splits with `str.split`: U+2028 and U+2029 are not Zs.
    if character.isspace():
        return " "
    return unicodedata.normalize("NFD", character.lower()) if do_lower_case else character


def _kind(character: str, do_lower_case: bool) -> int:
    category = unicodedata.category(character)
    if character == " ":
        return _SPACE
    if do_lower_case and category == "Mn":
        return _MARK
    return _ALONE if is_punctuation(character) or _CJK.match(character) else _LETTER


class _Normalized(NamedTuple):
    """Normalized characters with their places in the C source characters.

    `chars`, `kind`, `origin`: the characters, their kinds, the index of the source character of each. `marks_end`:
    int64 [C], the index after source character i and the combining marks dropped directly after it. `is_ordered`:
    whether `origin` ascends.
    """

    chars: UInt32Array
    kind: UInt8Array
    origin: Int64Array
    marks_end: Int64Array
    is_ordered: bool


class _Normalizer:
    """The reference's cleaning, lower casing and accent stripping over arrays of code points.

    A code point is entered in the tables when it is first seen, and counts as known once all of it is entered: threads
    may share an instance.
    """

    def __init__(self, do_lower_case: bool) -> None:
        self._do_lower_case = do_lower_case
        self._known = np.zeros(_CODE_POINTS, np.bool_)
        # Of a known code point that becomes one character, which neither combines nor depends on context: that
        # character, and above it its kind. Else `_OTHER`.
        self._simple = np.full(_CODE_POINTS, _OTHER, np.uint32)
        self._expansion = np.zeros((_CODE_POINTS, _MAX_EXPANSION), np.uint32)
        self._expansion_length = np.zeros(_CODE_POINTS, np.uint8)
        self._kind = np.zeros(_CODE_POINTS, np.uint8)
        self._combining = np.zeros(_CODE_POINTS, np.uint8)
        self._learn(np.array([_FINAL_SIGMA], np.uint32))

    def __call__(self, source: UInt32Array) -> _Normalized:
        """The characters that are left of `source` [C]."""
        simple = self._simple.take(source)
        if simple.max(initial=0) == _OTHER:
            self._learn(source)
            simple = self._simple.take(source)
            if simple.max(initial=0) == _OTHER:
                return self._normalize(source)
        kind = (simple >> _CHAR_BITS).astype(np.uint8)
        place = np.arange(len(source) + 1)
        return _Normalized(simple & _CHAR_MASK, kind, place[:-1], place[1:], is_ordered=True)

    def _normalize(self, source: UInt32Array) -> _Normalized:
        """The same where a character is removed, becomes several, or depends on its neighbours."""
        if self._do_lower_case and (source == _CAPITAL_SIGMA).any():
            source = self._with_final_sigma(source)
        width = int(self._expansion_length[source].max(initial=1))
        expanded = self._expansion[:, :width][source].ravel()
        filled = np.flatnonzero(expanded)
        chars, origin = expanded[filled], filled // width
        kind = self._kind[chars]
        is_mark = kind == _MARK
        combining = self._combining[chars]
        is_ordered = True
        if ((combining > 0) & ~is_mark).any():
            # NFD sorts a run of combining characters by class; a few of them (U+302E, viramas) are not Mn and stay.
            order = np.lexsort((combining, np.cumsum(combining == 0)))
            chars, origin, kind, is_mark = chars[order], origin[order], kind[order], is_mark[order]
            is_ordered = False
        if not is_mark.any():
            return _Normalized(chars, kind, origin, np.arange(1, len(source) + 1), is_ordered)
        is_dropped = np.zeros(len(source), np.bool_)
        is_dropped[origin[is_mark]] = True
        chars, origin, kind = chars[~is_mark], origin[~is_mark], kind[~is_mark]
        is_dropped[origin] = False
        # The next character that is not dropped: a running minimum from the end.
        kept = np.append(np.where(is_dropped, len(source), np.arange(len(source))), len(source))
        marks_end = np.minimum.accumulate(kept[::-1])[::-1][1:]
        return _Normalized(chars, kind, origin, marks_end, is_ordered)

    def _learn(self, source: UInt32Array) -> None:
        for code_point in np.unique(source[~self._known[source]]).tolist():
            normalized = normalize_character(chr(code_point), self._do_lower_case)
            self._expansion[code_point, : len(normalized)] = [ord(character) for character in normalized]
            self._expansion_length[code_point] = len(normalized)
            for character in normalized:
                self._kind[ord(character)] = _kind(character, self._do_lower_case)
                self._combining[ord(character)] = unicodedata.combining(character) if self._do_lower_case else 0
            self._known[code_point] = True
            if len(normalized) == 1 and code_point != _CAPITAL_SIGMA:
                char = ord(normalized)
                if self._kind[char] != _MARK and not self._combining[char]:
                    self._simple[code_point] = char | int(self._kind[char]) << _CHAR_BITS

    def _with_final_sigma(self, source: UInt32Array) -> UInt32Array:
        """`source` with a final sigma for each capital one that ends a word, as `str.lower` has it in context."""
        kept = np.flatnonzero(self._expansion_length[source])
        cleaned = source[kept]
        # `lower` expands only this character. Any cased neighbour has the same effect on a sigma.
        cleaned[cleaned == _DOTTED_CAPITAL_I] = ord("I")
        lowered = code_points(_text(cleaned).lower())
        result: UInt32Array = source.copy()
        result[kept[(cleaned == _CAPITAL_SIGMA) & (lowered == _FINAL_SIGMA)]] = _FINAL_SIGMA
        return result


class WordPiece:
    """Google's FullTokenizer for Arrow strings: the same ids, plus the place of every piece in its text.

    The first one of a vocabulary takes 0.1 s for 30,000 entries and runs a TensorFlow operation, so set TensorFlow's
    threads first. Source: `tokenization.py` of google-research/bert; as there, the Unicode tables are those of the
    running Python.

    Args:
        vocab: The entries in the order of their ids.
        do_lower_case: Lower-case the text and strip accents, as an uncased model needs.
        max_chars_per_word: A longer word is one [UNK].
        special: The ids around a text; by default those of [CLS], [SEP] and [PAD].
        finds_special: Take [SEP], [MASK] and the like in a text as these tokens, if the vocabulary has them.

    Raises:
        ValueError: An entry of [PAD], [UNK], [CLS], [SEP] is missing, or TF Text refuses the vocabulary.

    >>> wordpiece = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "river", "##s"], do_lower_case=True)
    >>> pieces = wordpiece.tokenize(pa.array(["Rivers flow"]))
    >>> pieces.ids.tolist(), pieces.start.tolist(), pieces.end.tolist()
    ([4, 5, 1], [0, 5, 7], [5, 6, 11])
    """

    def __init__(
        self,
        vocab: Sequence[str],
        do_lower_case: bool,
        max_chars_per_word: int = MAX_CHARS_PER_WORD,
        special: SpecialTokens | None = None,
        *,
        finds_special: bool = False,
    ) -> None:
        self.vocab = tuple(vocab)
        self.do_lower_case = do_lower_case
        self._max_chars_per_word = max_chars_per_word
        # As in the reference, the last of equal entries wins.
        ids = {entry: index for index, entry in enumerate(self.vocab)}
        missing = [entry for entry in SPECIAL_TOKENS if entry not in ids] if special is None else []
        if missing:
            raise ValueError(
                f"vocab: no entry {', '.join(missing)} among {len(self.vocab):,}; use the vocab.txt that belongs to "
                "the encoder, one entry per line without the line end"
            )
        self.special = special or SpecialTokens.of_bert(ids)
        self._in_text = {token: ids[token] for token in IN_TEXT if token in ids} if finds_special else {}
        self._normalizer = _normalizer(do_lower_case)
        # TF Text refuses equal entries. No word matches the placeholder: punctuation is always a word by itself.
        usable = tuple(e if e and ids[e] == i else f"[no entry {i}]" for i, e in enumerate(self.vocab))
        self._pieces_of_words = _word_cutter(usable, max_chars_per_word)

    def tokenize(self, texts: pa.StringArray) -> Pieces:
        """The pieces of `texts`: string [T] without nulls.

        The span of a piece covers its source characters and the combining marks dropped directly after them:
        `text[start:end]`, normalized, is the token without `##`. Exceptions: [UNK] spans its whole word, pieces of one
        character share its span, and a final sigma depends on its context.
        """
        strings = texts.to_pylist()
        source, text_start = join_texts(strings)
        found = self._find_special(strings)
        special = np.array([match.start() for match in found], np.int64)
        if found:  # each becomes one character, and others that are removed
            source = source.copy()
            source[[place for match in found for place in range(*match.span())]] = 0
            source[special] = _PLACEHOLDER
        chars, kind, origin, marks_end, is_ordered = self._normalizer(source)
        if found:
            kind[np.isin(origin, special)] = _ALONE
        is_char, is_alone = kind != _SPACE, kind == _ALONE
        is_first = ~is_char | is_alone
        is_first[1:] |= is_first[:-1].copy()
        is_first[:1] = True
        kept = np.flatnonzero(is_char)
        chars, origin, word_start = chars.take(kept), origin.take(kept), np.flatnonzero(is_first.take(kept))
        ids, pieces_of_word, piece_start, form, forms = self._cut_words(chars, word_start)

        # A word is in one text, and so are its pieces.
        first_word = np.searchsorted(origin.take(word_start), text_start)
        row_splits = np.append(row_splits_of(pieces_of_word)[first_word], len(ids))
        row, words = row_of_each(row_splits), np.repeat(np.arange(len(word_start)), pieces_of_word)
        if is_ordered:
            start = origin.take(piece_start)
            end = marks_end.take(origin.take(np.append(piece_start, len(origin))[1:] - 1))
        else:  # NFD has reordered characters
            start = np.minimum.reduceat(origin, piece_start)
            end = marks_end[np.maximum.reduceat(origin, piece_start)]
        for match, piece in zip(found, np.flatnonzero(np.isin(start, special)), strict=True):
            ids[piece], end[piece] = self._in_text[match[0]], match.end()
            form[piece] = len(forms) + list(self._in_text).index(match[0])
        if found:
            forms = pa.concat_arrays([forms, pa.array(self._in_text, pa.string())])
        begin = text_start.take(row)
        places = (start - begin).astype(np.int32)
        return Pieces(
            row_splits=row_splits,
            ids=ids,
            start=places,
            end=(end - begin).astype(np.int32),
            word_char=places,
            word_index=(words - first_word.take(row)).astype(np.int32),
            form=form,
            forms=forms,
        )

    def _find_special(self, strings: list[str]) -> list[re.Match[str]]:
        """The special tokens in the texts, which are joined by line ends."""
        pattern = "|".join(map(re.escape, self._in_text))
        return list(re.finditer(pattern, "\n".join(strings))) if pattern else []

    def _cut_words(
        self, chars: UInt32Array, word_start: Int64Array
    ) -> tuple[Int32Array, Int64Array, Int64Array, Int32Array, pa.StringArray]:
        """(id of each piece, number of pieces of each word, first character and form of each piece, distinct forms)."""
        data, byte_start = _utf8(chars)
        begins = word_start if byte_start is None else byte_start.take(word_start)
        offsets = np.append(begins, len(data)).astype(np.int32)
        words = pa.StringArray.from_buffers(len(word_start), pa.py_buffer(offsets), pa.py_buffer(data))
        words = words.dictionary_encode()
        too_long = pc.greater(pc.utf8_length(words.dictionary), self._max_chars_per_word)
        distinct = pc.if_else(too_long, "[UNK]", words.dictionary).to_numpy(zero_copy_only=False)

        ids, starts, _ = self._pieces_of_words.tokenize_with_offsets(tf.constant(distinct, tf.string))
        splits, start = ids.row_splits.numpy(), starts.values.numpy()
        if byte_start is not None:
            start = _in_chars(words.dictionary, row_of_each(splits), start)
        word = words.indices.to_numpy(zero_copy_only=False)
        pieces_of_word = np.diff(splits).take(word)
        piece = token_positions(splits, word)
        first_char = word_start.repeat(pieces_of_word) + start.take(piece)
        form, forms = in_nfc(words)
        form_of_piece = form.astype(np.int32, copy=False).repeat(pieces_of_word)
        return ids.values.numpy().take(piece), pieces_of_word, first_char, form_of_piece, forms


def _utf8(chars: UInt32Array) -> tuple[bytes, Int64Array | None]:
    """(the characters in UTF-8, the first byte of each); None if each has one byte."""
    if chars.max(initial=0) <= 0x7F:
        return chars.astype(np.uint8).tobytes(), None
    sizes = 1 + (chars > 0x7F).astype(np.int64) + (chars > 0x7FF) + (chars > 0xFFFF)
    return _text(chars).encode(), row_splits_of(sizes)


def _in_chars(strings: pa.StringArray, string: Int64Array, place: Int64Array) -> Int64Array:
    """Places in strings, each of a string, in characters instead of bytes of UTF-8.

    >>> _in_chars(pa.array(["a", "\u00e9b"]), np.array([0, 1, 1]), np.array([0, 0, 2])).tolist()
    [0, 0, 1]
    """
    _, offsets, data = strings.buffers()
    begins = np.frombuffer(offsets, np.int32)[strings.offset : strings.offset + len(strings)][string]
    before = row_splits_of((np.frombuffer(data or b"", np.uint8) & 0xC0) != 0x80)
    chars: Int64Array = before[begins + place] - before[begins]
    return chars


@functools.cache
def _normalizer(do_lower_case: bool) -> _Normalizer:
    """Shared by all tokenizers: its tables take 25 MB, and some milliseconds to allocate."""
    return _Normalizer(do_lower_case)


@functools.lru_cache(maxsize=1)
def _word_cutter(vocab: tuple[str, ...], max_chars_per_word: int) -> Any:
    """TF Text's tokenizer of words, shared by all threads. ValueError if it refuses the vocabulary."""
    try:
        return import_tensorflow_text("fast_wordpiece_tokenizer").FastWordpieceTokenizer(
            vocab=vocab,
            max_bytes_per_word=4 * max_chars_per_word,
            token_out_type=tf.int32,
            unknown_token="[UNK]",  # noqa: S106 - no password
            no_pretokenization=True,
        )
    except RuntimeError as error:
        raise ValueError(f"vocab: TF Text refuses it: {error}") from error


def _text(code_points: UInt32Array) -> str:
    return code_points.tobytes().decode("utf-32-le")
