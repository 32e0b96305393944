"""Input files listed and cut into slices: the Beam transforms `FindFiles`, for custom pipelines, and `SliceFiles`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import Slice
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.flow.stage import SKIPPED
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, RangeScan, cut_file, number_slices, scan_range, share_slice

# Slices that are held to be sorted.
_HELD = 10_000


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
        if file.problem:
            raise OSError(f"{file.path}: {file.problem}")
        yield file


@dataclasses.dataclass
class SliceFiles(beam.PTransform):
    """`InputFile` or `FileToRead` -> `Slice`, and what cannot be read.

    Each file is cut into byte ranges, which are scanned for the places where records begin.

    Args:
        limits: The size of a block. A slice holds at least one.
        record_format: What the files hold and what a record is.
        num_readers: The workers, if that is known. What one thread must read, a compressed file or a large row group,
            so many share even if it has few blocks, and up to 64 if it has many. Each of them reads all of it and keeps
            its share of the blocks. Reading takes a thousandth of the time for encoding.
        spread: Whether many workers scan the ranges. For a small input it costs more than it saves.

    Returns (from `expand`):
        Two PCollections: `Slice`, and `InputFile` with its problem.

    Example:
        >>> pipeline = beam.Pipeline()
        >>> slices, skipped = pipeline | FindFiles("corpus/*.txt") | SliceFiles(record_format=RecordFormat())
        >>> slices.element_type is Slice
        True
    """

    limits: BlockLimits = dataclasses.field(default_factory=BlockLimits)
    record_format: RecordFormat = dataclasses.field(default_factory=RecordFormat)
    num_readers: int = 1
    spread: bool = True

    def expand(self, files: Any) -> Any:
        number = beam.ParDo(_Number(self)).with_output_types(Slice)
        if not self.spread:
            scanned = files | "scan" >> beam.Map(_scan_file, self.limits, self.record_format)
            return scanned | "number" >> number.with_outputs(SKIPPED, main="slices")
        return (
            files
            | "cut" >> beam.FlatMap(cut_file, self.limits.text_bytes, self.record_format)
            | "spread ranges" >> beam.Reshuffle()
            | "scan" >> beam.Map(_scan, self.limits, self.record_format)
            | "of one file" >> beam.GroupByKey()
            | "number" >> number.with_outputs(SKIPPED, main="slices")
        )

    def start(self) -> Callable[[FileToRead | InputFile], Iterator[Slice | InputFile]]:
        """The stage as a function of one file."""
        return lambda file: self.number(_scan_file(file, self.limits, self.record_format)[1])

    def number(self, scans: Iterable[RangeScan]) -> Iterator[Slice | InputFile]:
        """The slices of one file, each as often as it has readers, or the reason why the file cannot be read."""
        for item in number_slices(scans, self.limits, self.record_format):
            if isinstance(item, InputFile):
                yield item
            else:
                yield from share_slice(item, self.limits, self.record_format, self.num_readers)


def _scan_file(
    file: FileToRead | InputFile, limits: BlockLimits, record_format: RecordFormat
) -> tuple[bytes, list[RangeScan]]:
    """The path of one file, and the scans of all its ranges."""
    scans = [_scan(each, limits, record_format) for each in cut_file(file, limits.text_bytes, record_format)]
    return scans[0][0], [scan for _, scan in scans]


def _scan(
    element: tuple[FileToRead, int, int | None], limits: BlockLimits, record_format: RecordFormat
) -> tuple[bytes, RangeScan]:
    scan = scan_range(*element, limits, record_format)
    # Bytes, because a file name that is not UTF-8 cannot be encoded as text.
    return os.fsencode(scan.work.file.path), scan


class _Number(beam.DoFn):
    """(path, its scans) -> `Slice`, the large ones of a bundle first.

    Beam's local runner gives them to its workers in turn: so the large ones are spread evenly.
    """

    def __init__(self, stage: SliceFiles) -> None:
        self._stage = stage

    def start_bundle(self) -> None:
        self._held: list[Slice] = []

    def process(self, element: tuple[bytes, Iterable[RangeScan]]) -> Iterator[Any]:
        for item in self._stage.number(element[1]):
            if isinstance(item, InputFile):
                yield beam.pvalue.TaggedOutput(SKIPPED, item)
            else:
                self._held.append(item)
        if len(self._held) >= _HELD:
            yield from self._largest_first()

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(GlobalWindows.windowed_value, self._largest_first())

    def _largest_first(self) -> list[Slice]:
        held, self._held = self._held, []
        # Of about the same size, so that those of a file stay in their order.
        return sorted(held, key=lambda slice_: slice_.size * 8 // self._stage.limits.text_bytes, reverse=True)
