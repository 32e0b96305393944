"""A block of tokens encoded: batches through the forward pass, and each view's rows gathered from what comes out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.blocks import (
    Float32Array,
    Int32Array,
    Int64Array,
    TokenBlock,
    VectorBlock,
    row_splits_of,
    token_positions,
)
from layerbeam.transforms.columns import (
    BatchOutput,
    batch_vectors,
    empty_vectors,
    finish_vectors,
    reads_cls,
    records_of,
)
from layerbeam.transforms.encode.batching import equal_texts, padded_shape, plan_batches
from layerbeam.transforms.encode.forward import EncodeCost, Forward, not_finite_rows
from layerbeam.transforms.encode.isolate import UnencodableTextsError
from layerbeam.transforms.encode.windows import Sequences, cut_sequences
from layerbeam.transforms.settings import EncodeSettings
from layerbeam.transforms.views import View

NOT_FINITE = "the encoder gives NaN or infinite values"


def pad_batch(
    tokens: TokenBlock, sequences: Sequences, batch: Int64Array, pad_id: int, buckets: tuple[int, ...] | None = None
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """(token ids [B, S], lengths [B], segment ids [B, S]) of these sequences.

    S is the longest. With `buckets`, B and S are rounded up and the added rows have length 0.
    """
    positions = sequences.positions[token_positions(sequences.splits, batch)]
    lengths = np.diff(sequences.splits)[batch]
    rows, longest = padded_shape(len(batch), int(lengths.max()), buckets)
    lengths = np.pad(lengths, (0, rows - len(batch)))
    real = np.arange(longest) < lengths[:, None]
    token_ids = np.full(real.shape, pad_id, np.int32)
    token_ids[real] = tokens.token_ids[positions]
    segment_ids = np.zeros(real.shape, np.int32)
    segment_ids[real] = tokens.segment_ids[positions]
    return token_ids, lengths.astype(np.int32), segment_ids


@dataclasses.dataclass
class EncodedTexts:
    """B texts that left the encoder together.

    `texts`: int64 [B], numbers of distinct texts; `begin`: int64 [B], the first token of each in `output`.
    """

    texts: Int64Array
    begin: Int64Array
    output: BatchOutput


@dataclasses.dataclass
class RowSelection:
    """The r rows of a view that one `BatchOutput` gives.

    `rows`: int64 [r], their numbers in the view; row i is made of `positions[splits[i]:splits[i + 1]]` in the output:
    tokens, or texts where the view reads one vector per text.
    """

    rows: Int64Array
    positions: Int64Array
    splits: Int64Array


def encode_block(
    tokens: TokenBlock,
    forward: Forward,
    views: Sequence[View],
    settings: EncodeSettings,
    cost: EncodeCost | None = None,
) -> VectorBlock:
    """The vectors of all views for a block, in the order of its texts. Equal texts are encoded once.

    `cost` is added to. Raises UnencodableTextsError with the texts whose vectors hold NaN or infinite values, or do
    not fit in float16.
    """
    cost = EncodeCost() if cost is None else cost
    columns = {view.name: empty_vectors(view, len(tokens.rows[view.name].text)) for view in views}
    view_splits = {
        view.name: row_splits_of(np.bincount(tokens.rows[view.name].text, minlength=len(tokens.num_dropped)))
        for view in views
    }
    faults: dict[int, str] = {}
    distinct, number = equal_texts(tokens.row_splits, tokens.token_ids, tokens.segment_ids)
    copies = np.argsort(number, kind="stable")
    copy_splits = row_splits_of(np.bincount(number, minlength=len(distinct)))
    for encoded in encode_texts(tokens, forward, distinct, settings, cost):
        started = time.perf_counter()
        texts = copies[token_positions(copy_splits, encoded.texts)]
        place = np.repeat(np.arange(len(encoded.texts)), np.diff(copy_splits)[encoded.texts])
        for view in views:
            selection = select_rows(view, tokens, view_splits[view.name], texts, place, encoded)
            if not len(selection.rows):
                continue
            values_of = batch_vectors(view, encoded.output, selection.positions, selection.splits)
            for column, values in zip(columns[view.name], values_of, strict=True):
                column[selection.rows] = values
                bad_rows = selection.rows[not_finite_rows(values)]
                faults.update(dict.fromkeys(tokens.rows[view.name].text[bad_rows].tolist(), NOT_FINITE))
        cost.pooling_seconds += time.perf_counter() - started
    if faults:
        raise UnencodableTextsError(faults)
    vectors = {view.name: [finish_vectors(view, tokens, values) for values in columns.pop(view.name)] for view in views}
    for view in views:
        if view.dtype == "float16":
            reason = f"a value is too large for float16, see views.{view.name}.dtype"
            faults = dict.fromkeys(find_overflows(view, tokens, vectors[view.name]), reason) | faults
    if faults:
        raise UnencodableTextsError(faults)
    return VectorBlock(tokens, vectors)


def select_rows(
    view: View,
    tokens: TokenBlock,
    view_splits: Int64Array,
    texts: Int64Array,
    place: Int64Array,
    encoded: EncodedTexts,
) -> RowSelection:
    """The rows of a view that belong to these texts of the block.

    `view_splits`: int64 [T + 1], each text's rows; `place`: int64, of each of `texts` its place in `encoded.texts`.
    """
    rows = tokens.rows[view.name]
    chosen = token_positions(view_splits, texts)
    row_place = np.repeat(place, np.diff(view_splits)[texts])
    lengths = np.diff(rows.splits)[chosen]
    if view.uses_pooler or reads_cls(view, encoded.output):
        positions = row_place
    else:
        shift = encoded.begin[row_place] - tokens.row_splits[rows.text[chosen]]
        positions = rows.positions[token_positions(rows.splits, chosen)] + shift.repeat(lengths)
    return RowSelection(chosen, positions, row_splits_of(lengths))


def find_overflows(view: View, tokens: TokenBlock, vectors: Iterable[npt.NDArray[Any]]) -> Iterator[int]:
    """The texts with a value that float16 cannot hold."""
    for values in vectors:
        for row in np.flatnonzero((np.abs(values) > np.finfo(np.float16).max).any(axis=1)).tolist():
            yield from texts_of_row(view, tokens, row)


def texts_of_row(view: View, tokens: TokenBlock, row: int) -> list[int]:
    """The texts that a row of a view is made of."""
    if view.level == "record":
        begin, end = records_of(tokens.text)[row : row + 2]
        return list(range(begin, end))
    return [int(tokens.rows[view.name].text[row])]


def encode_texts(
    tokens: TokenBlock, forward: Forward, texts: Int64Array, settings: EncodeSettings, cost: EncodeCost
) -> Iterator[EncodedTexts]:
    """The output for these U texts, numbered from 0: batches of short ones, then one windowed text at a time."""
    sequences = cut_sequences(tokens, texts, settings.max_seq_length, settings.window_overlap)
    encode = _SequenceEncoder(tokens, sequences, forward, settings, cost)
    num_windows = np.bincount(sequences.text, minlength=len(texts))
    yield from encode_short(encode, np.flatnonzero(num_windows[sequences.text] == 1))
    for text in np.flatnonzero(num_windows > 1).tolist():
        yield encode_windowed(encode, text)


@dataclasses.dataclass
class _SequenceEncoder:
    """Sends sequences of a block through the forward pass, in batches."""

    tokens: TokenBlock
    sequences: Sequences
    forward: Forward
    settings: EncodeSettings
    cost: EncodeCost

    def __call__(self, which: Int64Array) -> Iterator[tuple[Int64Array, dict[int, Float32Array], Float32Array | None]]:
        """(sequences, layers, pooled output) of each batch, without the rows that only fill a bucket."""
        lengths, buckets = np.diff(self.sequences.splits)[which], self.settings.length_buckets
        batches = [which[batch] for batch in plan_batches(lengths, self.settings.batch_tokens, buckets)]
        pad_id = self.forward.encoder.pad_id
        padded = (pad_batch(self.tokens, self.sequences, batch, pad_id, buckets) for batch in batches)
        for batch, (layers, pooled) in zip(batches, self.forward(padded, self.cost), strict=True):
            yield batch, layers, None if pooled is None else pooled[: len(batch)]


def encode_short(encode: _SequenceEncoder, which: Int64Array) -> Iterator[EncodedTexts]:
    """The texts that are one sequence each, a batch at a time."""
    lengths = np.diff(encode.sequences.splits)
    for batch, layers, pooled in encode(which):
        begin = row_splits_of(lengths[batch])[:-1]
        yield EncodedTexts(encode.sequences.text[batch], begin, BatchOutput(layers, pooled))


def encode_windowed(encode: _SequenceEncoder, text: int) -> EncodedTexts:
    """A text in windows: each token's vector from the window that owns it, [CLS] and the pooler averaged over all."""
    sequences = encode.sequences
    windows = np.flatnonzero(sequences.text == text)
    # The batches keep the windows' order: all of them are equally long.
    batches = list(encode(windows))
    layers = {layer: np.concatenate([layers[layer] for _, layers, _ in batches]) for layer in batches[0][1]}
    pooled = [pooled for _, _, pooled in batches if pooled is not None]
    # `layers` begins with the first window, the sequences' positions with the first sequence.
    first_token = sequences.splits[windows] - sequences.splits[windows[0]]
    owner = sequences.owner[slice(*sequences.owner_splits[text : text + 2])] - sequences.splits[windows[0]]
    output = BatchOutput(
        {layer: values[owner] for layer, values in layers.items()},
        np.concatenate(pooled).mean(axis=0, keepdims=True) if pooled else None,
        {layer: values[first_token].mean(axis=0, keepdims=True) for layer, values in layers.items()},
    )
    return EncodedTexts(np.array([text]), np.zeros(1, np.int64), output)
