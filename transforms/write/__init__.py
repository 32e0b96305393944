"""Blocks of vectors written as files: the Beam transform `WriteBlocks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa

from layerbeam.transforms import counters, metrics
from layerbeam.transforms.blocks import VectorBlock
from layerbeam.transforms.commits import Commit, SkippedFile
from layerbeam.transforms.committed import put_commit
from layerbeam.transforms.encoders.source import EncoderSource
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_parts


@dataclasses.dataclass
class WriteBlocks(beam.PTransform):
    """`VectorBlock` -> `Commit`, after the files that it lists are written, or `SkippedFile` if the input has changed.

    Args:
        output: The output folder and the fingerprint of the run.
        encoder: The opened encoder, which has the vocabulary.
        views: The same views as for `EncodeBlocks`. Each block becomes a part of each view that has rows.

    Returns (from `expand`):
        A PCollection of `Commit` or `SkippedFile`, one for each block. Blocks must have been read from a file.

    Example:
        >>> from layerbeam.transforms.encoders import open_encoder
        >>> encoder = open_encoder("minilm")
        >>> view = View(name="texts", level="text", layers=(6,), hidden_size=encoder.hidden_size)
        >>> vectors = beam.Pipeline() | beam.Create([]).with_output_types(VectorBlock)
        >>> commits = vectors | WriteBlocks(Output("out", fingerprint="first"), encoder, views=(view,))
    """

    output: Output
    encoder: EncoderSource
    _: dataclasses.KW_ONLY
    views: tuple[View, ...]

    def expand(self, blocks: Any) -> Any:
        return blocks | beam.ParDo(_WriteBlock(self))


@beam.typehints.with_input_types(VectorBlock)
class _WriteBlock(beam.DoFn):
    def __init__(self, stage: WriteBlocks) -> None:
        self._stage = stage

    def setup(self) -> None:
        self._tokens = pa.array(self._stage.encoder.vocabulary, pa.string())

    def process(self, block: VectorBlock | Commit) -> Iterator[Commit | SkippedFile]:
        if isinstance(block, Commit):
            yield block
            return
        with counters.timed("write"):
            output = self._stage.output
            written = write_parts(output, self._stage.views, self._tokens, block)
            done = written if isinstance(written, SkippedFile) else put_commit(output, written)
        if isinstance(written, Commit) and isinstance(done, Commit):
            for name in (metrics.TOKENS, metrics.UNKNOWN_TOKENS, metrics.TRUNCATED_TEXTS, metrics.DROPPED_TOKENS):
                counters.count(name, written.counts[name])
            counters.count(metrics.BLOCKS_WRITTEN, 1)
            if done is not written:
                counters.count(metrics.blocks_found(done.attempt, output.attempt), 1)
        yield done
