"""Slices read as blocks of texts: the Beam transform `ReadBlocks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from layerbeam.transforms import coders, counters
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat


@dataclasses.dataclass
class ReadBlocks(beam.PTransform):
    """`Slice` -> `TextBlock`; tagged `DONE`, the commits of blocks that are done, and files that cannot be read.

    Args:
        limits: Where a block ends; the same as for `SliceFiles`.
        record_format: What the files hold and what a record is; the same as for `SliceFiles`.
        hardware: What a worker process may use; splitting sentences by tensorflow_text runs TensorFlow.
        fingerprint: That of the run; blocks whose commit has another one are read too. None: all commits count.

    Returns (from `expand`):
        Two PCollections: `TextBlock`, and `Commit` or `SkippedFile`. Unpack them, or index by `BLOCKS` and `DONE`.

    Example:
        >>> pipeline = beam.Pipeline()
        >>> slices = pipeline | beam.Create([]).with_output_types(Slice)
        >>> blocks, done = slices | ReadBlocks(record_format=RecordFormat(unit="sentence"))
        >>> blocks.element_type is TextBlock
        True
    """

    limits: BlockLimits = dataclasses.field(default_factory=BlockLimits)
    record_format: RecordFormat = dataclasses.field(default_factory=RecordFormat)
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    fingerprint: str | None = None

    BLOCKS = "blocks"
    DONE = "done"

    def expand(self, slices: Any) -> Any:
        coders.register()
        read = beam.ParDo(_ReadSlice(self)).with_outputs(self.DONE, main=self.BLOCKS)
        return slices | "spread slices" >> beam.Reshuffle() | read


@beam.typehints.with_output_types(TextBlock)
class _ReadSlice(beam.DoFn):
    def __init__(self, stage: ReadBlocks) -> None:
        self._limits = stage.limits
        self._record_format = stage.record_format
        self._hardware = stage.hardware
        self._fingerprint = stage.fingerprint

    def setup(self) -> None:
        if self._record_format.unit == "sentence" and self._record_format.sentences == "tensorflow_text":
            load_tensorflow(self._hardware)

    def process(self, slice_: Slice) -> Iterator[Any]:
        items = read_blocks(slice_, self._limits, self._record_format, self._fingerprint)
        for item in counters.timed_items("read", items):
            if isinstance(item, TextBlock):
                counters.count_changes({}, item.counts)
                yield item
            else:
                yield beam.pvalue.TaggedOutput(ReadBlocks.DONE, item)
