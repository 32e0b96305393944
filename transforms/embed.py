"""The same stages for texts of another pipeline: (key, text) -> (key, vectors)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.utils.shared import Shared
from apache_beam.utils.windowed_value import WindowedValue

from layerbeam.transforms.blocks import TextBlock
from layerbeam.transforms.columns import row_columns
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import Encoder, Forward
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.settings import EncodeSettings, SequenceSettings
from layerbeam.transforms.tokenize.row_index import KeepWords, keep_words_of
from layerbeam.transforms.tokenize.sequences import find_rows, tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece
from layerbeam.transforms.views import View

# Columns that only texts of a file have.
_OF_FILES = ("file", "line", "sentence")
_TEXTS_AT_ONCE = 256


def embed_texts(
    texts: list[str],
    wordpiece: WordPiece,
    forward: Forward,
    views: tuple[View, ...],
    *,
    sequences: SequenceSettings,
    settings: EncodeSettings,
    vocabulary: pa.StringArray,
    keep: Mapping[str, KeepWords],
) -> list[dict[str, dict[str, Any]]]:
    """{view: {column: values}} of each text: NumPy arrays [n, W] for vector columns, lists of n for the others.

    n: the number of the text's tokens or words, and 1 at text level.
    """
    tokens = find_rows(tokenize_block(TextBlock.of(texts), wordpiece, sequences), views, keep)
    vectors = encode_block(tokens, forward, views, settings).vectors
    embedded: list[dict[str, dict[str, Any]]] = [{} for _ in texts]
    for view in views:
        columns: dict[str, Any] = row_columns(view, tokens, vocabulary)
        splits = np.searchsorted(columns["line"].to_numpy(), np.arange(len(texts) + 1)).tolist()
        for name in _OF_FILES:
            del columns[name]
        arrays = dict(zip(view.vector_columns, vectors[view.name], strict=True))
        for text, (begin, end) in enumerate(itertools.pairwise(splits)):
            embedded[text][view.name] = {
                **{name: values[begin:end].to_pylist() for name, values in columns.items()},
                **{name: values[begin:end] for name, values in arrays.items()},
            }
    return embedded


@dataclasses.dataclass(eq=False)
class EmbedTexts(beam.DoFn):
    """(key, text) -> (key, {view: {column: values}}), in the same windows and with the same timestamps.

    Texts of a bundle are encoded together, at most 256 at a time. `load` makes the encoder, once per worker process.
    A text whose vectors are not finite (NaN, infinite values) fails the bundle: UnencodableTextsError.
    """

    load: Callable[[], Encoder]
    vocabulary: tuple[str, ...]
    views: tuple[View, ...]
    sequences: SequenceSettings
    settings: EncodeSettings
    _: dataclasses.KW_ONLY
    do_lower_case: bool
    hardware: Hardware

    def __post_init__(self) -> None:
        self._shared = Shared()

    def setup(self) -> None:
        load_tensorflow(self.hardware)
        self._forward = self._shared.acquire(lambda: Forward(self.load(), self.hardware.threads))
        self._wordpiece = WordPiece(self.vocabulary, self.do_lower_case)
        self._keep = keep_words_of(self.views, self._wordpiece)
        self._tokens = pa.array(self.vocabulary, pa.string())

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
        embedded = embed_texts(
            [text for _, text, _, _ in waiting],
            self._wordpiece,
            self._forward,
            self.views,
            sequences=self.sequences,
            settings=self.settings,
            vocabulary=self._tokens,
            keep=self._keep,
        )
        for (key, _, timestamp, window), vectors in zip(waiting, embedded, strict=True):
            yield WindowedValue((key, vectors), timestamp, (window,))
