"""Embeds in-memory texts: what `layerbeam.encode` and the transforms for other Beam pipelines share."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import EncodeCost, Forward
from layerbeam.transforms.encode.isolate import encode_or_reject
from layerbeam.transforms.encoders import EncoderSource
from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock, VectorBlock
from layerbeam.transforms.settings import EncodeSettings, SequenceSettings
from layerbeam.transforms.tokenize.tokenizer import Tokenizer
from layerbeam.transforms.views.columns import row_columns, vector_splits
from layerbeam.transforms.views.view import ViewSpec

# Of one text: {view: {column: values}}. Vector columns are arrays [n, W], other columns lists of n values; n is the
# number of the text's tokens or words, and 1 at level text; with pooling none its vectors are [k, W] of its k tokens.
Vectors: TypeAlias = dict[str, dict[str, Any]]
# Columns that only texts of a file have.
OF_FILES = ("file", "line", "sentence")


class TextError(ValueError):
    """A text that has no vectors. The message is the reason."""


class Embedder:
    """A loaded encoder and the views that it makes of texts. Thread-safe."""

    def __init__(
        self,
        forward: Forward,
        source: EncoderSource,
        views: Sequence[ViewSpec],
        sequences: SequenceSettings,
        settings: EncodeSettings,
    ) -> None:
        self.views = views
        self.vocabulary = pa.array(source.vocabulary, pa.string())
        self._forward = forward
        self._tokenize = Tokenizer(source, views, sequences)
        self._settings = settings
        self._lock = threading.Lock()

    def embed_or_reject(self, texts: TextBlock, cost: EncodeCost | None = None) -> VectorBlock:
        """As in a run: texts that cannot be encoded become rejects. `cost` is added to."""
        with self._lock:
            tokens = self._tokenize(texts)

        def encode(block: TokenBlock) -> VectorBlock:
            return encode_block(block, self._forward, self.views, self._settings, cost)

        return encode_or_reject(tokens, encode, self._forward.check)

    def embed(self, texts: Sequence[str | None], cost: EncodeCost | None = None) -> list[Vectors | TextError]:
        """The vectors of each text, or why it has none. `cost` is added to."""
        results: list[Any] = [TextError("the text is null") if text is None else None for text in texts]
        given = [number for number, error in enumerate(results) if error is None]
        if given:
            block = self.embed_or_reject(TextBlock.of([texts[number] or "" for number in given]), cost)
            for number, rows in zip(given, self._rows(block, len(given)), strict=True):
                results[number] = rows
            for rejected in block.tokens.text.rejected:
                results[given[rejected.line]] = TextError(rejected.reason)
        return results

    def _rows(self, block: VectorBlock, count: int) -> list[Vectors]:
        """The rows of each of the texts with the lines 0 to `count`."""
        rows: list[Vectors] = [{} for _ in range(count)]
        for view in self.views:
            columns: dict[str, Any] = row_columns(view, block.tokens, self.vocabulary)
            splits = np.searchsorted(columns["line"].to_numpy(), np.arange(count + 1)).tolist()
            for name in OF_FILES:
                del columns[name]
            of_rows = vector_splits(view, block.tokens) if view.has_vector_lists else np.arange(splits[-1] + 1)
            arrays = dict(zip(view.vector_columns, block.vectors[view.name], strict=True))
            for of_text, (begin, end) in zip(rows, itertools.pairwise(splits), strict=True):
                span = slice(of_rows[begin], of_rows[end])
                of_text[view.name] = {
                    **{name: values[begin:end].to_pylist() for name, values in columns.items()},
                    **{name: values[span] for name, values in arrays.items()},
                }
        return rows
