"""Blocks of vectors written as files: the Beam transform `WriteBlocks`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa

from layerbeam.transforms.encoders import EncoderSource
from layerbeam.transforms.flow import counters, metrics
from layerbeam.transforms.flow.blocks import VectorBlock
from layerbeam.transforms.flow.commits import Commit, InputFile
from layerbeam.transforms.flow.stage import StageFn
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views.view import ViewSpec
from layerbeam.transforms.write.block import write_parts


@dataclasses.dataclass
class WriteBlocks(beam.PTransform):
    """`VectorBlock` -> `Commit`, after the files that it lists are written; `InputFile` for input that has changed.

    Args:
        output: The output folder and the fingerprint of the run.
        encoder: The opened encoder, which has the vocabulary.
        views: The same views as for `EncodeBlocks`. Each block becomes a part of each view that has rows.

    Returns (from `expand`):
        A PCollection of `Commit`, one for each block, and an `InputFile` with its problem for each file that has
        changed. Blocks must have been read from files.

    Example:
        >>> from layerbeam.transforms.encoders import open_encoder
        >>> encoder = open_encoder("minilm")
        >>> view = ViewSpec(name="texts", level="text", layers=(6,), hidden_size=encoder.hidden_size)
        >>> vectors = beam.Pipeline() | beam.Create([]).with_output_types(VectorBlock)
        >>> commits = vectors | WriteBlocks(Output("out", fingerprint="first"), encoder, views=(view,))
    """

    output: Output
    encoder: EncoderSource
    _: dataclasses.KW_ONLY
    views: tuple[ViewSpec, ...]

    def expand(self, blocks: Any) -> Any:
        return blocks | beam.ParDo(StageFn(self.start)).with_input_types(VectorBlock)

    def start(self) -> Callable[[VectorBlock], Iterator[Commit | InputFile]]:
        """The stage as a function."""
        return functools.partial(
            self._write, BlockStore(self.output, self.views), pa.array(self.encoder.vocabulary, pa.string())
        )

    def _write(self, store: BlockStore, vocabulary: pa.StringArray, block: VectorBlock) -> Iterator[Commit | InputFile]:
        with counters.timed("write"):
            written = list(write_parts(store, vocabulary, block))
            done = [item if isinstance(item, InputFile) else store.put(item) for item in written]
        for ours, item in zip(written, done, strict=True):
            if isinstance(ours, Commit) and isinstance(item, Commit):
                for name in (metrics.TOKENS, metrics.UNKNOWN_TOKENS, metrics.TRUNCATED_TEXTS, metrics.DROPPED_TOKENS):
                    counters.count(name, ours.counts[name])
                counters.count(metrics.BLOCKS_WRITTEN, 1)
                counters.count(metrics.WRITTEN_TEXTS, metrics.embedded_texts(ours.counts))
                if item is not ours:
                    counters.count(metrics.blocks_found(item.attempt, self.output.attempt), 1)
        yield from done
