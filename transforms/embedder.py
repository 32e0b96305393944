"""Texts of a program to vectors, in this process: what `layerbeam.encode` and the Beam transform `EmbedTexts` share."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa

from layerbeam.transforms.blocks import TextBlock, TokenBlock, VectorBlock
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.encoders.source import EncoderSource
from layerbeam.transforms.settings import EncodeSettings, SequenceSettings
from layerbeam.transforms.tokenize.sequences import Tokenizer
from layerbeam.transforms.views import View


class Embedder:
    """A loaded encoder and the views that it makes of a block of texts. Thread-safe."""

    def __init__(
        self,
        forward: Forward,
        source: EncoderSource,
        views: Sequence[View],
        sequences: SequenceSettings,
        settings: EncodeSettings,
    ) -> None:
        self.views = views
        self.vocabulary = pa.array(source.vocabulary, pa.string())
        self._forward = forward
        self._tokenize = Tokenizer(source, views, sequences)
        self._settings = settings
        self._lock = threading.Lock()

    def __call__(self, texts: TextBlock) -> VectorBlock:
        """The vectors of all texts. UnencodableTextsError if some are not finite (NaN, infinite values)."""
        return self._encode(self._tokens(texts))

    def embed_or_reject(self, texts: TextBlock) -> VectorBlock:
        """As in a run: texts that cannot be encoded become rejects."""
        return encode_or_reject(self._tokens(texts), self._encode, self._forward.check)

    def _tokens(self, texts: TextBlock) -> TokenBlock:
        with self._lock:
            return self._tokenize(texts)

    def _encode(self, tokens: TokenBlock) -> VectorBlock:
        return encode_block(tokens, self._forward, self.views, self._settings)
