"""Files cut into slices: the bytes of each, and the number of its first line or row."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice
from layerbeam.transforms.commits import Commit, InputFile, SkippedFile
from layerbeam.transforms.input import delimited, parquet, text
from layerbeam.transforms.input.content import HEAD_BYTES, UTF8_MARK, refuse_other_content
from layerbeam.transforms.input.records import MAX_RECORD_BYTES
from layerbeam.transforms.settings import LINES, BlockLimits, RecordFormat


@dataclasses.dataclass
class FileToRead:
    """A file with work left, and the commits of its blocks.

    `max_records`: only so many of its records are read, and it has more. `fingerprint`: of the run. Blocks whose commit
    has another one lack a view. None: all blocks with a commit are done.
    """

    file: InputFile
    done: tuple[Commit, ...] = ()
    max_records: int | None = None
    fingerprint: str | None = None

    @property
    def reusable_commits(self) -> list[Commit]:
        """The commits of blocks that are done, unless the file has changed: then they are compared when it is read."""
        return [c for c in self.done if c.block.file == self.file and self.fingerprint in (None, c.fingerprint)]


@dataclasses.dataclass
class RangeScan:
    """The slices in a range of a file, or the reason why the file cannot be read.

    `pieces`: (first byte, byte after the last, number of line ends or rows) of each slice. `max_records`: of all of
    them, unless they end there.
    """

    work: FileToRead
    start: int
    pieces: tuple[tuple[int, int | None, int], ...] = ()
    problem: str | None = None
    max_records: int | None = None


def byte_ranges(file: InputFile, slice_bytes: int, record_format: RecordFormat = LINES) -> list[tuple[int, int | None]]:
    """The byte ranges that a file is cut into, whatever its records are.

    A compressed file and a file that is one record are not cut. A Parquet file is cut when its footer is read, a CSV
    file when it is scanned.

    >>> byte_ranges(InputFile("a.txt", 25, 0.0), 10)
    [(0, 10), (10, 20), (20, 25)]
    >>> byte_ranges(InputFile("a.txt.gz", 25, 0.0), 10)
    [(0, None)]
    """
    if record_format.format == "parquet" or storage.is_compressed(file.path):
        return [(0, None)]
    if record_format.is_whole_file or record_format.is_delimited:
        return [(0, file.size)] if file.size else []
    # A cut inside a byte order mark would hide it from both ranges.
    step = max(slice_bytes, len(UTF8_MARK) + 1)
    return [(start, min(start + step, file.size)) for start in range(0, file.size, step)]


def cut_file(
    file: FileToRead | InputFile, slice_bytes: int, record_format: RecordFormat = LINES
) -> Iterator[tuple[FileToRead, int, int | None]]:
    """(file, start, end) of each range, with the commits that begin in it: each commit crosses the shuffle once."""
    work = FileToRead(file) if isinstance(file, InputFile) else file
    done = tuple(sorted(work.done, key=_first_byte))
    # What is limited is counted from the file's start.
    size = max(work.file.size, 1) if work.max_records is not None else slice_bytes
    for start, end in byte_ranges(work.file, size, record_format):
        yield dataclasses.replace(work, done=_begun_in(done, start, end)), start, end


def count_records(file: InputFile, record_format: RecordFormat, at_most: int) -> int:
    """The records of a file, or `at_most` if it has more; 0 if it cannot be read."""
    try:
        if record_format.format == "parquet":
            return min(sum(rows for _, _, rows in parquet.find_pieces(file, 1 << 62, record_format)), at_most)
        if record_format.is_delimited:
            return delimited.count_rows(file, record_format, at_most)
        if record_format.is_whole_file:
            return int(file.size > 0)
        return text.count_records(file, record_format, at_most)
    except OSError:
        return 0


def scan_range(
    work: FileToRead, start: int, end: int | None, limits: BlockLimits, record_format: RecordFormat = LINES
) -> RangeScan:
    """The slices of the range [start, end), with their lines counted at memory speed.

    If lines or rows of CSV are records, each slice is one block, so that even a small file is work for all workers. In
    a Parquet file, a slice is as many row groups as hold about `text_bytes`, by the footer. Otherwise the range is one
    slice: in compressed files, which are only opened here, whole-file records and paragraphs.
    """
    try:
        if record_format.format == "parquet":
            groups = tuple(parquet.find_pieces(work.file, limits.text_bytes, record_format))
            return RangeScan(work, start, groups, max_records=work.max_records)
        if end is None or record_format.is_whole_file or record_format.record == "paragraph":
            piece = (start, end, _count_line_ends(work.file, start, end, record_format))
            return RangeScan(work, start, (piece,), max_records=work.max_records)
        cut: Any = delimited.cut_blocks if record_format.is_delimited else text.cut_blocks
        blocks = cut(Slice(work.file, start, end, 0, max_records=work.max_records), limits, record_format)
        return RangeScan(work, start, tuple((block.first_byte, block.end_byte, block.num_lines) for block, _ in blocks))
    except OSError as error:
        return RangeScan(work, start, problem=storage.reason_of(error))


def _count_line_ends(file: InputFile, start: int, end: int | None, record_format: RecordFormat) -> int:
    line_ends = 0
    # Of a file that is not cut, only the head is read.
    read_to = HEAD_BYTES if record_format.is_whole_file or end is None else end
    with storage.open_binary(file.path, read_to) as opened:
        if record_format.is_whole_file and end is not None and file.size > MAX_RECORD_BYTES:
            raise OSError(
                f"is one record of {file.size:,} bytes (input.record: file); at most {MAX_RECORD_BYTES:,}: split it"
            )
        if start == 0:
            head = opened.read(HEAD_BYTES)
            if end is not None:
                refuse_other_content(head, record_format)
        if record_format.is_whole_file or end is None:
            return 0
        opened.seek(start)
        left = end - start
        while left > 0 and (chunk := opened.read(min(left, 1 << 20))):
            left -= len(chunk)
            line_ends += chunk.count(b"\n")
    return line_ends


def number_slices(ranges: Iterable[RangeScan]) -> Iterator[Slice | SkippedFile | Commit]:
    """The slices of one file, from the scans of all its ranges in any order.

    A file that cannot be read gives a `SkippedFile` and its commits, so that the rows written before are kept.
    """
    in_order = sorted(ranges, key=lambda scan: scan.start)
    skipped = next((SkippedFile(scan.work.file.path, scan.problem) for scan in in_order if scan.problem), None)
    if skipped is None and in_order and not any(scan.pieces for scan in in_order):
        skipped = storage.find_change(in_order[0].work.file)  # the file may have been emptied after it was found
    if skipped is not None:
        yield skipped
        yield from (commit for scan in in_order for commit in scan.work.done)
        return
    first_line = 0
    for scan in in_order:
        for start, end, num_lines in scan.pieces:
            left = None if scan.max_records is None else scan.max_records - first_line
            if left is not None and left <= 0:
                break
            yield Slice(scan.work.file, start, end, first_line, _begun_in(scan.work.done, start, end), left)
            first_line += num_lines


def _begun_in(done: Sequence[Commit], start: int, end: int | None) -> tuple[Commit, ...]:
    """The commits that begin in the range. `done` is sorted by first byte."""
    last = len(done) if end is None else bisect.bisect_left(done, end, key=_first_byte)
    return tuple(done[bisect.bisect_left(done, start, key=_first_byte) : last])


def _first_byte(commit: Commit) -> int:
    return commit.block.first_byte
