"""A block of tokens encoded: batches through the forward pass, and each view's rows gathered from what comes out."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.encode.batching import equal_texts, padded_shape, plan_batches
from layerbeam.transforms.encode.forward import EncodeCost, Forward, not_finite_rows
from layerbeam.transforms.encode.isolate import UnencodableTextsError
from layerbeam.transforms.encode.windows import Sequences, cut_sequences
from layerbeam.transforms.flow.blocks import (
    Contexts,
    Float32Array,
    Int32Array,
    Int64Array,
    TokenBlock,
    VectorBlock,
    row_splits_of,
    token_positions,
)
from layerbeam.transforms.hardware import tf
from layerbeam.transforms.settings import EncodeSettings
from layerbeam.transforms.views.columns import Layer, batch_vectors, finish_vectors, records_of, vector_splits
from layerbeam.transforms.views.number_types import NUMBER_TYPES
from layerbeam.transforms.views.view import ViewSpec

NOT_FINITE = "the encoder gives NaN or infinite values"
_POOLED_TOKENS = 1 << 14  # of which vectors are copied at a time


def pad_batch(
    sequences: Sequences,
    batch: Int64Array,
    pad_id: int,
    buckets: tuple[int, ...] | None = None,
    batch_tokens: int | None = None,
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """(token ids [B, S], lengths [B], segment ids [B, S]) of these sequences.

    S is the longest. With `buckets`, B and S are rounded up (see `padded_shape`) and the added rows have length 0.
    """
    begins = sequences.splits.take(batch)
    counts = sequences.splits.take(batch + 1) - begins
    rows, longest = padded_shape(len(batch), int(counts.max()), buckets, batch_tokens)
    lengths = np.pad(counts, (0, rows - len(batch))).astype(np.int32)
    place = np.arange(longest)
    is_real = place < lengths[:, None]
    positions = np.where(is_real, np.pad(begins, (0, rows - len(batch)))[:, None] + place, 0)
    token_ids = np.where(is_real, sequences.token_ids.take(positions), np.int32(pad_id))
    segment_ids = np.zeros(is_real.shape, np.int32)
    if sequences.segment_ids.any():
        segment_ids[is_real] = sequences.segment_ids.take(positions)[is_real]
    return token_ids, lengths, segment_ids


@dataclasses.dataclass
class _EncodedContexts:
    """B distinct contexts that left the encoder together.

    `numbers`: int64 [B]; `layers[k]`: [n, H]; `pooled_output`: [B, H] or None; `first`, `cls`: int64 [B], the place in
    the layers of each context's first token and of the [CLS] vector of the whole context.
    """

    numbers: Int64Array
    layers: Mapping[int, Layer]
    pooled_output: Float32Array | None
    first: Int64Array
    cls: Int64Array


def encode_block(
    tokens: TokenBlock,
    forward: Forward,
    views: Sequence[ViewSpec],
    settings: EncodeSettings,
    cost: EncodeCost | None = None,
) -> VectorBlock:
    """The vectors of all views for a block, in the order of its texts. Equal contexts are encoded once.

    `cost` is added to. Raises UnencodableTextsError with the texts whose vectors hold NaN or infinite values, or do
    not fit in float16.
    """
    cost = EncodeCost() if cost is None else cost
    columns = {
        view.name: [
            np.empty((len(tokens.rows[view.name].text), view.width), _column_type(view)) for _ in view.vector_columns
        ]
        for view in views
    }
    faults: dict[int, str] = {}
    contexts = tokens.contexts
    distinct, number = equal_texts(contexts.row_splits, contexts.token_ids, contexts.segment_ids)
    copies = np.argsort(number, kind="stable")
    copy_splits = row_splits_of(np.bincount(number, minlength=len(distinct)))
    text_splits = row_splits_of(np.bincount(contexts.of_text, minlength=len(number)))
    row_splits = {view.name: vector_splits(view, tokens) for view in views}
    for encoded in _encode_contexts(contexts, forward, distinct, settings, cost):
        started = time.perf_counter()
        equal = copies[token_positions(copy_splits, encoded.numbers)]
        texts = token_positions(text_splits, equal)
        place = np.repeat(np.arange(len(encoded.numbers)), np.diff(copy_splits)[encoded.numbers])
        place = place.repeat(np.diff(text_splits)[equal])
        cuts = np.flatnonzero(np.diff(np.cumsum(np.diff(tokens.row_splits)[texts]) // _POOLED_TOKENS)) + 1
        pieces = list(zip(np.split(texts, cuts), np.split(place, cuts), strict=True))
        for view, (some, some_place) in itertools.product(views, pieces):
            row_place = np.repeat(some_place, np.diff(row_splits[view.name])[some])
            rows = token_positions(row_splits[view.name], some)
            if not len(rows):
                continue
            positions, splits = _row_positions(view, tokens, contexts, rows, row_place, encoded)
            values_of = batch_vectors(view, encoded.layers, encoded.pooled_output, positions, splits)
            for column, values in zip(columns[view.name], values_of, strict=True):
                steps = [values]
                for module in view.dense_modules:
                    steps.append(forward.encoder.dense_modules[module](steps[-1]))
                column[rows] = _cast(steps[-1][:, : view.width], column.dtype)
                for step in steps:  # an activation may make an infinite value finite
                    bad_rows = rows[not_finite_rows(step)]
                    faults.update(dict.fromkeys(tokens.rows[view.name].text[bad_rows].tolist(), NOT_FINITE))
        cost.pooling_seconds += time.perf_counter() - started
    if faults:
        raise UnencodableTextsError(faults)
    vectors = {view.name: [finish_vectors(view, tokens, values) for values in columns.pop(view.name)] for view in views}
    for view in views:
        if view.dtype == "float16":
            reason = f"a value is too large for float16, see views.{view.name}.dtype"
            faults = dict.fromkeys(overflowing_texts(view, tokens, vectors[view.name]), reason) | faults
    if faults:
        raise UnencodableTextsError(faults)
    return VectorBlock(tokens, vectors)


def _column_type(view: ViewSpec) -> npt.DTypeLike:
    """The type of a view's vectors while the batches of a block are encoded: what is stored, unless a step follows."""
    is_last = not (view.aggregates or view.normalize or view.level == "record")
    return NUMBER_TYPES[view.dtype].input_type if is_last else np.float32


def _cast(values: Float32Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The vectors in this type, with infinity for what is too large."""
    if dtype == np.float32:
        return values
    with tf.device("CPU:0"):  # faster than NumPy, and without Python's lock
        return np.asarray(tf.cast(values, dtype))


def _row_positions(
    view: ViewSpec,
    tokens: TokenBlock,
    contexts: Contexts,
    rows: Int64Array,
    place: Int64Array,
    encoded: _EncodedContexts,
) -> tuple[Int64Array, Int64Array]:
    """(positions, splits): row i is made of `positions[splits[i]:splits[i + 1]]` in the output: tokens, or a text.

    `rows`: of the view; `place`: the context of each row in `encoded`.
    """
    if view.uses_pooler:
        return place, np.arange(len(rows) + 1)
    if view.level == "text" and view.pooling == "cls":
        return encoded.cls[place], np.arange(len(rows) + 1)
    of_view = tokens.rows[view.name]
    splits = row_splits_of(np.diff(of_view.splits)[rows])
    shift = encoded.first[place] - contexts.row_splits[contexts.of_text[of_view.text[rows]]]
    positions = contexts.place.take(of_view.positions.take(token_positions(of_view.splits, rows)))
    return positions + shift.repeat(np.diff(splits)), splits


def overflowing_texts(view: ViewSpec, tokens: TokenBlock, vectors: Iterable[npt.NDArray[Any]]) -> list[int]:
    """The texts with a value that float16 cannot hold."""
    halves = (NUMBER_TYPES[view.dtype].round(values) for values in vectors)  # the sums of word types are float32
    # The bits of infinity are the largest that are no NaN, which no vector has.
    rows = np.any([(half.view(np.uint16) & 0x7FFF).max(axis=1, initial=0) == 0x7C00 for half in halves], axis=0)
    if view.level == "record":
        texts = np.flatnonzero(np.repeat(rows, np.diff(records_of(tokens.text))))
    else:
        texts = tokens.rows[view.name].text[rows]
    found: list[int] = texts.tolist()
    return found


def _encode_contexts(
    contexts: Contexts, forward: Forward, chosen: Int64Array, settings: EncodeSettings, cost: EncodeCost
) -> Iterator[_EncodedContexts]:
    """The output for the U chosen contexts, numbered from 0: batches of short ones, then a windowed one at a time."""
    sequences = cut_sequences(contexts, chosen, settings)
    lengths = np.diff(sequences.splits)

    def encode(which: Int64Array) -> Iterator[tuple[Int64Array, Mapping[int, Layer], Float32Array | None]]:
        """(sequences, layers, pooled output) of each batch, without the rows that only fill a bucket."""
        buckets, pad_id = settings.length_buckets, forward.encoder.pad_id
        planned = plan_batches(lengths[which], settings.batch_tokens, buckets, only_full=settings.only_full_batches)
        batches = [which[batch] for batch in planned]
        full = settings.batch_tokens if settings.only_full_batches else None
        padded = (pad_batch(sequences, batch, pad_id, buckets, full) for batch in batches)
        for batch, (layers, pooled) in zip(batches, forward(padded, cost), strict=True):
            yield batch, layers, None if pooled is None else pooled[: len(batch)]

    for batch, layers, pooled in encode(np.flatnonzero(~np.isin(sequences.context, list(sequences.vector_index)))):
        first = row_splits_of(lengths[batch])[:-1]
        yield _EncodedContexts(sequences.context[batch], layers, pooled, first, first)
    for number, vector_index in sequences.vector_index.items():
        # The batches keep the windows' order: all of them are equally long.
        batches = encode(np.flatnonzero(sequences.context == number))
        yield _join_windows(number, batches, vector_index, settings.max_seq_length)


def _join_windows(
    number: int,
    batches: Iterable[tuple[Int64Array, Mapping[int, Layer], Float32Array | None]],
    vector_index: Int64Array,
    max_seq_length: int,
) -> _EncodedContexts:
    """A context of its windows: each token's vector from the window that owns it; last the mean of their [CLS]."""
    layers: dict[int, Float32Array] = {}
    cls = collections.defaultdict[int, list[Float32Array]](list)
    outputs: list[Float32Array] = []
    before = 0
    for windows, of_batch, pooled in batches:
        after = before + len(windows) * max_seq_length
        span = slice(*np.searchsorted(vector_index, (before, after)))  # it ascends
        for layer, on_device in of_batch.items():
            values = np.asarray(on_device)
            if layer not in layers:
                layers[layer] = np.empty((len(vector_index) + 1, values.shape[1]), np.float32)
            layers[layer][span] = values[vector_index[span] - before]
            cls[layer].append(values[::max_seq_length].copy())
        outputs += [] if pooled is None else [pooled]
        before = after
    for layer, values in layers.items():
        values[-1] = np.concatenate(cls[layer]).mean(axis=0)
    output = np.concatenate(outputs).mean(axis=0, keepdims=True) if outputs else None
    return _EncodedContexts(np.array([number]), layers, output, np.array([0]), np.array([len(vector_index)]))
