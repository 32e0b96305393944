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
from layerbeam.transforms.views import View, needed_dense, needed_layers, needs_pooler


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
            self.encoder.check(needed_layers(self.views), pooler=needs_pooler(self.views))

    def expand(self, blocks: Any) -> Any:
        coders.register()
        return blocks | beam.ParDo(_EncodeBlock(self))


@beam.typehints.with_input_types(TokenBlock)
@beam.typehints.with_output_types(VectorBlock)
class _EncodeBlock(beam.DoFn):
    def __init__(self, stage: EncodeBlocks) -> None:
        self._stage = stage
        self._shared = Shared()

    def setup(self) -> None:
        load_tensorflow(self._stage.hardware)
        self._forward = self._shared.acquire(lambda: Forward(self._load(), self._stage.hardware.threads))

    def _load(self) -> Encoder:
        encoder, views = self._stage.encoder, self._stage.views
        if not isinstance(encoder, EncoderSource):
            return encoder()
        with placement(self._stage.hardware.device):
            layers, dense = needed_layers(views), needed_dense(views)
            return load_encoder(encoder, layers=layers, pooler=needs_pooler(views), dense=dense)

    def process(self, tokens: TokenBlock) -> Iterator[VectorBlock]:
        counters.note_time(metrics.ENCODING_BEGAN)
        cost = EncodeCost()
        vectors = encode_or_reject(
            tokens,
            lambda block: encode_block(block, self._forward, self._stage.views, self._stage.settings, cost),
            self._forward.check,
        )
        counters.count_changes(tokens.text.counts, vectors.tokens.text.counts)
        counters.count(metrics.HALVED_BATCHES, cost.halved_batches)
        counters.count(metrics.PADDED_TOKENS, cost.padded_tokens)
        counters.count(metrics.ENCODED_TOKENS, cost.encoded_tokens)
        counters.count_time("forward", cost.forward_seconds)
        counters.count_time("pooling", cost.pooling_seconds)
        yield vectors
