"""Texts and pairs as an encoder's sequences, cut to length: `[CLS] first [SEP] second [SEP]` for BERT.

Shapes as in `layerbeam.transforms.flow.blocks`; P pieces (tokens without special ones) of first and second texts.
Source: `extract_features.py` of google-research/bert.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.encoders import SpecialTokens
from layerbeam.transforms.flow.blocks import (
    BoolArray,
    DroppedTokens,
    Int32Array,
    Int64Array,
    TextBlock,
    TokenBlock,
    reject,
    row_of_each,
    row_splits_of,
)
from layerbeam.transforms.panics import PanicError
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize.given_words import text_cutter
from layerbeam.transforms.tokenize.pieces import STAGE, Pieces, TextTokenizer, find_panics


def kept_pieces(
    first: Int64Array, second: Int64Array, max_seq_length: int, around_text: int = 2, around_pair: int = 3
) -> tuple[Int64Array, Int64Array]:
    """The number of pieces kept of each first and second text, [T] each; `second` is 0 for a single text.

    A pair loses pieces from the end of its longer text, or of the second if both are equally long, until both fit:
    `_truncate_seq_pair`. `around_text`, `around_pair`: the number of special tokens.

    >>> [kept.tolist() for kept in kept_pieces(np.array([9, 9, 2, 9]), np.array([0, 9, 9, 2]), 10)]
    [[8, 4, 2, 5], [0, 3, 5, 2]]
    """
    room = max_seq_length - around_pair
    kept = np.minimum(first, np.maximum((room + 1) // 2, room - second))
    kept_second = np.minimum(second, room - kept)
    single = np.minimum(first, max_seq_length - around_text)
    return np.where(second > 0, kept, single), np.where(second > 0, kept_second, 0)


def tokenize_block(block: TextBlock, tokenizer: TextTokenizer, settings: SequenceSettings) -> TokenBlock:
    """The tokens of a block's texts. The word index of a second text continues that of the first.

    `start`, `end`, `word_char`, `word_index` and `form` of special tokens are -1, and so are those of a prompt.
    Segment 1 is the second text with what is behind it.
    """
    num_texts, special, words = len(block.texts), tokenizer.special, block.words
    texts, offset = block.texts, block.offset
    if settings.prompt and words is None:
        texts = pc.binary_join_element_wise(pa.scalar(settings.prompt), texts, "")
    if block.pairs is not None and block.pair_offset is not None:
        texts = pa.concat_arrays([texts, block.pairs.fill_null("")])
        offset = np.concatenate([offset, block.pair_offset])
    cut = text_cutter(texts, words, tokenizer, settings.prompt)
    try:
        pieces = cut(np.arange(len(texts)))
    except PanicError:
        reasons = {index % num_texts: reason for index, reason in find_panics(len(texts), cut).items()}
        return tokenize_block(reject(block, reasons, STAGE), tokenizer, settings)
    side = row_of_each(pieces.row_splits)  # [P]: of first text t it is t, of second text t it is T + t
    if settings.prompt and words is None:
        pieces = _hide_prompt(pieces, side, num_texts, len(settings.prompt))
    counts, counts_second = np.pad(np.diff(pieces.row_splits), (0, 2 * num_texts - len(texts))).reshape(2, num_texts)
    lengths = special.around_text + counts + counts_second + len(special.between or ()) * (counts_second > 0)
    if not lengths.all():
        reasons = dict.fromkeys(np.flatnonzero(lengths == 0).tolist(), "the encoder's tokenizer gives no tokens for it")
        return tokenize_block(reject(block, reasons, STAGE), tokenizer, settings)
    around = special.around_text, special.around_pair
    keep, keep_second = kept_pieces(counts, counts_second, settings.max_seq_length, *around)
    lost = counts + counts_second - keep - keep_second
    if settings.long_text == "window":
        keep, keep_second, lost = counts, counts_second, np.zeros_like(lost)
    elif settings.long_text == "reject" and lost.any():
        reason = f"over max_seq_length {settings.max_seq_length} ({{:,}} tokens with special ones)"
        reasons = {int(text): reason.format(lengths[text]) for text in np.flatnonzero(lost)}
        return tokenize_block(reject(block, reasons, STAGE), tokenizer, settings)
    return _assemble(block, pieces, side, (keep, keep_second), lost, offset, special)


def _assemble(
    block: TextBlock,
    pieces: Pieces,
    side: Int64Array,
    keeps: tuple[Int64Array, Int64Array],
    lost: Int64Array,
    offset: Int32Array,
    special: SpecialTokens,
) -> TokenBlock:
    """The first `keeps` pieces of each first and second text, with special tokens around them.

    `side`: of each piece the number of its text, as in `tokenize_block`; `lost`: of each text how many are left out;
    `offset`: of each first and second text the first code point in the record.
    """
    num_texts, (keep, keep_second) = len(block.texts), keeps
    before, between, behind = special.before, special.between or (), special.behind
    is_pair = keep_second > 0
    row_splits = row_splits_of(special.around_text + keep + keep_second + len(between) * is_pair)
    begin = row_splits[:-1] + len(before)
    begin_second = begin + keep + len(between)
    begins = np.concatenate([begin, begin_second])[: len(pieces.row_splits) - 1]  # of each text's pieces
    place = np.arange(len(side)) + (begins - pieces.row_splits[:-1]).take(side)
    is_word = pieces.word_index >= 0
    kept: BoolArray | slice = slice(None)
    cut = np.empty(0, np.int64)  # pieces of words
    if lost.any():
        is_kept = place < (begins + np.concatenate([keep, keep_second])[: len(begins)]).take(side)
        kept, place, cut = is_kept, place[is_kept], np.flatnonzero(~is_kept & is_word)
    word_index = pieces.word_index
    if len(begins) > num_texts:  # the words of a second text follow those of the first
        words = np.zeros(2 * num_texts, np.int32)
        np.maximum.at(words[num_texts:], side[side < num_texts], word_index[side < num_texts] + 1)
        word_index = np.where(is_word, word_index + words.take(side), -1)

    def in_record(places: Int32Array, where: BoolArray) -> Int32Array:
        return np.where(where, places + offset.take(side), -1) if offset.any() else places

    def spread(values: Int32Array) -> Int32Array:
        result = np.full(row_splits[-1], -1, np.int32)
        result[place] = values[kept]
        return result

    token_ids = spread(pieces.ids)
    for number, token in enumerate(before):
        token_ids[row_splits[:-1] + number] = token
    for number, token in enumerate(between):
        token_ids[(begin + keep + number)[is_pair]] = token
    for number, token in enumerate(reversed(behind), start=1):
        token_ids[row_splits[1:] - number] = token
    segment_ids = np.zeros(row_splits[-1], np.int8)
    if is_pair.any():
        segment_ids[place] = (side >= num_texts)[kept]
        for number in range(1, len(behind) + 1):
            segment_ids[row_splits[1:][is_pair] - number] = 1
    is_text, word_char = pieces.start >= 0, in_record(pieces.word_char, is_word)
    return TokenBlock(
        text=block,
        row_splits=row_splits,
        token_ids=token_ids,
        segment_ids=segment_ids,
        start=spread(in_record(pieces.start, is_text)),
        end=spread(in_record(pieces.end, is_text)),
        word_char=spread(word_char),
        word_index=spread(word_index),
        num_dropped=lost.astype(np.int32),
        form=spread(pieces.form),
        forms=pieces.forms,
        dropped=DroppedTokens(
            text=(side[cut] % max(num_texts, 1)).astype(np.int32),
            segment=(side[cut] >= num_texts).astype(np.int32),
            word_char=word_char[cut],
            word_index=word_index[cut],
            form=pieces.form[cut],
        ),
    )


def _hide_prompt(pieces: Pieces, side: Int64Array, num_texts: int, length: int) -> Pieces:
    """The pieces of texts behind a prompt of this length, with places in the texts; the prompt's have none, as -1."""
    shift = np.where(side < num_texts, length, 0)
    is_text = pieces.end > shift
    is_word = is_text & (pieces.word_index >= 0)
    first_word = np.full(2 * num_texts, np.iinfo(np.int32).max, np.int32)
    np.minimum.at(first_word, side[is_word], pieces.word_index[is_word])

    def shown(values: Int32Array | Int64Array, where: BoolArray) -> Int32Array:
        return np.where(where, values, -1).astype(np.int32)

    return dataclasses.replace(
        pieces,
        start=shown(np.maximum(pieces.start - shift, 0), is_text),
        end=shown(pieces.end - shift, is_text),
        word_char=shown(np.maximum(pieces.word_char - shift, 0), is_word),
        word_index=shown(pieces.word_index - first_word[side], is_word),
        form=shown(pieces.form, is_word),
    )
