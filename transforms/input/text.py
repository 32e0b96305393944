"""Text files: bytes cut into blocks at the ends of records, and the lines, paragraphs or file in a block decoded.

A line ends with `\\n`, with or without one `\\r` before it. Anything else (a lone `\\r`, U+2028, form feed) is text, in
any encoding with the line end of ASCII. A file whose lines end with a lone `\\r` throughout is refused.

Paragraphs are runs of lines between blank ones, so that hard-wrapped text keeps its sentences whole. A paragraph begins
at a nonblank line after a blank one or at the file's start, and belongs to the slice in which its first byte lies. Its
text is its lines joined by `\\n`. A line is blank here if it holds nothing but ASCII white space. Blank lines belong to
the block of the paragraph before them; those before a file's first paragraph to its first block.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import BoolArray, Int64Array, Slice, TextBlock
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.input.content import HEAD_BYTES, UTF8_MARK, refuse_other_content, refusing_other_content
from layerbeam.transforms.input.cuts import ALONE, RankedRecords, checksums, records_in_block, sizes_and_ranks
from layerbeam.transforms.input.input_format import InputFormat
from layerbeam.transforms.input.records import (
    REJECTED_BYTES,
    Records,
    UnreadableFileError,
    too_long,
)
from layerbeam.transforms.settings import BlockLimits, RecordFormat

_LINE_END = 10
_CARRIAGE_RETURN = 13
_IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))
_BACKWARDS_BYTES = 1 << 12

# Consecutive bytes, the places where records begin in the file, and their line numbers; the last place of all is the
# end of the last record.
Run: TypeAlias = tuple[bytes | bytearray, Int64Array, Int64Array]
# The bytes of a record of which its rank and its size are made; not those of other fields.
Key: TypeAlias = Callable[[bytes], bytes]
# A block of records with much in other fields ends when these are so many times as long as its texts may be.
_OTHER_FIELDS = 16


class TextInput(InputFormat):
    """Lines, paragraphs or whole files of text."""

    title = "text"
    endings: ClassVar[tuple[str, ...]] = (".txt",)

    def record_of(self, record_format: RecordFormat) -> str:
        """What a record is: a line, a paragraph or the file."""
        return record_format.record

    def is_one_record(self, record_format: RecordFormat) -> bool:
        return self.record_of(record_format) == "file"

    def is_seekable(self, record_format: RecordFormat) -> bool:
        return not self.is_one_record(record_format)

    def ranges(self, file: InputFile, slice_bytes: int, record_format: RecordFormat) -> list[tuple[int, int | None]]:
        """Equal ranges, in each of which a line may begin anywhere; one range if the file is one record."""
        if not self.is_seekable(record_format):
            return super().ranges(file, slice_bytes, record_format)
        # A cut inside a byte order mark would hide it from both ranges.
        step = max(slice_bytes, len(UTF8_MARK) + 1)
        return [(start, min(start + step, file.size)) for start in range(0, file.size, step)]

    def pieces(
        self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat
    ) -> Iterator[tuple[int, int | None, int]]:
        """Each block; of a file that is one record only the head is read."""
        if slice_.end is None or not self.is_one_record(record_format):
            yield from super().pieces(slice_, limits, record_format)
            return
        with storage.open_binary(slice_.file.path, HEAD_BYTES) as opened:
            refuse_other_content(opened.read(HEAD_BYTES), record_format)
        yield slice_.start, slice_.end, 0

    def key_of(self, record_format: RecordFormat) -> Key | None:
        """What decides where blocks of these records end; None: all of a record."""
        return None

    def ranked(self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat) -> Iterator[RankedRecords]:
        runs = _find_records(slice_, record_format, self.record_of(record_format))
        return (run for _, run in _rank(runs, slice_, limits, record_format, self.key_of(record_format)))

    def cut(self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat) -> Iterator[tuple[FileRange, bytes]]:
        """Identity and bytes of each block of the slice."""
        runs = _find_records(slice_, record_format, self.record_of(record_format))
        return into_blocks(slice_, limits, record_format, runs, key=self.key_of(record_format))

    def read(self, block: FileRange, record_format: RecordFormat) -> bytes:
        return read_bytes(block)

    def decode(self, block: FileRange, raw: bytes, record_format: RecordFormat) -> TextBlock:
        """The block's lines, paragraphs or file as texts."""
        records, texts = decode(block, raw, record_format, record_format.record)
        if record_format.record == "paragraph" and b"\r" in raw:
            texts = pc.replace_substring(texts, "\r\n", "\n")
        return records.to_block([texts])

    def count(self, file: InputFile, record_format: RecordFormat, at_most: int) -> int:
        if self.is_one_record(record_format):
            return int(file.size > 0)
        places = 0
        for _, more, _ in _find_records(Slice(file, 0, None, 0), record_format, self.record_of(record_format)):
            places += len(more)
            if places > at_most:
                return at_most
        return max(places - 1, 0)


def _rank(
    runs: Iterable[Run], slice_: Slice, limits: BlockLimits, record_format: RecordFormat, key: Key | None
) -> Iterator[tuple[bytes | bytearray, RankedRecords]]:
    """The bytes of each run, and the records with their sizes and ranks."""
    at = 0 if slice_.start == 0 else None  # where the next bytes are in the file
    begun, crc = None, 0  # of the record that has not ended: its place, and the checksum of what was read of it
    for data, places, lines in runs:
        at = int(places[0]) if at is None else at
        starts = places if begun is None else np.append(begun, places)
        is_cut = begun is not None and begun < at  # the first record began in an earlier run
        bounds = (places if is_cut else starts) - at
        at += len(data)
        lengths = np.diff(starts)
        weights, is_alone = lengths, lengths > record_format.max_record_bytes
        with memoryview(data) as view:
            if key is None:
                hashes = checksums(view, bounds)
            else:
                keys = [key(bytes(view[start:end])) for start, end in itertools.pairwise(bounds.tolist())]
                hashes = np.array([zlib.crc32(one) for one in keys], np.int64)
                weights = np.append(lengths[: len(lengths) - len(keys)], [len(one) for one in keys]).astype(np.int64)
                weights = np.maximum(weights, lengths // _OTHER_FIELDS)
            if is_cut:
                crc = zlib.crc32(view[: bounds[0] if len(bounds) else None], crc)
                hashes = np.append(np.full(min(len(bounds), 1), crc), hashes)
            if len(bounds):
                crc = zlib.crc32(view[bounds[-1] :])
        begun = int(places[-1]) if len(places) else begun
        sizes, ranks = sizes_and_ranks(weights, hashes, limits, is_alone)
        yield data, RankedRecords(places, lines, sizes, ranks)


def into_blocks(
    slice_: Slice,
    limits: BlockLimits,
    record_format: RecordFormat,
    runs: Iterable[Run],
    *,
    also_hashed: bytes = b"",
    key: Key | None = None,
) -> Iterator[tuple[FileRange, bytes]]:
    """Identity and bytes of each block of the slice's records.

    `also_hashed`: bytes before those of each block in its hash.

    A record that is too long is a block, of whose bytes only the first ones are given. What is before the first record
    of the file is in its block; if one of the two is too long, it is a block of its own, of which no bytes are given.
    """
    pending = bytearray()
    most = record_format.max_record_bytes
    head = min(most, REJECTED_BYTES)
    # Bytes of a record that is too long, which are in the hash and no longer in `pending`.
    digest, dropped = hashlib.sha256(also_hashed), 0
    left = sys.maxsize if slice_.max_records is None else slice_.max_records
    # Where the records in `pending` begin in the file, and the numbers of their first lines. The last of these is where
    # the last record ends, unless the end is not known yet. At first, `lead` is 1: the first place is the file's start.
    lead = int(slice_.start == 0)
    places = lines = np.zeros(lead, np.int64)
    sizes = ranks = np.zeros(0, np.int64)

    def take(records: int) -> tuple[FileRange, bytes]:
        nonlocal digest, dropped, places, lines, sizes, ranks, left, lead
        count = lead + records
        is_long = records == 1 and ranks[0] == ALONE
        first_byte, end_byte, first_line, end_line = map(int, (places[0], places[count], lines[0], lines[count]))
        raw = bytes(memoryview(pending)[: end_byte - first_byte - dropped])
        del pending[: len(raw)]
        digest.update(raw[head:] if dropped else raw)
        block = FileRange(slice_.file, first_line, end_line - first_line, first_byte, end_byte, digest.hexdigest())
        digest, dropped = hashlib.sha256(also_hashed), 0
        places, lines, sizes, ranks = places[count:], lines[count:], sizes[records:], ranks[records:]
        left, lead = left - records, 0
        return block, raw[:head] if is_long else raw if records else b""

    def take_blocks(records: int) -> Iterator[tuple[FileRange, bytes]]:
        before = places[lead] - places[0]
        if before > most or (before and (not records or ranks[0] == ALONE)):
            yield take(0)
        if records:
            yield take(records)

    for data, more in _rank(runs, slice_, limits, record_format, key):
        pending += data
        places, lines = np.concatenate([places, more.places]), np.concatenate([lines, more.lines])
        sizes, ranks = np.concatenate([sizes, more.sizes]), np.concatenate([ranks, more.ranks])
        is_full = len(places) - lead > left
        if is_full:
            end = lead + left + 1
            places, lines, sizes, ranks = places[:end], lines[:end], sizes[:left], ranks[:left]
        # So many records fill a block. A chunk of empty lines has a million.
        while count := records_in_block(sizes[: limits.text_rows + 1], ranks[: limits.text_rows + 1]):
            yield from take_blocks(count)
        if is_full:
            break
        if len(pending) + dropped - (places[-1] - places[0]) > most:
            if len(places) > lead:
                yield from take_blocks(len(sizes))
            digest.update(memoryview(pending)[head if dropped else 0 :])
            dropped += len(pending) - head
            del pending[head:]
    if len(places) > lead:
        yield from take_blocks(len(sizes))


def _find_records(slice_: Slice, record_format: RecordFormat, record: str) -> Iterator[Run]:
    """Runs of bytes from the slice's first record to the end of its last one, and where the records begin in them.

    Paragraphs of a file's start come with the blank lines before them.
    """
    end = sys.maxsize if slice_.end is None else slice_.end
    # One byte back: a line begins at `start` if that byte is a line end.
    position, line = max(slice_.start - 1, 0), slice_.first_line
    most = record_format.max_record_bytes
    # `in_line`: what was read ends inside a line that is too long. Such a line is never blank.
    begun, in_line = record == "paragraph" and slice_.start == 0, False
    with storage.open_binary(slice_.file.path, slice_.end) as file:
        blank_bytes = _blank_before(file, position, most) if record == "paragraph" else 0
        after_blank = blank_bytes <= most
        file.seek(position)
        if slice_.start > 0:
            # Not beyond `end`: else a line over a thousand slices would be read to its end from each of them.
            rest = file.readline(end - position)
            position, after_blank = position + len(rest), blank_bytes + len(rest) <= most and not rest.strip()
            line += int(len(rest) > 1)  # `first_line` counts the line end before `start`
        needed = end - position if position else max(end, HEAD_BYTES)
        chunks = storage.read_chunks(file, slice_.file.path, needed)
        if position == 0:
            chunks = refusing_other_content(chunks, record_format)
        for run in storage.whole_lines(chunks, most) if position < end else ():
            bounds = _line_bounds(run)
            is_cut = (in_line or len(run) > most) and not run.endswith(b"\n")
            if record == "paragraph":
                is_blank = _blank_lines(run, bounds, at_file_start=position == 0) & (np.diff(bounds) <= most)
                is_blank[0] &= not in_line
                begins = np.append(~is_blank & np.append(after_blank, is_blank[:-1]), False)
                after_blank = bool(is_blank[-1])
            else:
                begins = np.full(len(bounds), record == "line")
                begins[0] = not begun
                begins[-1] &= not is_cut
            first_lines = np.flatnonzero(begins)
            # What begins at the end of the slice or after it ends the last record.
            first_lines = first_lines[: np.searchsorted(bounds[first_lines], end - position) + 1]
            places = bounds[first_lines]
            is_end = len(places) > 0 and places[-1] >= end - position
            if begun or len(places):
                data = run[0 if begun else places[0] : places[-1] if is_end else len(run)]
                yield data, position + places, line + first_lines
                begun = True
            position, line, in_line = position + len(run), line + len(bounds) - 1 - is_cut, is_cut
            if is_end or (not begun and position >= end):
                return
    refuse_early_end(slice_, position)
    if begun and (record != "line" or in_line):
        yield b"", np.array([position]), np.array([line + in_line])


def refuse_early_end(slice_: Slice, position: int) -> None:
    """Raises UnreadableFileError if the file ends at `position`, and that is inside the slice."""
    if slice_.end is not None and position < slice_.end:
        change = storage.find_change(slice_.file)
        ends = f"ends after {position:,} bytes, and its size is {slice_.file.size:,}; copy it to a disk"
        raise UnreadableFileError(change.problem if change is not None else ends)


def _blank_before(file: BinaryIO, position: int, most: int) -> int:
    """The bytes of the line before `position`; more than `most` if they are not all white space, or that many."""
    end = position
    while position > 0 and end - position <= most:
        # Read to the file's start if the rest would begin inside the byte order mark.
        size = _BACKWARDS_BYTES if position > _BACKWARDS_BYTES + len(UTF8_MARK) else position
        file.seek(position - size)
        before = file.read(size)
        on_line = before[before.rfind(b"\n") + 1 :]
        if position == size and len(on_line) == size:
            on_line = on_line.removeprefix(UTF8_MARK)
        if on_line.strip():
            return most + 1
        if b"\n" in before:
            return end - position + len(on_line)
        position -= size
    return end - position


def _line_bounds(data: bytes) -> Int64Array:
    """0 and the end of each line, after its line end; a last line without one ends with the data."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_END) + 1
    if data and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    return np.concatenate([np.zeros(1, np.int64), ends])


def _blank_lines(data: bytes, bounds: Int64Array, *, at_file_start: bool) -> BoolArray:
    """Whether each line holds nothing but ASCII white space."""
    is_text = ~_IS_SPACE[np.frombuffer(data, np.uint8)]
    if at_file_start and data.startswith(UTF8_MARK):
        is_text[: len(UTF8_MARK)] = False
    return np.asarray(~np.logical_or.reduceat(is_text, bounds[:-1]), bool)


def read_bytes(block: FileRange, *, also_hashed: bytes = b"") -> bytes:
    """The block's bytes, read again. Raises UnreadableFileError if the file has other bytes at that place.

    `also_hashed`: as for `into_blocks`.
    """
    raw = bytearray()
    is_compressed = storage.is_compressed(block.file.path)
    with storage.open_binary(block.file.path, None if is_compressed else block.end_byte) as file:
        position = 0 if is_compressed else file.seek(block.first_byte)
        for chunk in storage.read_chunks(file, block.file.path, block.end_byte - position):
            raw += chunk[max(block.first_byte - position, 0) : block.end_byte - position]
            position += len(chunk)
            if position >= block.end_byte:
                break
    if hashlib.sha256(also_hashed + raw).hexdigest() != block.sha256:
        raise UnreadableFileError("its bytes have changed since it was read")
    return bytes(raw)


def decode(block: FileRange, raw: bytes, record_format: RecordFormat, record: str) -> tuple[Records, pa.StringArray]:
    """The block's records, and their texts.

    The line end after a record, and the byte order mark of UTF-8 at the file's start, are not part of it.
    """
    is_cut = 0 < len(raw) < block.end_byte - block.first_byte
    record = "file" if is_cut else record
    bounds = _line_bounds(raw)
    starts, ends, line = bounds[:-1].copy(), bounds[1:], block.first_line + np.arange(len(bounds) - 1)
    if block.first_byte == 0 and raw.startswith(UTF8_MARK):
        starts[0] = len(UTF8_MARK)
    data = np.frombuffer(raw, np.uint8)
    stops = ends - (data[ends - 1] == _LINE_END)
    stops -= (stops > starts) & (stops < ends) & (data[stops - 1] == _CARRIAGE_RETURN)
    if record == "file":
        starts, stops, line = starts[:1], ends[-1:], line[:1]
    elif record == "paragraph":
        is_blank = _blank_lines(raw, bounds, at_file_start=block.first_byte == 0)
        first = ~is_blank & np.append(True, is_blank[:-1])
        last = ~is_blank & np.append(is_blank[1:], True)
        starts, stops, line = starts[first], stops[last], line[first]
    records = Records(block, record_format, line, block.first_byte + starts, binary_array(data, starts, stops))
    if is_cut:
        records.reasons[0] = too_long(record_format)
        return records, pa.nulls(1, pa.string())
    return records, records.decode(records.raw)


def binary_array(data: npt.NDArray[np.uint8], starts: Int64Array, stops: Int64Array) -> pa.BinaryArray:
    """The pieces data[start:stop], which are in order and do not overlap, without the bytes between them."""
    # Every other one is the gap behind a piece.
    offsets = np.append(np.stack([starts, stops], axis=1), len(data)).astype(np.int32)
    pieces = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return pieces.take(pa.array(np.arange(0, len(pieces), 2)))
