"""Input files listed and cut into slices: the Beam transforms `FindFiles` and `SliceFiles`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice
from layerbeam.transforms.commits import InputFile, SkippedFile
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, RangeScan, cut_file, number_slices, scan_range


@dataclasses.dataclass
class FindFiles(beam.PTransform):
    """Pipeline -> `InputFile`: lists the files that match, each once. Applied to a pipeline or its root.

    Args:
        patterns: A path or glob, or several, on any of Beam's file systems.

    Raises (when the pipeline runs):
        FileNotFoundError: No file matches.
        OSError: What matches cannot be read.

    Example:
        >>> pipeline = beam.Pipeline()
        >>> files = pipeline | FindFiles(["corpus/*.txt", "corpus/*.txt.gz"])
        >>> files.element_type is InputFile
        True
    """

    patterns: str | Sequence[str]

    def expand(self, root: Any) -> Any:
        patterns = [self.patterns] if isinstance(self.patterns, str) else list(self.patterns)
        return root | beam.Create([patterns]) | "list" >> beam.FlatMap(_list_files).with_output_types(InputFile)


def _list_files(patterns: list[str]) -> Iterator[InputFile]:
    found = storage.find_files(patterns)
    if not found:
        raise FileNotFoundError(f"no file matches {', '.join(patterns)}")
    for file in found:
        if isinstance(file, SkippedFile):
            raise OSError(f"{file.path}: {file.reason}")
        yield file


@dataclasses.dataclass
class SliceFiles(beam.PTransform):
    """`InputFile` or `FileToRead` -> `Slice`; tagged `SKIPPED`, what cannot be read and the commits in it.

    Each file is cut into byte ranges. The ranges are scanned in parallel for the places where records begin.

    Args:
        limits: The size of a block. A slice holds at least one.
        record_format: What the files hold and what a record is.

    Returns (from `expand`):
        Two PCollections: `Slice`, and `SkippedFile` or `Commit`. Unpack them, or index by `SLICES` and `SKIPPED`.

    Example:
        >>> pipeline = beam.Pipeline()
        >>> slices, skipped = pipeline | FindFiles("corpus/*.txt") | SliceFiles(record_format=RecordFormat())
        >>> slices.element_type is Slice
        True
    """

    limits: BlockLimits = dataclasses.field(default_factory=BlockLimits)
    record_format: RecordFormat = dataclasses.field(default_factory=RecordFormat)

    SLICES = "slices"
    SKIPPED = "skipped"

    def expand(self, files: Any) -> Any:
        number = beam.FlatMap(_number).with_output_types(Slice)
        return (
            files
            | "cut" >> beam.FlatMap(cut_file, self.limits.text_bytes, self.record_format)
            | "spread ranges" >> beam.Reshuffle()
            | "scan" >> beam.Map(_scan, self.limits, self.record_format)
            | "of one file" >> beam.GroupByKey()
            | "number" >> number.with_outputs(self.SKIPPED, main=self.SLICES)
        )


def _scan(
    element: tuple[FileToRead, int, int | None], limits: BlockLimits, record_format: RecordFormat
) -> tuple[bytes, RangeScan]:
    scan = scan_range(*element, limits, record_format)
    # Bytes, because a file name that is not UTF-8 cannot be encoded as text.
    return os.fsencode(scan.work.file.path), scan


def _number(element: tuple[bytes, Iterable[RangeScan]]) -> Iterator[Any]:
    for item in number_slices(element[1]):
        yield item if isinstance(item, Slice) else beam.pvalue.TaggedOutput(SliceFiles.SKIPPED, item)
