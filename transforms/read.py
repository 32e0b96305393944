"""Files cut in slices, and slices read as blocks of texts, with exact line numbers.

A record is a line here. Lines end with `\\n`; one `\\r` before it belongs to the line end; anything else (a lone `\\r`,
U+2028, form feed) is text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from transforms import filesystem, metrics
from transforms.records import (
    BlockId,
    BlockLimits,
    Commit,
    InputFile,
    Int64Array,
    LeftOut,
    Rejected,
    Slice,
    TextBlock,
    row_splits_of,
)

_LINE_END = 10
_CARRIAGE_RETURN = 13
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = {b"\xff\xfe": "FF FE", b"\xfe\xff": "FE FF"}


class UnreadableFileError(OSError):
    """A file whose bytes cannot be read as text, with what to do."""


@dataclasses.dataclass
class FileToRead:
    """A file of which something is left to do, with the commits of what is done."""

    file: InputFile
    done: tuple[Commit, ...] = ()


@dataclasses.dataclass
class Scanned:
    """What one pass over a range of a file's bytes tells: its line ends, or why the file can't be read."""

    work: FileToRead
    start: int
    end: int | None
    line_ends: int
    problem: str | None = None


def byte_ranges(file: InputFile, slice_bytes: int) -> list[tuple[int, int | None]]:
    """Where the file is cut, before anybody knows where its lines end. A compressed file is not cut.

    >>> byte_ranges(InputFile("a.txt", 25, 0.0), 10)
    [(0, 10), (10, 20), (20, 25)]
    >>> byte_ranges(InputFile("a.txt.gz", 25, 0.0), 10)
    [(0, None)]
    """
    if filesystem.is_compressed(file.path):
        return [(0, None)]
    return [(start, min(start + slice_bytes, file.size)) for start in range(0, file.size, slice_bytes)]


def cut_file(work: FileToRead, slice_bytes: int) -> Iterator[tuple[FileToRead, int, int | None]]:
    """The file once for each of its ranges, with the commits that begin there: each crosses the shuffle once."""
    for start, end in byte_ranges(work.file, slice_bytes):
        done = (c for c in work.done if end is None or start <= c.block.first_byte < end)
        yield FileToRead(work.file, tuple(done)), start, end


def scan_range(work: FileToRead, start: int, end: int | None) -> Scanned:
    """Count the line ends in [start, end), at memory speed; of a compressed file only look whether it opens."""
    scanned = Scanned(work, start, end, line_ends=0)
    try:
        with filesystem.open_binary(work.file.path) as file:
            if end is None:
                file.read(1)
                return scanned
            file.seek(start)
            left = end - start
            while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                if left == end:  # the first bytes of the file
                    _refuse_utf16(chunk)
                left -= len(chunk)
                scanned.line_ends += chunk.count(b"\n")
    except OSError as error:
        scanned.problem = _reason(error)
    return scanned


def number_slices(ranges: Iterable[Scanned]) -> Iterator[Slice | LeftOut | Commit]:
    """The slices of one file, from the scans of all its ranges in any order.

    Of a file that can't be read a `LeftOut`, and the commits of what was done before: its rows stay.
    """
    in_order = sorted(ranges, key=lambda scanned: scanned.start)
    for scanned in in_order:
        if scanned.problem is not None:
            yield LeftOut(scanned.work.file.path, scanned.problem)
            yield from itertools.chain.from_iterable(scanned.work.done for scanned in in_order)
            return
    first_line = 0
    for scanned in in_order:
        yield Slice(scanned.work.file, scanned.start, scanned.end, first_line, scanned.work.done)
        first_line += scanned.line_ends


def read_blocks(
    slice_: Slice, limits: BlockLimits, *, keep_blank: bool = False, replace_invalid: bool = False
) -> Iterator[TextBlock | Commit | LeftOut]:
    """The slice's records as blocks, in order; for a block that is done and unchanged its commit.

    Where the file can't be read on there is a `LeftOut`; the blocks before stay, and those after it that were done, if
    the file is the one they were read from.
    """
    done = {(commit.block.first_line, commit.block.first_byte): commit for commit in slice_.done}
    try:
        for raw, block, line_ends in _cut_blocks(slice_, limits):
            commit = done.pop((block.first_line, block.first_byte), None)
            if commit is not None and (commit.block.end_byte, commit.block.sha256) == (block.end_byte, block.sha256):
                yield dataclasses.replace(commit, block=block)
            else:
                yield decode_block(block, raw, line_ends, keep_blank=keep_blank, replace_invalid=replace_invalid)
        # Line numbers are from the scan, the bytes from now: they belong together if the file is still the same.
        if filesystem.stat_file(slice_.file.path) != slice_.file:
            raise UnreadableFileError("changed while it was being read; run again")
    except OSError as error:
        yield LeftOut(slice_.file.path, _reason(error))
        yield from (commit for commit in done.values() if commit.block.file == slice_.file)


def read_block(block: BlockId, *, keep_blank: bool = False, replace_invalid: bool = False) -> TextBlock:
    """The texts of one block again, as `read_blocks` gave them.

    UnreadableFileError where the file is gone, or no longer holds the block's bytes at that place.
    """
    now = filesystem.stat_file(block.file.path)
    if isinstance(now, LeftOut):
        raise UnreadableFileError(now.reason)
    with filesystem.open_binary(block.file.path) as file:
        if not filesystem.is_compressed(block.file.path):
            file.seek(block.first_byte)
            raw = file.read(block.end_byte - block.first_byte)
        else:
            raw = _bytes_between(filesystem.read_chunks(file, block.file.path), block.first_byte, block.end_byte)
    if hashlib.sha256(raw).hexdigest() != block.sha256:
        raise UnreadableFileError("is no longer what was read: its bytes have changed")
    return decode_block(block, raw, _line_ends(raw), keep_blank=keep_blank, replace_invalid=replace_invalid)


def _bytes_between(chunks: Iterable[bytes], start: int, end: int) -> bytes:
    """Bytes [start, end) of a stream of chunks."""
    parts, position = [], 0
    for chunk in chunks:
        parts.append(chunk[max(start - position, 0) : max(end - position, 0)])
        position += len(chunk)
        if position >= end:
            break
    return b"".join(parts)


def _cut_blocks(slice_: Slice, limits: BlockLimits) -> Iterator[tuple[bytes, BlockId, Int64Array]]:
    """(bytes, identity, where in the bytes each line ends) of each block of the slice."""
    with filesystem.open_binary(slice_.file.path) as file:
        # One byte back: whether that is a line end says if a line begins at `start`.
        position = max(slice_.start - 1, 0)
        file.seek(position)
        chunks = filesystem.read_chunks(file, slice_.file.path)
        line = slice_.first_line
        if slice_.start > 0:
            rest, skipped = _skip_line(chunks)
            chunks = itertools.chain([rest], chunks)
            position += skipped
            line += int(skipped > 1)  # the line end before `start` is counted already
        pending = b""
        for lines in _whole_lines(chunks, position, slice_.end):
            if position == 0 and not pending:  # the first bytes of the file
                _refuse_utf16(lines)
            pending += lines
            ends = _line_ends(pending)
            begin = 0
            while (count := lines_in_block(np.diff(ends, prepend=begin), limits)) is not None:
                size = int(ends[count - 1]) - begin
                raw = pending[begin : begin + size]
                yield raw, _identify(slice_.file, raw, line, count, position), ends[:count] - begin
                begin, line, position, ends = begin + size, line + count, position + size, ends[count:]
            pending = pending[begin:]
        if pending:
            ends = _line_ends(pending)
            yield pending, _identify(slice_.file, pending, line, len(ends), position), ends


def _identify(file: InputFile, raw: bytes, first_line: int, num_lines: int, first_byte: int) -> BlockId:
    end_byte = first_byte + len(raw)
    return BlockId(file, first_line, num_lines, first_byte, end_byte, hashlib.sha256(raw).hexdigest())


def _skip_line(chunks: Iterator[bytes]) -> tuple[bytes, int]:
    """(the bytes after the first line end, how many bytes that skipped)."""
    skipped = 0
    for chunk in chunks:
        after = chunk.find(b"\n") + 1
        if after:
            return chunk[after:], skipped + after
        skipped += len(chunk)
    return b"", skipped


def _whole_lines(chunks: Iterable[bytes], position: int, end: int | None) -> Iterator[bytes]:
    """Runs of whole lines, of those that begin before `end`; the file's last line may come without a line end.

    `position` is where the first of the chunks lies in the file.
    """
    begun: list[bytes] = []
    for chunk in chunks:
        if end is not None and position >= end:
            return
        after = chunk.rfind(b"\n") + 1
        if not after:
            begun.append(chunk)
            continue
        lines = b"".join([*begun, chunk[:after]])
        begun = [chunk[after:]]
        if end is not None and position + len(lines) >= end:
            yield lines[: lines.index(b"\n", end - 1 - position) + 1]
            return
        yield lines
        position += len(lines)
    last = b"".join(begun)
    if last and (end is None or position < end):
        yield last


def _line_ends(data: bytes) -> Int64Array:
    """Where each line ends, its line end included; a last line without one ends with the data."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_END) + 1
    if data and data[-1] != _LINE_END:
        ends = np.append(ends, len(data))
    return ends


def lines_in_block(lengths: Int64Array, limits: BlockLimits) -> int | None:
    """How many lines of these lengths (bytes) fill a block; None where all of them do not.

    >>> lines_in_block(np.array([40, 40, 40]), BlockLimits(80, 1000, 1000, 128))
    2
    >>> lines_in_block(np.array([40, 40, 40]), BlockLimits(1000, 24, 1000, 128))
    2
    >>> lines_in_block(np.array([40, 40, 40]), BlockLimits(1000, 1000, 1000, 128))
    """
    tokens = np.minimum(2 + lengths // 4, limits.max_seq_length)
    full = np.cumsum(lengths) >= limits.text_bytes
    full |= np.cumsum(tokens) >= limits.token_rows
    full |= np.arange(1, len(lengths) + 1) >= limits.text_rows
    return int(np.argmax(full)) + 1 if full.any() else None


def decode_block(
    block: BlockId, raw: bytes, ends: Int64Array, *, keep_blank: bool = False, replace_invalid: bool = False
) -> TextBlock:
    """The block's lines as texts: line ends off, byte order mark off, blank and invalid ones sorted out.

    `ends` as `_line_ends` gives them. Blank: nothing but white space.
    """
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    data = np.frombuffer(raw, np.uint8)
    stops = ends - (data[ends - 1] == _LINE_END)
    stops -= (stops > starts) & (stops < ends) & (data[stops - 1] == _CARRIAGE_RETURN)
    if block.first_byte == 0 and raw.startswith(_UTF8_MARK):
        starts[0] = len(_UTF8_MARK)
        stops[0] = max(stops[0], starts[0])
    lines = _binary_array(data, starts, stops)
    line_numbers = block.first_line + np.arange(len(ends))
    counts = dict.fromkeys((metrics.RECORDS, metrics.EMBEDDED, metrics.BLANK, metrics.FILTERED, metrics.REJECTED), 0)
    counts[metrics.RECORDS] = len(ends)
    rejected: list[Rejected] = []
    try:
        texts = lines.cast(pa.string())
    except pa.ArrowInvalid:
        valid, rejected = _decode_lines(block, lines, starts, replace_invalid=replace_invalid)
        counts[metrics.REJECTED] = len(rejected)
        keep = np.array([text is not None for text in valid])
        texts = pa.array([text for text in valid if text is not None], pa.string())
        line_numbers = line_numbers[keep]
    if not keep_blank:
        full = pc.not_equal(pc.utf8_trim_whitespace(texts), "")
        counts[metrics.BLANK] = len(texts) - (pc.sum(full).as_py() or 0)
        texts = texts.filter(full)
        line_numbers = line_numbers[full.to_numpy(zero_copy_only=False)]
    counts[metrics.EMBEDDED] = len(texts)
    zeros = np.zeros(len(texts), np.int32)
    return TextBlock(block, texts, line_numbers, zeros, zeros, counts, rejected)


def _binary_array(data: npt.NDArray[np.uint8], starts: Int64Array, stops: Int64Array) -> pa.BinaryArray:
    """The pieces data[start:stop], copied together without the bytes between them."""
    inside = np.zeros(len(data) + 1, np.int8)
    np.add.at(inside, starts, 1)
    np.add.at(inside, stops, -1)
    kept = data[np.cumsum(inside[:-1], dtype=np.int8).astype(bool)]
    offsets = row_splits_of(stops - starts).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _decode_lines(
    block: BlockId, lines: pa.BinaryArray, starts: Int64Array, *, replace_invalid: bool
) -> tuple[list[str | None], list[Rejected]]:
    """Line by line, for the rare block that is not all UTF-8: the texts (None: rejected) and the rejects."""
    texts: list[str | None] = []
    rejected = []
    for index, value in enumerate(lines):
        raw = value.as_py()
        try:
            texts.append(raw.decode("utf-8", "replace" if replace_invalid else "strict"))
        except UnicodeDecodeError as error:
            texts.append(None)
            reason = f"invalid UTF-8: {error.reason} at byte {error.start} (0x{raw[error.start]:02x})"
            offset = block.first_byte + int(starts[index])
            rejected.append(Rejected(block.file.path, block.first_line + index, offset, "read", reason, raw))
    return texts, rejected


def _refuse_utf16(first_bytes: bytes) -> None:
    mark = _UTF16_MARKS.get(first_bytes[:2])
    if mark is not None:
        raise UnreadableFileError(
            f"begins with the byte order mark {mark}: it is UTF-16, not UTF-8; convert it, for example with "
            f"`iconv -f UTF-16 -t UTF-8`"
        )


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


@beam.typehints.with_output_types(tuple[bytes, Scanned])
class _ScanRanges(beam.DoFn):
    def process(self, element: tuple[FileToRead, int, int | None]) -> Iterator[tuple[bytes, Scanned]]:
        scanned = scan_range(*element)
        # Bytes, not text: a name that is not UTF-8 has no UTF-8 coding.
        yield os.fsencode(scanned.work.file.path), scanned


@dataclasses.dataclass
class SliceFiles(beam.PTransform):
    """`FileToRead` -> `Slice`, each file cut, line ends counted in parallel; tagged `LEFT_OUT`, what can't be read."""

    slice_bytes: int

    SLICES = "slices"
    LEFT_OUT = "left_out"

    def expand(self, files: Any) -> Any:
        return (
            files
            | "cut" >> beam.FlatMap(cut_file, self.slice_bytes)
            | "spread ranges" >> beam.Reshuffle()
            | "count line ends" >> beam.ParDo(_ScanRanges())
            | "of one file" >> beam.GroupByKey()
            | "number" >> beam.ParDo(_NumberSlices()).with_outputs(self.LEFT_OUT, main=self.SLICES)
        )


@beam.typehints.with_output_types(Slice)
class _NumberSlices(beam.DoFn):
    def process(self, element: tuple[bytes, Iterable[Scanned]]) -> Iterator[Any]:
        for item in number_slices(element[1]):
            yield item if isinstance(item, Slice) else beam.pvalue.TaggedOutput(SliceFiles.LEFT_OUT, item)


@dataclasses.dataclass
class ReadBlocks(beam.PTransform):
    """`Slice` -> `TextBlock`; tagged `DONE`, the `Commit` of what needs no work and `LeftOut`."""

    limits: BlockLimits
    keep_blank: bool = False
    replace_invalid: bool = False

    BLOCKS = "blocks"
    DONE = "done"

    def expand(self, slices: Any) -> Any:
        read = _ReadSlice(self.limits, self.keep_blank, self.replace_invalid)
        return slices | "spread slices" >> beam.Reshuffle() | beam.ParDo(read).with_outputs(self.DONE, main=self.BLOCKS)


@beam.typehints.with_output_types(TextBlock)
class _ReadSlice(beam.DoFn):
    def __init__(self, limits: BlockLimits, keep_blank: bool, replace_invalid: bool) -> None:
        self._limits = limits
        self._keep_blank = keep_blank
        self._replace_invalid = replace_invalid

    def process(self, slice_: Slice) -> Iterator[Any]:
        for item in read_blocks(
            slice_, self._limits, keep_blank=self._keep_blank, replace_invalid=self._replace_invalid
        ):
            if isinstance(item, TextBlock):
                for name, amount in item.counts.items():
                    metrics.count(name, amount)
                yield item
            else:
                yield beam.pvalue.TaggedOutput(ReadBlocks.DONE, item)
