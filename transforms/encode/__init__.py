"""Blocks of tokens to blocks of vectors, with the encoder loaded once per worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import apache_beam as beam
from apache_beam.utils.shared import Shared

from layerbeam.transforms import counters, metrics
from layerbeam.transforms.blocks import (
    TokenBlock,
    VectorBlock,
)
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import EncodeCost, Encoder, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.settings import EncodeSettings
from layerbeam.transforms.views import View


@beam.typehints.with_input_types(TokenBlock)
@beam.typehints.with_output_types(VectorBlock)
class EncodeBlocks(beam.DoFn):
    """`TokenBlock` -> `VectorBlock`, without the texts of which no vector can be made: they are rejected.

    `load` makes the encoder, once per worker process; it must give the layers that the views need. `hardware`:
    what that process may use.
    """

    def __init__(
        self, load: Callable[[], Encoder], views: tuple[View, ...], settings: EncodeSettings, *, hardware: Hardware
    ) -> None:
        self._load = load
        self._views = views
        self._settings = settings
        self._hardware = hardware
        self._shared = Shared()

    def setup(self) -> None:
        load_tensorflow(self._hardware)
        self._forward = self._shared.acquire(lambda: Forward(self._load(), self._hardware.threads))

    def process(self, tokens: TokenBlock) -> Iterator[VectorBlock]:
        counters.note_time(metrics.ENCODING_BEGAN)
        cost = EncodeCost()
        vectors = encode_or_reject(
            tokens,
            lambda block: encode_block(block, self._forward, self._views, self._settings, cost),
            self._forward.check,
        )
        for name, amount in vectors.tokens.text.counts.items():
            counters.count(name, amount - tokens.text.counts.get(name, 0))
        counters.count(metrics.HALVED_BATCHES, cost.halved_batches)
        counters.count(metrics.PADDED_TOKENS, cost.padded_tokens)
        counters.count(metrics.ENCODED_TOKENS, cost.encoded_tokens)
        counters.count_time(metrics.FORWARD_TIME, cost.forward_seconds)
        counters.count_time(metrics.POOLING_TIME, cost.pooling_seconds)
        yield vectors
