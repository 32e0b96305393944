"""Blocks of tokens encoded as blocks of vectors: the Beam transform `EncodeBlocks`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.utils.shared import Shared

from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import EncodeCost, Encoder, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.encoders import EncoderSource, load_encoder
from layerbeam.transforms.flow import counters, metrics
from layerbeam.transforms.flow.blocks import TokenBlock, VectorBlock
from layerbeam.transforms.flow.calls import Caller
from layerbeam.transforms.flow.stage import StageFn, register_coders
from layerbeam.transforms.hardware import Hardware, load_tensorflow, placement
from layerbeam.transforms.settings import EncodeSettings
from layerbeam.transforms.views.view import ViewSpec, needed_dense, needed_layers, needs_pooler


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
        >>> view = ViewSpec(name="texts", level="text", layers=(4, 6), hidden_size=encoder.hidden_size)
        >>> tokens = beam.Pipeline() | beam.Create([]).with_output_types(TokenBlock)
        >>> vectors = tokens | EncodeBlocks(encoder, views=(view,), hardware=Hardware(num_threads=None))
        >>> vectors.element_type is VectorBlock
        True
    """

    encoder: EncoderSource | Callable[[], Encoder]
    _: dataclasses.KW_ONLY
    views: tuple[ViewSpec, ...]
    settings: EncodeSettings = dataclasses.field(default_factory=EncodeSettings)
    hardware: Hardware = dataclasses.field(default_factory=Hardware)

    def __post_init__(self) -> None:
        if isinstance(self.encoder, EncoderSource):
            self.encoder.check(needed_layers(self.views), pooler=needs_pooler(self.views))
        self._shared = Shared()  # in the pickle, so that all threads of a process have one encoder

    def expand(self, blocks: Any) -> Any:
        register_coders()
        encode = beam.ParDo(StageFn(self.start))
        return blocks | encode.with_input_types(TokenBlock).with_output_types(VectorBlock)

    def start(self) -> Callable[[TokenBlock], Iterator[VectorBlock]]:
        """The stage as a function; it loads the encoder, unless it is loaded, or calls the process that has it."""
        address = self.hardware.encoder_process
        encode = self._make_encode() if address is None else Caller(address, self._make_encode)
        return functools.partial(self._run, encode)

    def _make_encode(self) -> Callable[[TokenBlock], tuple[VectorBlock, EncodeCost]]:
        """What encodes a block in this process."""
        load_tensorflow(self.hardware)
        forward = self._shared.acquire(lambda: Forward(self._load(), self.hardware.threads))
        return functools.partial(self._encode, forward)

    def _load(self) -> Encoder:
        if not isinstance(self.encoder, EncoderSource):
            return self.encoder()
        with placement(self.hardware.device):
            layers, dense = needed_layers(self.views), needed_dense(self.views)
            return load_encoder(self.encoder, layers=layers, pooler=needs_pooler(self.views), dense=dense)

    def _encode(self, forward: Forward, tokens: TokenBlock) -> tuple[VectorBlock, EncodeCost]:
        cost = EncodeCost()
        vectors = encode_or_reject(
            tokens, lambda block: encode_block(block, forward, self.views, self.settings, cost), forward.check
        )
        return vectors, cost

    def _run(
        self, encode: Callable[[TokenBlock], tuple[VectorBlock, EncodeCost]], tokens: TokenBlock
    ) -> Iterator[VectorBlock]:
        counters.note_time(metrics.ENCODING_BEGAN)
        vectors, cost = encode(tokens)
        counters.count_changes(tokens.text.counts, vectors.tokens.text.counts)
        counters.count(metrics.HALVED_BATCHES, cost.halved_batches)
        counters.count(metrics.PADDED_TOKENS, cost.padded_tokens)
        counters.count(metrics.ENCODED_TOKENS, cost.encoded_tokens)
        counters.count_time("forward", cost.forward_seconds)
        counters.count_time("pooling", cost.pooling_seconds)
        yield vectors
