"""Files cut in slices: where each begins, and with which line or row."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from layerbeam.transforms.blocks import Slice
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, RangeScan, cut_file, number_slices, scan_range


@beam.typehints.with_output_types(tuple[bytes, RangeScan])
class _ScanRanges(beam.DoFn):
    def __init__(self, limits: BlockLimits, record_format: RecordFormat) -> None:
        self._limits = limits
        self._how = record_format

    def process(self, element: tuple[FileToRead, int, int | None]) -> Iterator[tuple[bytes, RangeScan]]:
        scanned = scan_range(*element, self._limits, self._how)
        # Bytes, not text: a name that is not UTF-8 has no UTF-8 coding.
        yield os.fsencode(scanned.work.file.path), scanned


@dataclasses.dataclass
class SliceFiles(beam.PTransform):
    """`FileToRead` -> `Slice`, each file cut, its ranges scanned in parallel; tagged `LEFT_OUT`, what can't be read."""

    limits: BlockLimits
    record_format: RecordFormat = dataclasses.field(default_factory=RecordFormat)

    SLICES = "slices"
    SKIPPED = "left_out"

    def expand(self, files: Any) -> Any:
        return (
            files
            | "cut" >> beam.FlatMap(cut_file, self.limits.text_bytes, self.record_format)
            | "spread ranges" >> beam.Reshuffle()
            | "scan" >> beam.ParDo(_ScanRanges(self.limits, self.record_format))
            | "of one file" >> beam.GroupByKey()
            | "number" >> beam.ParDo(_NumberSlices()).with_outputs(self.SKIPPED, main=self.SLICES)
        )


@beam.typehints.with_output_types(Slice)
class _NumberSlices(beam.DoFn):
    def process(self, element: tuple[bytes, Iterable[RangeScan]]) -> Iterator[Any]:
        for item in number_slices(element[1]):
            yield item if isinstance(item, Slice) else beam.pvalue.TaggedOutput(SliceFiles.SKIPPED, item)
