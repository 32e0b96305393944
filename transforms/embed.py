"""The same stages for texts of another pipeline: (key, text) -> (key, vectors)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.utils.shared import Shared
from apache_beam.utils.windowed_value import WindowedValue

from layerbeam.transforms.blocks import TextBlock
from layerbeam.transforms.columns import row_columns
from layerbeam.transforms.embedder import Embedder
from layerbeam.transforms.encode.forward import Encoder, Forward
from layerbeam.transforms.encoders.source import EncoderSource
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.settings import EncodeSettings, SequenceSettings
from layerbeam.transforms.views import View

# Columns that only texts of a file have.
_OF_FILES = ("file", "line", "sentence")
_TEXTS_AT_ONCE = 256


@dataclasses.dataclass(eq=False)
class EmbedTexts(beam.DoFn):
    """(key, text) -> (key, {view: {column: values}}), in the same windows and with the same timestamps.

    The values of one text are NumPy arrays [n, W] for vector columns and lists of n for the others; n is the number of
    its tokens or words, and 1 at text level. Texts of a bundle are encoded together, at most 256 at a time. `load`
    makes the encoder, once per worker process. A text whose vectors are not finite (NaN, infinite values) fails the
    bundle: UnencodableTextsError.
    """

    load: Callable[[], Encoder]
    source: EncoderSource
    views: tuple[View, ...]
    sequences: SequenceSettings
    settings: EncodeSettings
    hardware: Hardware

    def __post_init__(self) -> None:
        self._shared = Shared()

    def setup(self) -> None:
        load_tensorflow(self.hardware)
        forward = self._shared.acquire(lambda: Forward(self.load(), self.hardware.threads))
        self._embedder = Embedder(forward, self.source, self.views, self.sequences, self.settings)

    def start_bundle(self) -> None:
        self._waiting: list[tuple[Any, str, Any, Any]] = []

    def process(
        self,
        element: tuple[Any, str],
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterator[WindowedValue]:
        if not isinstance(element, tuple) or len(element) != 2 or not isinstance(element[1], str):
            raise TypeError(f"EmbedText: elements are (key, text), text a string; this one is {str(element)!r:.60}")
        key, text = element
        self._waiting.append((key, text, timestamp, window))
        if len(self._waiting) >= _TEXTS_AT_ONCE:
            yield from self._embed()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from self._embed()

    def _embed(self) -> Iterator[WindowedValue]:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        block = self._embedder(TextBlock.of([text for _, text, _, _ in waiting]))
        embedded: list[dict[str, dict[str, Any]]] = [{} for _ in waiting]
        for view in self.views:
            columns: dict[str, Any] = row_columns(view, block.tokens, self._embedder.vocabulary)
            splits = np.searchsorted(columns["line"].to_numpy(), np.arange(len(waiting) + 1)).tolist()
            for name in _OF_FILES:
                del columns[name]
            arrays = dict(zip(view.vector_columns, block.vectors[view.name], strict=True))
            for text, (begin, end) in enumerate(itertools.pairwise(splits)):
                embedded[text][view.name] = {
                    **{name: values[begin:end].to_pylist() for name, values in columns.items()},
                    **{name: values[begin:end] for name, values in arrays.items()},
                }
        for (key, _, timestamp, window), rows in zip(waiting, embedded, strict=True):
            yield WindowedValue((key, rows), timestamp, (window,))
