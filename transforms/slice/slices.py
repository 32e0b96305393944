"""Files cut into slices: the bytes of each, and the number of its first line or row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import Slice
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.input.cuts import BlockReader, Candidates, RankedRecords, cut, find_candidates
from layerbeam.transforms.input.records import filled_share
from layerbeam.transforms.settings import LINES, BlockLimits, RecordFormat

# Files that fill less than this share of a block are read together, if they are so many: else each is a block.
_SMALL = 1 / 16
_FEWEST = 16
# Assumed bytes of a record, and the assumed ratio of compression, before anything is read.
_RECORD_BYTES = 64
_COMPRESSION = 8
# Blocks for each reader of what only one thread can read, and the most readers.
_BLOCKS_OF_READER = 16
_MOST_READERS = 64


@dataclasses.dataclass(frozen=True)
class Done:
    """What earlier runs have done of a file, for estimates: `ranges` of bytes, ascending; their records and texts.

    `kept_views`: views with parts in commits that lack at least one view of the run.
    """

    ranges: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.empty((0, 2), np.int64))
    records: int = 0
    texts: int = 0
    kept_views: frozenset[str] = frozenset()

    @property
    def num_bytes(self) -> int:
        return int((self.ranges[:, 1] - self.ranges[:, 0]).sum())


@dataclasses.dataclass
class FileToRead:
    """A file with work left.

    `max_records`: only so many of its records are read, and it has more. `done`: known to estimates only. `others`:
    small files that are read together with this one. `content_index`: see `Slice`.
    """

    file: InputFile
    max_records: int | None = None
    done: Done = dataclasses.field(default_factory=Done)
    others: tuple[InputFile, ...] = ()
    content_index: str = ""


def join_small_files(
    files: Iterable[FileToRead], limits: BlockLimits, record_format: RecordFormat = LINES
) -> Iterator[FileToRead]:
    """The files in their order, consecutive small ones as packs of about one block if the limits allow it.

    A block ends with the file that fills it, and the next small file begins another one. So if some of the blocks are
    done, the files that are left are put together as before.
    """
    waiting: list[FileToRead] = []
    filled = 0.0
    for work in files:
        if work.others:
            yield work
            continue
        share = _expected_blocks(work.file, work.file.size, limits.of_packs, record_format)
        is_whole = INPUT_FORMATS[record_format.format].joins_files and work.max_records is None and work.file.size
        if not (limits.joins_files and is_whole and share <= _SMALL):
            yield work
            continue
        waiting.append(work)
        filled += share
        if filled >= 1:
            yield from _together(waiting)
            waiting, filled = [], 0.0
    yield from _together(waiting)


def _expected_blocks(file: InputFile, stored_bytes: int, limits: BlockLimits, record_format: RecordFormat) -> float:
    """The blocks in so many bytes of a file, before anything is read."""
    size = stored_bytes * (_COMPRESSION if storage.is_compressed(file.path) else 1)
    is_one_record = INPUT_FORMATS[record_format.format].is_one_record(record_format)
    return filled_share(size, 1 if is_one_record else 1 + size // _RECORD_BYTES, limits)


def _together(files: Sequence[FileToRead]) -> Iterator[FileToRead]:
    if len(files) < _FEWEST:
        yield from files
    else:
        yield dataclasses.replace(files[0], others=tuple(work.file for work in files[1:]))


@dataclasses.dataclass
class RangeScan:
    """The slices in a range of a file, or the reason why the file cannot be read.

    `pieces`: (first byte, byte after the last, number of line ends or rows) of each slice. `candidates`: where blocks
    may end, if the file has several ranges. `max_records`: of the file; None if the slices end there.
    """

    work: FileToRead
    start: int
    pieces: tuple[tuple[int, int | None, int], ...] = ()
    problem: str | None = None
    max_records: int | None = None
    candidates: Candidates | None = None


def byte_ranges(file: InputFile, slice_bytes: int, record_format: RecordFormat = LINES) -> list[tuple[int, int | None]]:
    """The byte ranges that a file is cut into, whatever its records are.

    A compressed file and a file that is one record are not cut. A Parquet file is cut when its footer is read, a CSV
    file when it is scanned.

    >>> byte_ranges(InputFile("a.txt", 25, 0.0), 10)
    [(0, 10), (10, 20), (20, 25)]
    >>> byte_ranges(InputFile("a.txt.gz", 25, 0.0), 10)
    [(0, None)]
    """
    if storage.is_compressed(file.path):
        return [(0, None)]
    return INPUT_FORMATS[record_format.format].ranges(file, slice_bytes, record_format)


def cut_file(
    file: FileToRead | InputFile, slice_bytes: int, record_format: RecordFormat = LINES
) -> Iterator[tuple[FileToRead, int, int | None]]:
    """(file, start, end) of each range."""
    work = FileToRead(file) if isinstance(file, InputFile) else file
    if work.others:
        yield work, 0, work.file.size
        return
    # A file with a limit is one range: its records are counted from its start.
    size = max(work.file.size, 1) if work.max_records is not None else slice_bytes
    for start, end in byte_ranges(work.file, size, record_format) or [(0, 0)]:
        yield work, start, end


def count_records(file: InputFile, record_format: RecordFormat, at_most: int) -> int:
    """The records of a file, or `at_most` if it has more; 0 if it cannot be read."""
    try:
        return INPUT_FORMATS[record_format.format].count(file, record_format, at_most)
    except OSError:
        return 0


def scan_range(
    work: FileToRead, start: int, end: int | None, limits: BlockLimits, record_format: RecordFormat = LINES
) -> RangeScan:
    """The slices of the range [start, end), with their lines counted at memory speed.

    In plain files that are no Parquet each slice is one block, so that even a small file is work for all workers; of a
    part of a file, only where blocks may end is known. In a Parquet file, a slice is as many row groups as hold about
    `text_bytes`, by the footer. A compressed file is one slice, and is only opened here.
    """
    if work.others:  # all of them are read in one place, from their first lines
        return RangeScan(work, start, ((start, end, 0),))
    format_ = INPUT_FORMATS[record_format.format]
    max_records = None if format_.pieces_are_blocks and end is not None else work.max_records
    try:
        slice_ = Slice(work.file, start, end, 0, max_records=work.max_records)
        if end is not None and end - start < work.file.size and format_.is_seekable(record_format):
            ranked = format_.ranked(slice_, limits, record_format)
            return RangeScan(work, start, candidates=find_candidates(ranked, at_file_start=start == 0))
        pieces = format_.pieces(slice_, limits, record_format)
        return RangeScan(work, start, tuple(pieces), max_records=max_records)
    except OSError as error:
        return RangeScan(work, start, problem=storage.reason_of(error))


def number_slices(
    ranges: Iterable[RangeScan], limits: BlockLimits, record_format: RecordFormat = LINES
) -> Iterator[Slice | InputFile]:
    """The slices of a file, from the scans of all its ranges in any order.

    An `InputFile` with the problem instead if the file cannot be read.
    """
    in_order = sorted(ranges, key=lambda scan: scan.start)
    if not in_order:
        return
    work = in_order[0].work
    problem = min((scan.problem for scan in in_order if scan.problem), default=None)
    skipped = None if problem is None else InputFile.unreadable(work.file.path, problem)
    pieces = [piece for scan in in_order for piece in scan.pieces]
    candidates = [scan.candidates for scan in in_order if scan.candidates is not None]
    if skipped is None and candidates:
        try:
            pieces = _cut(work.file, candidates, limits, record_format)
        except OSError as error:
            skipped = InputFile.unreadable(work.file.path, storage.reason_of(error))
    if skipped is None and not pieces:
        skipped = storage.find_change(work.file)  # it may have been emptied after it was found
        pieces = [(0, work.file.size, 0)]
    if skipped is not None:
        yield skipped
        return
    first_line = 0
    for start, end, num_lines in pieces:
        left = None if in_order[0].max_records is None else in_order[0].max_records - first_line
        if left is not None and left <= 0:
            break
        yield Slice(work.file, start, end, first_line, left, (0, 1), work.others, work.content_index)
        first_line += num_lines


def _cut(
    file: InputFile, candidates: Sequence[Candidates], limits: BlockLimits, record_format: RecordFormat
) -> list[tuple[int, int | None, int]]:
    """The pieces of a file that was scanned in ranges. OSError if it cannot be read."""

    def open_records(first_byte: int, end_byte: int, line: int) -> Iterator[RankedRecords]:
        slice_ = Slice(file, first_byte, end_byte, line)
        return INPUT_FORMATS[record_format.format].ranked(slice_, limits, record_format)

    return list(cut(candidates, BlockReader(open_records, limits)))


def share_slice(
    slice_: Slice, limits: BlockLimits, record_format: RecordFormat = LINES, num_workers: int = 1
) -> list[Slice]:
    """The slice once for each of its readers. They are several if one thread must read several blocks.

    >>> len(share_slice(Slice(InputFile("a.txt.gz", 10 << 20, 0.0), 0, None, 0), BlockLimits()))
    23
    """
    readers, format_ = 1, INPUT_FORMATS[record_format.format]
    if slice_.end is None:
        has_blocks = not format_.is_one_record(record_format)
    else:  # a slice of one block is long if it holds one long record
        has_blocks = not format_.pieces_are_blocks and slice_.end - slice_.start > 2 * limits.text_bytes
    if has_blocks:
        blocks = _expected_blocks(slice_.file, slice_.size, limits, record_format)
        readers = math.ceil(np.clip(max(blocks / _BLOCKS_OF_READER, min(blocks, num_workers)), 1, _MOST_READERS))
    return [dataclasses.replace(slice_, reader=(number, readers)) for number in range(readers)]
