"""Blocks of tokens encoded as blocks of vectors: the Beam transform `EncodeBlocks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.utils.shared import Shared

from layerbeam.transforms import coders, counters, metrics
from layerbeam.transforms.blocks import TokenBlock, VectorBlock
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import EncodeCost, Encoder, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.encoders import EncoderSource, load_encoder
from layerbeam.transforms.hardware import Hardware, load_tensorflow, placement
from layerbeam.transforms.settings import EncodeSettings
from layerbeam.transforms.views import View, needed_layers


@dataclasses.dataclass
class EncodeBlocks(beam.PTransform):
    """`TokenBlock` -> `VectorBlock`, without the texts that cannot be encoded: these become rejects.

    Args:
        encoder: The opened encoder, or a function that loads one with the layers of the views. It is loaded once per
            worker process.
        views: The same views as for `TokenizeBlocks`.
        settings: How texts are batched. Texts longer than its `max_seq_length` are encoded in windows.
        hardware: What a worker process may use.

    Returns (from `expand`):
        A PCollection of `VectorBlock`, one for each block. Rejected texts are in its `tokens.text.rejected`.

    Raises:
        EncoderError: The encoder does not have a layer, or the pooled output, that a view reads.

    Example:
        >>> from layerbeam.transforms.encoders import open_encoder
        >>> encoder = open_encoder("minilm")
        >>> view = View(name="texts", level="text", layers=(4, 6), hidden_size=encoder.hidden_size)
        >>> tokens = beam.Pipeline() | beam.Create([]).with_output_types(TokenBlock)
        >>> vectors = tokens | EncodeBlocks(encoder, views=(view,), hardware=Hardware(num_threads=None))
        >>> vectors.element_type is VectorBlock
        True
    """

    encoder: EncoderSource | Callable[[], Encoder]
    _: dataclasses.KW_ONLY
    views: tuple[View, ...]
    settings: EncodeSettings = dataclasses.field(default_factory=EncodeSettings)
    hardware: Hardware = dataclasses.field(default_factory=Hardware)

    def __post_init__(self) -> None:
        if isinstance(self.encoder, EncoderSource):
            self.encoder.check(needed_layers(self.views), pooler=any(view.uses_pooler for view in self.views))

    def expand(self, blocks: Any) -> Any:
        coders.register()
        return blocks | beam.ParDo(_EncodeBlock(self))


@beam.typehints.with_input_types(TokenBlock)
@beam.typehints.with_output_types(VectorBlock)
class _EncodeBlock(beam.DoFn):
    def __init__(self, stage: EncodeBlocks) -> None:
        self._encoder = stage.encoder
        self._views = stage.views
        self._settings = stage.settings
        self._hardware = stage.hardware
        self._shared = Shared()

    def setup(self) -> None:
        load_tensorflow(self._hardware)
        self._forward = self._shared.acquire(lambda: Forward(self._load(), self._hardware.threads))

    def _load(self) -> Encoder:
        if not isinstance(self._encoder, EncoderSource):
            return self._encoder()
        with placement(self._hardware.device):
            pooler = any(view.uses_pooler for view in self._views)
            return load_encoder(self._encoder, layers=needed_layers(self._views), pooler=pooler)

    def process(self, tokens: TokenBlock) -> Iterator[VectorBlock]:
        counters.note_time(metrics.ENCODING_BEGAN)
        cost = EncodeCost()
        vectors = encode_or_reject(
            tokens,
            lambda block: encode_block(block, self._forward, self._views, self._settings, cost),
            self._forward.check,
        )
        counters.count_changes(tokens.text.counts, vectors.tokens.text.counts)
        counters.count(metrics.HALVED_BATCHES, cost.halved_batches)
        counters.count(metrics.PADDED_TOKENS, cost.padded_tokens)
        counters.count(metrics.ENCODED_TOKENS, cost.encoded_tokens)
        counters.count_time(metrics.FORWARD_TIME, cost.forward_seconds)
        counters.count_time(metrics.POOLING_TIME, cost.pooling_seconds)
        yield vectors
