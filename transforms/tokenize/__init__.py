"""Blocks of texts cut into tokens: the Beam transform `TokenizeBlocks`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam

from layerbeam.transforms.encoders import EncoderSource
from layerbeam.transforms.flow import counters
from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock
from layerbeam.transforms.flow.stage import StageFn, register_coders
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.settings import SequenceSettings
from layerbeam.transforms.tokenize.tokenizer import Tokenizer
from layerbeam.transforms.views.view import ViewSpec


@dataclasses.dataclass
class TokenizeBlocks(beam.PTransform):
    """`TextBlock` -> `TokenBlock`, with the rows of each view.

    Args:
        encoder: The opened encoder, which has the vocabulary and the casing.
        views: The views that will be encoded.
        settings: How texts become sequences.
        hardware: What a worker process may use; TF Text cuts the words.

    Returns (from `expand`):
        A PCollection of `TokenBlock`, one for each block. Rejected texts are in its `text.rejected`.

    Example:
        >>> from layerbeam.transforms.encoders import open_encoder
        >>> encoder = open_encoder("minilm")
        >>> view = ViewSpec(name="words", level="word", layers=(6,), hidden_size=encoder.hidden_size)
        >>> texts = beam.Pipeline() | beam.Create([TextBlock.of(["A river bank.", "A bank holiday."])])
        >>> tokens = texts | TokenizeBlocks(encoder, views=(view,))
        >>> tokens.element_type is TokenBlock
        True
    """

    encoder: EncoderSource
    _: dataclasses.KW_ONLY
    views: tuple[ViewSpec, ...]
    settings: SequenceSettings = dataclasses.field(default_factory=SequenceSettings)
    hardware: Hardware = dataclasses.field(default_factory=Hardware)

    def expand(self, blocks: Any) -> Any:
        register_coders()
        tokenize = beam.ParDo(StageFn(self.start))
        return blocks | tokenize.with_input_types(TextBlock).with_output_types(TokenBlock)

    def start(self) -> Callable[[TextBlock], Iterator[TokenBlock]]:
        """The stage as a function. Imports TensorFlow."""
        load_tensorflow(self.hardware)
        return functools.partial(self._tokenize, Tokenizer(self.encoder, self.views, self.settings))

    def _tokenize(self, tokenizer: Tokenizer, block: TextBlock) -> Iterator[TokenBlock]:
        with counters.timed("tokenize"):
            tokens = tokenizer(block)
        # Here and not when it is read: of blocks that were read, an attempt that is repeated may find some done.
        counters.count_changes({}, tokens.text.counts)
        yield tokens
