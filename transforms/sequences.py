"""Texts and pairs of texts as the sequences that BERT reads: cut to length, `[CLS] first [SEP] second [SEP]`.

Shapes as in `transforms.records`; P pieces (tokens without [CLS] and [SEP]).
Source: `extract_features.py` of google-research/bert.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import apache_beam as beam
import numpy as np

from transforms.records import Int8Array, Int32Array, Int64Array, TextBlock, TokenBlock, row_splits_of
from transforms.threads import load_tensorflow
from transforms.wordpiece import Pieces, WordPiece


def split_pair(text: str, separator: str) -> tuple[str, str | None]:
    """The two texts of a line, split at the last separator; None for the second where there is no separator.

    extract_features.py, whose separator is ` ||| `, matches greedily: the last one counts.

    >>> split_pair("a ||| b ||| c", " ||| "), split_pair("only |||one", " ||| ")
    (('a ||| b', 'c'), ('only |||one', None))
    """
    first, found, second = text.rpartition(separator)
    return (first, second) if found else (text, None)


def kept_pieces(first: Int64Array, second: Int64Array, max_seq_length: int) -> tuple[Int64Array, Int64Array]:
    """How many pieces of each first and second text go in, [T] each; `second` is 0 where there is none.

    Of a pair, pieces are taken from the end of the longer text, of the second where both are equally long, until both
    fit: `_truncate_seq_pair`.

    >>> [kept.tolist() for kept in kept_pieces(np.array([9, 9, 2, 9]), np.array([0, 9, 9, 2]), 10)]
    [[8, 4, 2, 5], [0, 3, 5, 2]]
    """
    room = max_seq_length - 3
    kept = np.minimum(first, np.maximum((room + 1) // 2, room - second))
    kept_second = np.minimum(second, room - kept)
    single = np.minimum(first, max_seq_length - 2)
    return np.where(second > 0, kept, single), np.where(second > 0, kept_second, 0)


def truncate(pieces: Pieces, keep: Int64Array) -> Pieces:
    """The first `keep` [T] pieces of each text."""
    counts = np.diff(pieces.row_splits)
    if (keep >= counts).all():
        return pieces
    within = np.arange(len(pieces.ids)) - np.repeat(pieces.row_splits[:-1], counts)
    kept = within < np.repeat(keep, counts)
    columns = (column[kept] for column in (pieces.ids, pieces.start, pieces.end, pieces.word_index))
    return Pieces(row_splits_of(np.minimum(keep, counts)), *columns)


def add_special_tokens(first: Pieces, second: Pieces | None, *, cls_id: int, sep_id: int) -> tuple[Pieces, Int8Array]:
    """[CLS], the pieces, [SEP] and, of a pair, the second pieces and [SEP] again; and the segment ids [N].

    `start`, `end` and `word_index` of special tokens are -1. Segment 1 is the second text with its [SEP].
    """
    counts = np.diff(first.row_splits)
    second_counts = np.zeros_like(counts) if second is None else np.diff(second.row_splits)
    has_pair = second_counts > 0
    row_splits = row_splits_of(2 + counts + second_counts + has_pair)
    begin, behind_first = row_splits[:-1], row_splits[:-1] + 1 + counts
    place = np.arange(len(first.ids)) + np.repeat(begin + 1 - first.row_splits[:-1], counts)
    segment_ids = np.zeros(row_splits[-1], np.int8)
    if second is not None:
        place_second = np.arange(len(second.ids)) + np.repeat(behind_first + 1 - second.row_splits[:-1], second_counts)
        segment_ids[place_second] = 1
        segment_ids[row_splits[1:][has_pair] - 1] = 1

    def spread(name: str) -> Int32Array:
        result = np.full(row_splits[-1], -1, np.int32)
        result[place] = getattr(first, name)
        if second is not None:
            result[place_second] = getattr(second, name)
        return result

    ids = spread("ids")
    ids[begin] = cls_id
    ids[behind_first] = sep_id
    ids[row_splits[1:] - 1] = sep_id
    return Pieces(row_splits, ids, spread("start"), spread("end"), spread("word_index")), segment_ids


def tokenize_block(block: TextBlock, wordpiece: WordPiece, max_seq_length: int) -> TokenBlock:
    """The tokens of a block, at most `max_seq_length` for each text, [CLS] and [SEP] included.

    Words of a second text are counted on from those of the first.
    """
    _check_max_seq_length(max_seq_length)
    first = _in_record(wordpiece.tokenize(block.texts), block.offset)
    counts = np.diff(first.row_splits)
    second = None
    second_counts = np.zeros_like(counts)
    if block.pairs is not None and block.pair_offset is not None:
        second = _in_record(wordpiece.tokenize(block.pairs.fill_null("")), block.pair_offset)
        second_counts = np.diff(second.row_splits)
        words = np.zeros(len(counts), np.int32)
        words[counts > 0] = first.word_index[first.row_splits[1:][counts > 0] - 1] + 1
        second = dataclasses.replace(second, word_index=second.word_index + np.repeat(words, second_counts))
    keep, keep_second = kept_pieces(counts, second_counts, max_seq_length)
    tokens, segment_ids = add_special_tokens(
        truncate(first, keep),
        None if second is None else truncate(second, keep_second),
        cls_id=wordpiece.cls_id,
        sep_id=wordpiece.sep_id,
    )
    return TokenBlock(
        text=block,
        row_splits=tokens.row_splits,
        token_ids=tokens.ids,
        segment_ids=segment_ids,
        start=tokens.start,
        end=tokens.end,
        word_index=tokens.word_index,
        num_dropped=(counts + second_counts - keep - keep_second).astype(np.int32),
    )


def _in_record(pieces: Pieces, offset: Int32Array) -> Pieces:
    """The pieces with their places counted from the beginning of the record."""
    shift = np.repeat(offset, np.diff(pieces.row_splits))
    return dataclasses.replace(pieces, start=pieces.start + shift, end=pieces.end + shift)


def _check_max_seq_length(max_seq_length: int) -> None:
    if max_seq_length < 3:
        raise ValueError(f"max_seq_length: {max_seq_length}; at least 3, since [CLS] and [SEP] count")


@beam.typehints.with_input_types(TextBlock)
@beam.typehints.with_output_types(TokenBlock)
class TokenizeBlocks(beam.DoFn):
    """`TextBlock` -> `TokenBlock`.

    `max_seq_length` counts [CLS] and [SEP]. `num_threads`: blocks that the process has in hand at once.
    """

    def __init__(
        self, vocabulary: tuple[str, ...], *, do_lower_case: bool, max_seq_length: int, num_threads: int
    ) -> None:
        _check_max_seq_length(max_seq_length)
        self._vocabulary = vocabulary
        self._do_lower_case = do_lower_case
        self._max_seq_length = max_seq_length
        self._num_threads = num_threads

    def setup(self) -> None:
        load_tensorflow(self._num_threads)
        self._wordpiece = WordPiece(self._vocabulary, self._do_lower_case)

    def process(self, block: TextBlock) -> Iterator[TokenBlock]:
        yield tokenize_block(block, self._wordpiece, self._max_seq_length)
