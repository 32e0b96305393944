"""Files cut into slices: the bytes of each, and the number of its first line or row."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice
from layerbeam.transforms.commits import Commit, InputFile, SkippedFile
from layerbeam.transforms.input import lines, parquet
from layerbeam.transforms.input.lines import MAX_RECORD_BYTES, UTF8_MARK, refuse_other_encoding
from layerbeam.transforms.settings import BlockLimits, RecordFormat


@dataclasses.dataclass
class FileToRead:
    """A file with work left, and the commits of its blocks that are done."""

    file: InputFile
    done: tuple[Commit, ...] = ()

    @property
    def reusable_commits(self) -> list[Commit]:
        """The commits, unless the file has changed: then its blocks are compared when it is read."""
        return [commit for commit in self.done if commit.block.file == self.file]


@dataclasses.dataclass
class RangeScan:
    """The slices in a range of a file, or the reason why the file cannot be read.

    `pieces`: (first byte, byte after the last, number of line ends or rows) of each slice.
    """

    work: FileToRead
    start: int
    pieces: tuple[tuple[int, int | None, int], ...] = ()
    problem: str | None = None


def byte_ranges(
    file: InputFile, slice_bytes: int, record_format: RecordFormat | None = None
) -> list[tuple[int, int | None]]:
    """The byte ranges that a file is cut into, whatever its records are.

    A compressed file and a file that is one record are not cut. A Parquet file is cut when its footer is read.

    >>> byte_ranges(InputFile("a.txt", 25, 0.0), 10)
    [(0, 10), (10, 20), (20, 25)]
    >>> byte_ranges(InputFile("a.txt.gz", 25, 0.0), 10)
    [(0, None)]
    """
    record_format = record_format or RecordFormat()
    if record_format.format == "parquet" or storage.is_compressed(file.path):
        return [(0, None)]
    if record_format.is_whole_file:
        return [(0, file.size)] if file.size else []
    # A cut inside a byte order mark would hide it from both ranges.
    step = max(slice_bytes, len(UTF8_MARK) + 1)
    return [(start, min(start + step, file.size)) for start in range(0, file.size, step)]


def cut_file(
    file: FileToRead | InputFile, slice_bytes: int, record_format: RecordFormat | None = None
) -> Iterator[tuple[FileToRead, int, int | None]]:
    """(file, start, end) of each range, with the commits that begin in it: each commit crosses the shuffle once."""
    work = FileToRead(file) if isinstance(file, InputFile) else file
    done = tuple(sorted(work.done, key=_first_byte))
    for start, end in byte_ranges(work.file, slice_bytes, record_format):
        yield FileToRead(work.file, _begun_in(done, start, end)), start, end


def scan_range(
    work: FileToRead, start: int, end: int | None, limits: BlockLimits, record_format: RecordFormat | None = None
) -> RangeScan:
    """The slices of the range [start, end), with their lines counted at memory speed.

    If lines are records, each slice is one block, so that even a small file is work for all workers. In a Parquet file,
    a slice is as many row groups as hold about `text_bytes`, by the footer. Otherwise the range is one slice: in
    compressed files, which are only opened here, whole-file records and paragraphs.
    """
    record_format = record_format or RecordFormat()
    try:
        if record_format.format == "parquet":
            return RangeScan(work, start, tuple(parquet.find_pieces(work.file, limits.text_bytes, record_format)))
        if end is None or record_format.is_whole_file or record_format.record == "paragraph":
            return RangeScan(work, start, ((start, end, _count_line_ends(work.file, start, end, record_format)),))
        blocks = lines.cut_lines(Slice(work.file, start, end, 0), limits, record_format.encoding)
        return RangeScan(work, start, tuple((block.first_byte, block.end_byte, block.num_lines) for block, _ in blocks))
    except OSError as error:
        return RangeScan(work, start, problem=storage.reason_of(error))


def _count_line_ends(file: InputFile, start: int, end: int | None, record_format: RecordFormat) -> int:
    line_ends = 0
    with storage.open_binary(file.path) as opened:
        if end is None:
            opened.read(1)
            return 0
        if record_format.is_whole_file:
            if file.size > MAX_RECORD_BYTES:
                raise OSError(
                    f"is one record of {file.size:,} bytes (input.record: file); at most {MAX_RECORD_BYTES:,}: split it"
                )
            refuse_other_encoding(opened.read(4), record_format.encoding)
            return 0
        opened.seek(start)
        left = end - start
        while left > 0 and (chunk := opened.read(min(left, 1 << 20))):
            if start == 0 and left == end:  # the first bytes of the file
                refuse_other_encoding(chunk, record_format.encoding)
            left -= len(chunk)
            line_ends += chunk.count(b"\n")
    return line_ends


def number_slices(ranges: Iterable[RangeScan]) -> Iterator[Slice | SkippedFile | Commit]:
    """The slices of one file, from the scans of all its ranges in any order.

    A file that cannot be read gives a `SkippedFile` and its commits, so that the rows written before are kept.
    """
    in_order = sorted(ranges, key=lambda scan: scan.start)
    for scan in in_order:
        if scan.problem is not None:
            yield SkippedFile(scan.work.file.path, scan.problem)
            yield from itertools.chain.from_iterable(scan.work.done for scan in in_order)
            return
    if in_order and not any(scan.pieces for scan in in_order):
        # All ranges are empty: the file was emptied after it was found.
        change = storage.find_change(in_order[0].work.file)
        if change is not None:
            yield change
            yield from itertools.chain.from_iterable(scan.work.done for scan in in_order)
            return
    first_line = 0
    for scan in in_order:
        for start, end, num_lines in scan.pieces:
            yield Slice(scan.work.file, start, end, first_line, _begun_in(scan.work.done, start, end))
            first_line += num_lines


def _begun_in(done: Sequence[Commit], start: int, end: int | None) -> tuple[Commit, ...]:
    """The commits that begin in the range. `done` is sorted by first byte."""
    last = len(done) if end is None else bisect.bisect_left(done, end, key=_first_byte)
    return tuple(done[bisect.bisect_left(done, start, key=_first_byte) : last])


def _first_byte(commit: Commit) -> int:
    return commit.block.first_byte
