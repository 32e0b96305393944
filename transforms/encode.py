"""Blocks of tokens to blocks of vectors, with the encoder loaded once per worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import apache_beam as beam
import numpy as np
from apache_beam.utils.shared import Shared

from transforms import metrics
from transforms.batching import equal_texts, plan_batches, token_positions
from transforms.records import Float32Array, Int32Array, Int64Array, TokenBlock, VectorBlock, row_splits_of
from transforms.threads import load_tensorflow
from transforms.views import BatchOutput, View, batch_vectors, empty_vectors, rows_of_texts


class Encoder(Protocol):
    """A loaded encoder; several threads may call it at once."""

    hidden_size: int
    pad_id: int

    def __call__(
        self, token_ids: Int32Array, lengths: Int32Array, segment_ids: Int32Array
    ) -> tuple[dict[int, Float32Array], Float32Array | None]:
        """Layers and pooled output of one batch.

        `token_ids`, `segment_ids`: [B, S], padded; `lengths`: [B], the real tokens of each row. Gives {layer: [n, H]},
        the n real tokens row after row without padding, and the pooled output [B, H] where it was asked for.
        """


def pad_batch(tokens: TokenBlock, texts: Int64Array, pad_id: int) -> tuple[Int32Array, Int32Array, Int32Array]:
    """(token ids [B, S], lengths [B], segment ids [B, S]) of these texts, S the longest."""
    lengths = np.diff(tokens.row_splits)[texts]
    real = np.arange(int(lengths.max())) < lengths[:, None]
    positions = token_positions(tokens.row_splits, texts)
    token_ids = np.full(real.shape, pad_id, np.int32)
    token_ids[real] = tokens.token_ids[positions]
    segment_ids = np.zeros(real.shape, np.int32)
    segment_ids[real] = tokens.segment_ids[positions]
    return token_ids, lengths.astype(np.int32), segment_ids


def encode_block(tokens: TokenBlock, encoder: Encoder, views: Iterable[View], *, batch_tokens: int) -> VectorBlock:
    """What the views keep of a block, its texts in their order; equal texts are encoded once.

    `batch_tokens`: the budget of padded tokens in a batch.
    """
    vectors = {view: empty_vectors(view, tokens) for view in views}
    lengths = np.diff(tokens.row_splits)
    first, inverse = equal_texts(tokens.row_splits, tokens.token_ids, tokens.segment_ids)
    for batch in plan_batches(lengths[first], batch_tokens):
        texts = first[batch]
        padded = pad_batch(tokens, texts, encoder.pad_id)
        layers, pooled = encoder(*padded)
        row_splits = row_splits_of(lengths[texts])
        is_special = tokens.start[token_positions(tokens.row_splits, texts)] < 0
        output = BatchOutput(layers, pooled, row_splits, is_special)
        for view, targets in vectors.items():
            rows = rows_of_texts(view, tokens, texts)
            for target, values in zip(targets, batch_vectors(view, output), strict=True):
                target[rows] = values
        metrics.count(metrics.PADDED_TOKENS, padded[0].size)
    repeated = np.flatnonzero(first[inverse] != np.arange(len(inverse)))
    if len(repeated):
        for view, targets in vectors.items():
            rows = rows_of_texts(view, tokens, repeated)
            same = rows_of_texts(view, tokens, first[inverse[repeated]])
            for target in targets:
                target[rows] = target[same]
    return VectorBlock(tokens, {view.name: targets for view, targets in vectors.items()})


@beam.typehints.with_input_types(TokenBlock)
@beam.typehints.with_output_types(VectorBlock)
class EncodeBlocks(beam.DoFn):
    """`TokenBlock` -> `VectorBlock`.

    `load` makes the encoder, once per worker process; it must give the layers that the views need. `num_threads`:
    blocks that the process has in hand at once, each with one thread of TensorFlow's.
    """

    def __init__(
        self, load: Callable[[], Encoder], views: tuple[View, ...], *, batch_tokens: int, num_threads: int
    ) -> None:
        self._load = load
        self._views = views
        self._batch_tokens = batch_tokens
        self._num_threads = num_threads
        self._shared = Shared()

    def setup(self) -> None:
        load_tensorflow(self._num_threads)
        self._encoder = self._shared.acquire(self._load)

    def process(self, tokens: TokenBlock) -> Iterator[VectorBlock]:
        yield encode_block(tokens, self._encoder, self._views, batch_tokens=self._batch_tokens)
