"""Blocks of tokens to blocks of vectors, with the encoder loaded once per worker process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

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
    """(token ids [B, S], lengths [B], segment ids [B, S]) of these sequences, S the longest; B and S more in `buckets`.

    Rows beyond the sequences are of length 0.
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


def encode_block(
    tokens: TokenBlock,
    forward: Forward,
    views: Sequence[View],
    settings: EncodeSettings,
    cost: EncodeCost | None = None,
) -> VectorBlock:
    """What the views keep of a block, its texts in their order; equal texts are encoded once. `cost` is added to.

    UnencodableTextsError where some of the texts have vectors with NaN or infinite values.
    """
    cost = EncodeCost() if cost is None else cost
    faults: dict[int, str] = {}
    targets = {view.name: empty_vectors(view, len(tokens.rows[view.name].text)) for view in views}
    of_texts = {
        view.name: row_splits_of(np.bincount(tokens.rows[view.name].text, minlength=len(tokens.num_dropped)))
        for view in views
    }
    first, inverse = equal_texts(tokens.row_splits, tokens.token_ids, tokens.segment_ids)
    # The texts of each kind, kind after kind.
    alike = np.argsort(inverse, kind="stable")
    alike_splits = row_splits_of(np.bincount(inverse, minlength=len(first)))
    for kinds, output, begin in encode_texts(tokens, forward, first, settings, cost):
        started = time.perf_counter()
        members = token_positions(alike_splits, kinds)
        texts = alike[members]
        place = np.repeat(np.arange(len(kinds)), np.diff(alike_splits)[kinds])
        for view in views:
            rows = tokens.rows[view.name]
            chosen = token_positions(of_texts[view.name], texts)
            if not len(chosen):
                continue
            row_place = np.repeat(place, np.diff(of_texts[view.name])[texts])
            lengths = np.diff(rows.splits)[chosen]
            splits = row_splits_of(lengths)
            if view.uses_pooler or reads_cls(view, output):
                positions = row_place
            else:
                shift = (begin[row_place] - tokens.row_splits[rows.text[chosen]]).repeat(lengths)
                positions = rows.positions[token_positions(rows.splits, chosen)] + shift
            for target, values in zip(targets[view.name], batch_vectors(view, output, positions, splits), strict=True):
                target[chosen] = values
                for row in not_finite_rows(values).tolist():
                    faults[int(rows.text[chosen[row]])] = NOT_FINITE
        cost.pooling_seconds += time.perf_counter() - started
    if faults:
        raise UnencodableTextsError(faults)
    vectors = {view.name: [finish_vectors(view, tokens, values) for values in targets.pop(view.name)] for view in views}
    for view in views:
        for values in vectors[view.name] if view.dtype == "float16" else ():
            for row in np.flatnonzero((np.abs(values) > np.finfo(np.float16).max).any(axis=1)).tolist():
                reason = f"a value is too large for float16, see views.{view.name}.dtype"
                faults = dict.fromkeys(texts_of_row(view, tokens, row), reason) | faults
    if faults:
        raise UnencodableTextsError(faults)
    return VectorBlock(tokens, vectors)


def texts_of_row(view: View, tokens: TokenBlock, row: int) -> list[int]:
    """The texts that a row of a view is made of."""
    if view.level == "record":
        begin, end = records_of(tokens.text)[row : row + 2]
        return list(range(begin, end))
    return [int(tokens.rows[view.name].text[row])]


def encode_texts(
    tokens: TokenBlock, forward: Forward, first: Int64Array, settings: EncodeSettings, cost: EncodeCost
) -> Iterator[tuple[Int64Array, BatchOutput, Int64Array]]:
    """(which of the U texts, what came out, where each one's tokens begin in it) of one forward pass after the other.

    A text in windows comes alone, after the others, its windows put together.
    """
    sequences = cut_sequences(tokens, first, settings.max_seq_length, settings.window_overlap)
    windows = np.bincount(sequences.text, minlength=len(first))
    lengths = np.diff(sequences.splits)

    def run(batches: list[Int64Array]) -> Iterator[tuple[dict[int, Float32Array], Float32Array | None]]:
        """Of each batch what came out of its sequences: rows that only fill a bucket are left out."""
        pad_id, buckets = forward.encoder.pad_id, settings.length_buckets
        padded = (pad_batch(tokens, sequences, batch, pad_id, buckets) for batch in batches)
        for batch, (layers, pooled) in zip(batches, forward(padded, cost), strict=True):
            yield layers, None if pooled is None else pooled[: len(batch)]

    def plan(which: Int64Array) -> list[Int64Array]:
        planned = plan_batches(lengths[which], settings.batch_tokens, settings.length_buckets)
        return [which[batch] for batch in planned]

    batches = plan(np.flatnonzero(windows[sequences.text] == 1))
    for batch, (layers, pooled) in zip(batches, run(batches), strict=True):
        yield sequences.text[batch], BatchOutput(layers, pooled), row_splits_of(lengths[batch])[:-1]
    owned = row_splits_of(np.diff(tokens.row_splits)[first])
    for text in np.flatnonzero(windows > 1):
        of_text = np.flatnonzero(sequences.text == text)
        # In their order: all windows of a text are equally long.
        parts = list(run(plan(of_text)))
        owner = sequences.owner[owned[text] : owned[text + 1]] - sequences.splits[of_text[0]]
        together = {layer: np.concatenate([layers[layer] for layers, _ in parts]) for layer in parts[0][0]}
        firsts = sequences.splits[of_text] - sequences.splits[of_text[0]]
        outputs = [output for _, output in parts if output is not None]
        yield (
            np.array([text]),
            BatchOutput(
                {layer: values[owner] for layer, values in together.items()},
                np.concatenate(outputs).mean(axis=0, keepdims=True) if outputs else None,
                {layer: values[firsts].mean(axis=0, keepdims=True) for layer, values in together.items()},
            ),
            np.zeros(1, np.int64),
        )
