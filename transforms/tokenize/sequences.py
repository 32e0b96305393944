"""Texts and pairs as BERT's sequences, cut to length: `[CLS] first [SEP] second [SEP]`.

Shapes as in `layerbeam.transforms.blocks`; P pieces (tokens without [CLS] and [SEP]).
Source: `extract_features.py` of google-research/bert.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from layerbeam.transforms import metrics
from layerbeam.transforms.blocks import (
    BoolArray,
    DroppedTokens,
    Int8Array,
    Int32Array,
    Int64Array,
    TextBlock,
    TokenBlock,
    row_of_each,
    row_splits_of,
)
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.subset import leave_out, reject, take_texts
from layerbeam.transforms.tokenize.row_index import KeepWords, rows_of
from layerbeam.transforms.tokenize.wordpiece import PIECE_COLUMNS, Pieces, WordPiece
from layerbeam.transforms.views import View


def kept_pieces(first: Int64Array, second: Int64Array, max_seq_length: int) -> tuple[Int64Array, Int64Array]:
    """The number of pieces kept of each first and second text, [T] each; `second` is 0 for a single text.

    A pair loses pieces from the end of its longer text, or of the second if both are equally long, until both fit:
    `_truncate_seq_pair`.

    >>> [kept.tolist() for kept in kept_pieces(np.array([9, 9, 2, 9]), np.array([0, 9, 9, 2]), 10)]
    [[8, 4, 2, 5], [0, 3, 5, 2]]
    """
    room = max_seq_length - 3
    kept = np.minimum(first, np.maximum((room + 1) // 2, room - second))
    kept_second = np.minimum(second, room - kept)
    single = np.minimum(first, max_seq_length - 2)
    return np.where(second > 0, kept, single), np.where(second > 0, kept_second, 0)


def truncate(pieces: Pieces, keep: Int64Array) -> tuple[Pieces, Pieces]:
    """The first `keep` [T] pieces of each text, and the rest."""
    counts = np.diff(pieces.row_splits)
    within = np.arange(len(pieces.ids)) - np.repeat(pieces.row_splits[:-1], counts)
    kept = within < np.repeat(keep, counts)
    return (pieces if kept.all() else pieces.take(kept)), pieces.take(~kept)


def add_special_tokens(first: Pieces, second: Pieces, *, cls_id: int, sep_id: int) -> tuple[Pieces, Int8Array]:
    """([CLS] first [SEP], for pairs also second [SEP]; segment ids [N]).

    `start`, `end`, `word_index` and `form` of special tokens are -1. Segment 1 is the second text with its [SEP]. Both
    inputs must have the same `forms`.
    """
    counts, second_counts = np.diff(first.row_splits), np.diff(second.row_splits)
    has_pair = second_counts > 0
    row_splits = row_splits_of(2 + counts + second_counts + has_pair)
    begin, behind_first = row_splits[:-1], row_splits[:-1] + 1 + counts
    place = np.arange(len(first.ids)) + np.repeat(begin + 1 - first.row_splits[:-1], counts)
    place_second = np.arange(len(second.ids)) + np.repeat(behind_first + 1 - second.row_splits[:-1], second_counts)
    segment_ids = np.zeros(row_splits[-1], np.int8)
    segment_ids[place_second] = 1
    segment_ids[row_splits[1:][has_pair] - 1] = 1

    def spread(name: str) -> Int32Array:
        result = np.full(row_splits[-1], -1, np.int32)
        result[place] = getattr(first, name)
        result[place_second] = getattr(second, name)
        return result

    ids = spread("ids")
    ids[begin] = cls_id
    ids[behind_first] = sep_id
    ids[row_splits[1:] - 1] = sep_id
    columns = {name: spread(name) for name in PIECE_COLUMNS} | {"ids": ids}
    return dataclasses.replace(first, row_splits=row_splits, **columns), segment_ids


def tokenize_block(block: TextBlock, wordpiece: WordPiece, settings: SequenceSettings) -> TokenBlock:
    """The tokens of a block's texts. The word index of a second text continues that of the first."""
    first, second = _pieces(block, wordpiece)
    counts, second_counts = np.diff(first.row_splits), np.diff(second.row_splits)
    keep, keep_second = kept_pieces(counts, second_counts, settings.max_seq_length)
    lost = counts + second_counts - keep - keep_second
    if settings.long_text == "window":
        keep, keep_second, lost = counts, second_counts, np.zeros_like(lost)
    elif settings.long_text == "reject" and lost.any():
        lengths = 2 + counts + second_counts + (second_counts > 0)
        return tokenize_block(_reject_long(block, lengths, lost > 0, settings), wordpiece, settings)
    kept, dropped = truncate(first, keep)
    kept_second, dropped_second = truncate(second, keep_second)
    tokens, segment_ids = add_special_tokens(kept, kept_second, cls_id=wordpiece.cls_id, sep_id=wordpiece.sep_id)
    return TokenBlock(
        text=block,
        row_splits=tokens.row_splits,
        token_ids=tokens.ids,
        segment_ids=segment_ids,
        start=tokens.start,
        end=tokens.end,
        word_index=tokens.word_index,
        num_dropped=lost.astype(np.int32),
        form=tokens.form,
        forms=tokens.forms,
        dropped=_dropped(dropped, dropped_second),
    )


def _pieces(block: TextBlock, wordpiece: WordPiece) -> tuple[Pieces, Pieces]:
    """The pieces of the first and of the second texts (none for single texts), with the same `forms`."""
    if block.pairs is None or block.pair_offset is None:
        first = _in_record(wordpiece.tokenize(block.texts), block.offset)
        return first, first.take(np.zeros(len(first.ids), bool))
    texts = len(block.texts)
    both = wordpiece.tokenize(pa.concat_arrays([block.texts, block.pairs.fill_null("")]))
    both = _in_record(both, np.concatenate([block.offset, block.pair_offset]))
    middle = int(both.row_splits[texts])
    first, second = (
        dataclasses.replace(both, row_splits=splits, **{name: getattr(both, name)[part] for name in PIECE_COLUMNS})
        for splits, part in (
            (both.row_splits[: texts + 1], slice(middle)),
            (both.row_splits[texts:] - middle, slice(middle, None)),
        )
    )
    counts = np.diff(first.row_splits)
    words = np.zeros(texts, np.int32)
    words[counts > 0] = first.word_index[first.row_splits[1:][counts > 0] - 1] + 1
    return first, dataclasses.replace(
        second, word_index=second.word_index + np.repeat(words, np.diff(second.row_splits))
    )


def _dropped(first: Pieces, second: Pieces) -> DroppedTokens:
    sides = (first, second)
    texts = [row_of_each(side.row_splits) for side in sides]
    return DroppedTokens(
        text=np.concatenate(texts).astype(np.int32),
        segment=np.repeat(np.arange(2, dtype=np.int32), [len(side.ids) for side in sides]),
        start=np.concatenate([side.start for side in sides]),
        word_index=np.concatenate([side.word_index for side in sides]),
        form=np.concatenate([side.form for side in sides]),
    )


def _reject_long(block: TextBlock, lengths: Int64Array, too_long: BoolArray, settings: SequenceSettings) -> TextBlock:
    """The block without the texts that are too long: these become rejects."""
    reason = f"over max_seq_length {settings.max_seq_length} ({{:,}} tokens with [CLS] and [SEP])"
    reasons = {int(text): reason.format(lengths[text]) for text in np.flatnonzero(too_long)}
    return reject(block, reasons, "wordpiece")


def _in_record(pieces: Pieces, offset: Int32Array) -> Pieces:
    """The pieces with `start` and `end` counted from the beginning of the record."""
    shift = np.repeat(offset, np.diff(pieces.row_splits))
    return dataclasses.replace(pieces, start=pieces.start + shift, end=pieces.end + shift)


def find_rows(tokens: TokenBlock, views: Sequence[View], keep: Mapping[str, KeepWords]) -> TokenBlock:
    """The block with the rows of each view.

    `keep`: by name of the views that have `keep_words`. If all views have, texts without any of the words are dropped.
    """
    rows = {view.name: rows_of(view, tokens, keep.get(view.name)) for view in views}
    tokens = dataclasses.replace(tokens, rows=rows)
    if keep and len(keep) == len(views):
        has_rows = np.zeros(len(tokens.num_dropped), bool)
        for found in rows.values():
            has_rows[found.text] = True
        if not has_rows.all():
            left = leave_out(tokens.text, ~has_rows, metrics.FILTERED)
            tokens = take_texts(tokens, left, np.flatnonzero(has_rows))
    return tokens
