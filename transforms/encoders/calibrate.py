"""The codes of a network's inputs to products of int8, from the texts of a calibration.

Those that ship with the package are prose in many languages, code, numbers and noise. Each is encoded alone, and all
together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.int8 import InputCodes
from layerbeam.transforms.encoders.network import Network
from layerbeam.transforms.encoders.source import CALIBRATION, EncoderSource
from layerbeam.transforms.flow.blocks import Float32Array, Int32Array
from layerbeam.transforms.hardware import tf

Tensor = Any  # TensorFlow's

_LONGEST = 512


def calibrate(
    source: EncoderSource,
    weights: Mapping[str, Float32Array],
    layers: Sequence[int],
    *,
    pooler: bool,
    texts: Sequence[str] | None = None,
) -> dict[str, InputCodes]:
    """The codes of the inputs of each product of the blocks that `layers` and the pooler need, by its name in a graph.

    `texts`: by default those that ship with the package. TensorFlow is loaded. The pooler's product is not among them.
    """
    assert source.architecture is not None  # noqa: S101 - for mypy
    last = source.architecture.blocks_needed(layers, pooler=pooler)
    ranges = InputRanges(source.architecture, weights, last, source.special.pad)
    texts = CALIBRATION.read_text(encoding="utf-8").splitlines() if texts is None else texts
    for token_ids, segment_ids in _sequences(source, texts):
        ranges.add(token_ids, segment_ids)
    return ranges.codes()


def _sequences(source: EncoderSource, texts: Sequence[str]) -> Iterator[tuple[Int32Array, Int32Array]]:
    """[1, S] token ids and segment ids of each text, and of all as one text, cut to pairs."""
    from layerbeam.transforms.tokenize.tokenizer import load_text_tokenizer  # it imports this package

    pieces = load_text_tokenizer(source).tokenize(pa.array([*texts, " ".join(texts)]))
    special = source.special
    room = min(source.max_position_embeddings or _LONGEST, _LONGEST) - special.around_text
    for number, (begin, end) in enumerate(itertools.pairwise(pieces.row_splits)):
        for cut in range(begin, end, room):
            ids = pieces.ids[cut : min(cut + room, end)]
            token_ids = np.array([[*special.before, *ids, *special.behind]], np.int32)
            segment_ids = np.zeros_like(token_ids)
            if source.has_segments and number == len(texts):
                segment_ids[:, len(ids) // 2 :] = 1
            yield token_ids, segment_ids


class InputRanges(Network):
    """The smallest and the largest inputs of each product of the first blocks in float32, over texts that are added."""

    def __init__(
        self, architecture: Architecture, weights: Mapping[str, Float32Array], num_blocks: int, pad_id: int = 0
    ) -> None:
        self._readers: set[str] = set()
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}  # of the graph
        self._ranges: dict[str, tuple[Float32Array, Float32Array]] = {}
        super().__init__(architecture, weights, layers=[num_blocks], pad_id=pad_id)

    def add(self, token_ids: Int32Array, segment_ids: Int32Array) -> None:
        """Widen the ranges to those of a sequence, [1, S] each."""
        lengths = np.full(1, token_ids.shape[1], np.int32)
        seen = self._graph(*(tf.constant(values, tf.int32) for values in (token_ids, lengths, segment_ids)))
        for name, (low, high) in seen.items():
            lowest, highest = self._ranges.get(name, (low, high))
            self._ranges[name] = np.minimum(low, lowest), np.maximum(high, highest)

    def codes(self) -> dict[str, InputCodes]:
        """The codes for these ranges, by the name of the product."""
        return {
            name: InputCodes.of_range(low, high, one_step=name in self._readers)
            for name, (low, high) in self._ranges.items()
        }

    def _forward(self, is_long: bool, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor) -> Any:
        self._encode_batch(is_long, token_ids, lengths, segment_ids)
        return self._seen

    def dense(self, name: str, values: Tensor, activation: Any = None, *, reader: str | None = None) -> Tensor:
        if reader is not None:
            self._readers.add(reader)
        if name.startswith("bert/encoder/"):  # a projection of the embeddings costs little, and all layers depend on it
            low, high = tf.reduce_min(values, axis=0), tf.reduce_max(values, axis=0)
            lowest, highest = self._seen.get(name, (low, high))  # blocks may share a product
            self._seen[name] = tf.minimum(low, lowest), tf.maximum(high, highest)
        return super().dense(name, values, activation, reader=reader)
