"""Input files listed and cut into slices: the Beam transforms `FindFiles` and `SliceFiles`."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice
from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import (
    FileToRead,
    LineCount,
    RangeScan,
    cut_file,
    number_slices,
    scan_range,
    stretch_of,
)

_SKIPPED = "skipped"
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

    Each file is cut into byte ranges. The ranges are scanned in parallel for the places where records begin.

    Args:
        limits: The size of a block. A slice holds at least one.
        record_format: What the files hold and what a record is.
        huge_files: Whether the ranges of a huge file are grouped in stretches, so that no element holds all of them.
            That is a stage more, and of no use to a runner that holds all that it groups in one process.
        num_readers: Workers that share the blocks of a compressed file, or of a large row group. Each of them reads all
            of it, which takes a thousandth of the time for encoding.

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
    huge_files: bool = True
    num_readers: int = 1

    def expand(self, files: Any) -> Any:
        scans = (
            files
            | "cut" >> beam.FlatMap(cut_file, self.limits.text_bytes, self.record_format)
            | "spread ranges" >> beam.Reshuffle()
            | "scan" >> beam.Map(_scan, self.limits, self.record_format, self.huge_files)
        )
        counts: Any = {}
        if self.huge_files:  # What each stretch of a file must know of the others is a number.
            of_huge_files = scans | "of huge files" >> beam.FlatMap(_count_lines, self.limits.text_bytes)
            combined = of_huge_files | "count" >> beam.CombineGlobally(_merge_counts).without_defaults()
            counts = beam.pvalue.AsSingleton(combined, {})
        number = beam.ParDo(_Number(self), counts).with_output_types(Slice)
        return scans | "of one stretch" >> beam.GroupByKey() | "number" >> number.with_outputs(_SKIPPED, main="slices")


def _scan(
    element: tuple[FileToRead, int, int | None], limits: BlockLimits, record_format: RecordFormat, huge_files: bool
) -> tuple[tuple[bytes, int], RangeScan]:
    scan = scan_range(*element, limits, record_format)
    stretch = stretch_of(scan.work.file, scan.start, limits.text_bytes)[0] if huge_files else 0
    # Bytes, because a file name that is not UTF-8 cannot be encoded as text.
    return (os.fsencode(scan.work.file.path), stretch), scan


def _count_lines(element: tuple[tuple[bytes, int], RangeScan], slice_bytes: int) -> Iterator[dict[bytes, LineCount]]:
    """{path: the lines of this range}; nothing for a file of one stretch."""
    (path, _), scan = element
    stretch, is_of_huge_file = stretch_of(scan.work.file, scan.start, slice_bytes)
    if is_of_huge_file:
        yield {path: LineCount.of(stretch, scan)}


def _merge_counts(counts: Iterable[dict[bytes, LineCount]]) -> dict[bytes, LineCount]:
    merged: dict[bytes, LineCount] = {}
    for path, count in itertools.chain.from_iterable(one.items() for one in counts):
        merged.setdefault(path, LineCount()).update(count)
    return merged


class _Number(beam.DoFn):
    """(path and stretch, its scans) -> `Slice`, the large ones of a bundle first.

    Beam's local runner deals them to its workers one by one, in this order: so each gets as many large ones.
    """

    def __init__(self, stage: SliceFiles) -> None:
        self._text_bytes, self._num_readers = stage.limits.text_bytes, stage.num_readers

    def start_bundle(self) -> None:
        self._held: list[Slice] = []

    def process(
        self, element: tuple[tuple[bytes, int], Iterable[RangeScan]], counts: dict[bytes, LineCount]
    ) -> Iterator[Any]:
        (path, stretch), scans = element
        for item in number_slices(scans, stretch, counts.get(path)):
            if isinstance(item, InputFile):
                yield beam.pvalue.TaggedOutput(_SKIPPED, item)
            elif item.has_one_reader(self._text_bytes):
                readers = ((number, self._num_readers) for number in range(self._num_readers))
                self._held += [dataclasses.replace(item, reader=reader) for reader in readers]
            else:
                self._held.append(item)
        if len(self._held) >= _HELD:
            yield from self._largest_first()

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(GlobalWindows.windowed_value, self._largest_first())

    def _largest_first(self) -> list[Slice]:
        held, self._held = self._held, []
        # Of about the same size, so that those of a file stay in their order.
        return sorted(held, key=lambda slice_: slice_.size * 8 // self._text_bytes, reverse=True)
