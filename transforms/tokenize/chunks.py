"""Records cut into chunks: texts of at most so many tokens, which end at sentences or words and may overlap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from layerbeam.transforms.flow.blocks import Int32Array, Int64Array, TextBlock, reject, row_splits_of
from layerbeam.transforms.panics import PanicError
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize.given_words import text_cutter
from layerbeam.transforms.tokenize.pieces import STAGE, TextTokenizer, find_panics
from layerbeam.transforms.tokenize.sentences import find_sentences, split_records

# How often a record is cut again because a chunk has more tokens alone than within the record.
_ATTEMPTS = 8


def cut_chunks(block: TextBlock, tokenizer: TextTokenizer, settings: SequenceSettings) -> TextBlock:
    """The block of records with a text per chunk, whose `offset` is its first code point in the record.

    A chunk has at most `chunk.tokens` tokens, with special ones and the prompt. A record with no more stays whole.
    """
    chunk = settings.records.chunk
    sentences = [np.empty(0, np.int64)] * len(block.texts)
    if settings.records.splitter is not None:
        record, spans, reasons = find_sentences(block.texts, settings.records)
        if reasons:
            return cut_chunks(reject(block, reasons, STAGE), tokenizer, settings)
        sentences = np.split(spans[:, 0], np.searchsorted(record, np.arange(1, len(block.texts))))
    words = block.words
    cut = text_cutter(block.texts, words, tokenizer)
    try:
        pieces = cut(np.arange(len(block.texts)))
    except PanicError:
        return cut_chunks(reject(block, find_panics(len(block.texts), cut), STAGE), tokenizer, settings)
    of_prompt = len(tokenizer.tokenize(pa.array([settings.prompt])).ids)
    room_in_chunk = chunk.tokens - tokenizer.special.around_text
    most = max(room_in_chunk - of_prompt, 1)
    chunks: list[list[tuple[int, int]]] = []
    of_records = itertools.pairwise(pieces.row_splits.tolist())
    records = zip(block.texts.to_pylist(), sentences, of_records, strict=True)
    for number, (text, starts, (begin, end)) in enumerate(records):
        if end - begin <= most:
            chunks.append([(0, len(text))])
            continue
        span = slice(begin, end)
        start, stop, word = pieces.start[span], pieces.end[span], pieces.word_index[span]
        places, room = find_places(text, start, stop, word, starts), most
        if words is not None:
            chunks.append(_whole_words(places, word, words.take(pa.array([number])).places, most, chunk.overlap))
            continue
        for _ in range(_ATTEMPTS):
            cuts = cut_pieces(places, len(start), room, chunk.overlap)
            pairs = ((int(start[first]), int(stop[first:last].max())) for first, last in cuts)
            # Pieces of byte-level BPE may be white space alone.
            found = [(a, b) for a, b in pairs if not text[a:b].isspace() and a < b] or [(0, len(text))]
            try:
                alone = tokenizer.tokenize(pa.array([settings.prompt + text[a:b] for a, b in found])).row_splits
            except PanicError:  # of one chunk, which is rejected when all are tokenized
                break
            excess = int(np.diff(alone).max()) - room_in_chunk
            if excess <= 0 or room == 1:
                break
            room = max(room - excess, 1)
        chunks.append(found)
    numbers = np.repeat(np.arange(len(chunks)), [len(found) for found in chunks])
    return split_records(block, numbers, np.array([*itertools.chain(*chunks)], np.int64).reshape(-1, 2))


def _whole_words(
    places: Sequence[Int64Array], word: Int32Array, words: tuple[Int32Array, Int32Array], room: int, overlap: int
) -> list[tuple[int, int]]:
    """The spans of a record's chunks, which begin and end with given words; only one word may have too many pieces.

    `word`: int32 [P], the word of each piece; `words`: of each word its first code point, and the one after the last.
    """
    starts, ends = words
    begins = np.flatnonzero(np.diff(word)) + 1  # the pieces with which words begin, but the first one
    at_words = [np.intersect1d(where, begins) for where in places[:1]] + [begins] * 3
    cuts = cut_pieces(at_words, len(word), room, overlap)
    # The first word that begins at a piece or behind it; words without pieces are in the chunk of the word before.
    following = np.append(word, len(starts))
    is_inside = np.isin(np.arange(len(following)), [0, *begins, len(word)], invert=True)
    following[is_inside] += 1
    following[0] = 0
    spans = [(following[first], following[last] - 1) for first, last in cuts]
    return [(int(starts[first]), int(ends[last])) for first, last in spans if first <= last]


def find_places(
    text: str, start: Int32Array, end: Int32Array, word_index: Int32Array, sentences: Int64Array
) -> list[Int64Array]:
    """Where a text may be cut: the pieces that begin a sentence, behind white space, a word, and any, ascending.

    `start`, `end`, `word_index`: int32 [P], of its pieces; `sentences`: the first code points of its sentences. Two
    pieces of one character are not cut.
    """
    white = np.fromiter(itertools.chain(map(str.isspace, text), [False]), bool, len(text) + 1)
    before = row_splits_of(white)  # white space before each code point
    ends, begins = np.maximum.accumulate(end)[:-1], start[1:]
    is_apart = begins >= ends
    is_word = (word_index[1:] != word_index[:-1]) | (word_index[1:] < 0)
    # A piece of byte-level BPE may begin with the white space before it.
    is_behind_space = (before[begins] > before[ends]) | white[begins]
    of_sentence = np.searchsorted(sentences, start, side="right")
    is_sentence = of_sentence[1:] > of_sentence[:-1]
    return [
        np.flatnonzero(is_apart & is_allowed) + 1
        for is_allowed in (is_sentence, is_word & is_behind_space, is_word, np.ones_like(is_apart))
    ]


def cut_pieces(places: Sequence[Int64Array], count: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """(first piece, piece after the last) of each chunk of `count` pieces, at most `room` pieces each.

    `places`: as `find_places` gives them. A chunk ends in its last third, at a sentence if one ends there, else at
    white space, else at a word; if no word ends there, at an earlier one; within a word only if that fills the chunk.
    The next chunk begins at most `overlap` pieces earlier: at a sentence, else at white space, else at a word. It does
    not where a word would not fit then.

    >>> words = np.arange(1, 12)
    >>> cut_pieces([np.array([5]), words, words, words], 12, 6, 2)
    [(0, 5), (3, 9), (7, 12)]
    """
    *best, words, pieces = places
    chunks, begin, end = [], 0, 0
    while begin + room < count:
        limit = begin + room
        third = max(limit - room // 3, end + 1)
        ends = [*((where, third) for where in (*best, words)), (words, end + 1)]
        found = next((place for where, low in ends if (place := _last(where, low, limit)) is not None), None)
        if found is None and begin < end:  # a word that fits without the overlap, or not at all
            begin = end
            continue
        if found is None:
            found = _last(pieces, end + 1, limit) or limit
        chunks.append((begin, found))
        low, end = max(found - overlap, begin + 1), found
        begin = next((place for where in (*best, words) if (place := _first(where, low, end)) is not None), end)
    return [*chunks, (begin, count)]


def _last(places: Int64Array, low: int, high: int) -> int | None:
    """The last of these places from `low` to `high`."""
    index = int(np.searchsorted(places, high, side="right")) - 1
    return int(places[index]) if index >= 0 and places[index] >= low else None


def _first(places: Int64Array, low: int, high: int) -> int | None:
    """The first of these places from `low` to before `high`."""
    index = int(np.searchsorted(places, low))
    return int(places[index]) if index < len(places) and places[index] < high else None
