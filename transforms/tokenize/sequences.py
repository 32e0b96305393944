"""Texts and pairs as BERT's sequences, cut to length: `[CLS] first [SEP] second [SEP]`.

Shapes as in `layerbeam.transforms.blocks`; P pieces (tokens without [CLS] and [SEP]) of first and second texts.
Source: `extract_features.py` of google-research/bert.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from layerbeam.transforms import metrics
from layerbeam.transforms.blocks import (
    DroppedTokens,
    Int32Array,
    Int64Array,
    TextBlock,
    TokenBlock,
    row_of_each,
    row_splits_of,
)
from layerbeam.transforms.encoders.source import EncoderSource
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.subset import leave_out, reject, take_texts
from layerbeam.transforms.tokenize.row_index import KeepWords, rows_of
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views import View

# The stage of rejects in output folders, from before the stage was called `tokenize`.
_STAGE = "wordpiece"


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


def tokenize_block(block: TextBlock, wordpiece: WordPiece, settings: SequenceSettings) -> TokenBlock:
    """The tokens of a block's texts. The word index of a second text continues that of the first.

    `start`, `end`, `word_index` and `form` of special tokens are -1. Segment 1 is the second text with its [SEP].
    """
    num_texts = len(block.texts)
    texts, offset = block.texts, block.offset
    if block.pairs is not None and block.pair_offset is not None:
        texts = pa.concat_arrays([texts, block.pairs.fill_null("")])
        offset = np.concatenate([offset, block.pair_offset])
    pieces = wordpiece.tokenize(texts)
    side = row_of_each(pieces.row_splits)  # [P]: of first text t it is t, of second text t it is T + t
    counts, counts_second = np.pad(np.diff(pieces.row_splits), (0, 2 * num_texts - len(texts))).reshape(2, num_texts)
    keep, keep_second = kept_pieces(counts, counts_second, settings.max_seq_length)
    lost = counts + counts_second - keep - keep_second
    if settings.long_text == "window":
        keep, keep_second, lost = counts, counts_second, np.zeros_like(lost)
    elif settings.long_text == "reject" and lost.any():
        lengths = 2 + counts + counts_second + (counts_second > 0)
        reason = f"over max_seq_length {settings.max_seq_length} ({{:,}} tokens with [CLS] and [SEP])"
        reasons = {int(text): reason.format(lengths[text]) for text in np.flatnonzero(lost)}
        return tokenize_block(reject(block, reasons, _STAGE), wordpiece, settings)
    row_splits = row_splits_of(2 + keep + keep_second + (keep_second > 0))
    behind_first = row_splits[:-1] + 1 + keep
    within = np.arange(len(side)) - pieces.row_splits[side]
    is_kept = within < np.concatenate([keep, keep_second])[side]
    place = (np.concatenate([row_splits[:-1], behind_first])[side] + 1 + within)[is_kept]
    words = np.zeros(2 * num_texts, np.int32)  # before each first and second text
    words[num_texts:][counts > 0] = pieces.word_index[pieces.row_splits[1:][:num_texts][counts > 0] - 1] + 1
    word_index = pieces.word_index + words[side]
    start = pieces.start + offset[side]

    def spread(values: Int32Array) -> Int32Array:
        result = np.full(row_splits[-1], -1, np.int32)
        result[place] = values[is_kept]
        return result

    token_ids = spread(pieces.ids)
    token_ids[row_splits[:-1]] = wordpiece.cls_id
    token_ids[behind_first] = wordpiece.sep_id
    token_ids[row_splits[1:] - 1] = wordpiece.sep_id
    text, segment = side % max(num_texts, 1), (side >= num_texts).astype(np.int8)
    segment_ids = np.zeros(row_splits[-1], np.int8)
    segment_ids[place] = segment[is_kept]
    segment_ids[row_splits[1:][keep_second > 0] - 1] = 1
    is_cut = ~is_kept
    return TokenBlock(
        text=block,
        row_splits=row_splits,
        token_ids=token_ids,
        segment_ids=segment_ids,
        start=spread(start),
        end=spread(pieces.end + offset[side]),
        word_index=spread(word_index),
        num_dropped=lost.astype(np.int32),
        form=spread(pieces.form),
        forms=pieces.forms,
        dropped=DroppedTokens(
            text=text[is_cut].astype(np.int32),
            segment=segment[is_cut].astype(np.int32),
            start=start[is_cut],
            word_index=word_index[is_cut],
            form=pieces.form[is_cut],
        ),
    )


class Tokenizer:
    """Texts to tokens and to the rows of views. If all views keep some words only, texts without any are dropped.

    Not thread-safe. To build one takes 0.1 s and runs a TensorFlow operation: see `WordPiece`.
    """

    def __init__(self, encoder: EncoderSource, views: Sequence[View], settings: SequenceSettings) -> None:
        self.wordpiece = WordPiece(encoder.vocabulary, encoder.do_lower_case, encoder.max_chars_per_word)
        self._views = views
        self._settings = settings
        self._keep = {view.name: KeepWords(view, self.wordpiece) for view in views if view.keep_words is not None}

    def __call__(self, block: TextBlock) -> TokenBlock:
        tokens = tokenize_block(block, self.wordpiece, self._settings)
        tokens.rows = {view.name: rows_of(view, tokens, self._keep.get(view.name)) for view in self._views}
        if self._keep and len(self._keep) == len(self._views):
            has_rows = np.zeros(len(tokens.num_dropped), bool)
            for rows in tokens.rows.values():
                has_rows[rows.text] = True
            if not has_rows.all():
                left = leave_out(tokens.text, ~has_rows, metrics.FILTERED)
                tokens = take_texts(tokens, left, np.flatnonzero(has_rows))
        return tokens
