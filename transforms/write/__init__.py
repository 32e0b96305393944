"""Blocks of vectors written as parts, rejects as JSON Lines, and the commit last."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
import pyarrow as pa

from layerbeam.transforms import counters, metrics
from layerbeam.transforms.blocks import VectorBlock
from layerbeam.transforms.commits import Commit, SkippedFile
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_block


@beam.typehints.with_input_types(VectorBlock)
class WriteBlocks(beam.DoFn):
    """`VectorBlock` -> `Commit`, after all that it lists is written, or `SkippedFile` if the file has changed."""

    def __init__(self, output: Output, views: tuple[View, ...], vocabulary: tuple[str, ...]) -> None:
        self._output = output
        self._views = views
        self._vocabulary = vocabulary

    def setup(self) -> None:
        self._tokens = pa.array(self._vocabulary, pa.string())

    def process(self, block: VectorBlock) -> Iterator[Commit | SkippedFile]:
        with counters.timed(metrics.WRITE_TIME):
            done = write_block(self._output, self._views, self._tokens, block)
        if isinstance(done, Commit):
            for name in (metrics.TOKENS, metrics.UNKNOWN_TOKENS, metrics.TRUNCATED_TEXTS, metrics.DROPPED_TOKENS):
                counters.count(name, done.counts[name])
            counters.count(metrics.BLOCKS_WRITTEN, 1)
        yield done
