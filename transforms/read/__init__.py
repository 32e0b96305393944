"""Slices read as blocks of texts: whatever the format, what is done and unchanged is not decoded again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from layerbeam.transforms import counters, metrics
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat


@dataclasses.dataclass
class ReadBlocks(beam.PTransform):
    """`Slice` -> `TextBlock`; tagged `DONE`, the `Commit` of what needs no work and `SkippedFile`.

    `hardware`: what a worker process may use.
    """

    limits: BlockLimits
    record_format: RecordFormat = dataclasses.field(default_factory=RecordFormat)
    hardware: Hardware = dataclasses.field(default_factory=Hardware)

    BLOCKS = "blocks"
    DONE = "done"

    def expand(self, slices: Any) -> Any:
        read = _ReadSlice(self.limits, self.record_format, self.hardware)
        return slices | "spread slices" >> beam.Reshuffle() | beam.ParDo(read).with_outputs(self.DONE, main=self.BLOCKS)


@beam.typehints.with_output_types(TextBlock)
class _ReadSlice(beam.DoFn):
    def __init__(self, limits: BlockLimits, record_format: RecordFormat, hardware: Hardware) -> None:
        self._limits = limits
        self._how = record_format
        self._hardware = hardware

    def setup(self) -> None:
        if self._how.unit == "sentence":
            load_tensorflow(self._hardware)

    def process(self, slice_: Slice) -> Iterator[Any]:
        for item in counters.timed_items(metrics.READ_TIME, read_blocks(slice_, self._limits, self._how)):
            if isinstance(item, TextBlock):
                for name, amount in item.counts.items():
                    counters.count(name, amount)
                yield item
            else:
                yield beam.pvalue.TaggedOutput(ReadBlocks.DONE, item)
