"""Bytes cut at line ends: the blocks of a slice, and the records in a block's bytes.

A line ends with `\\n`, with or without one `\\r` before it. Anything else (a lone `\\r`, U+2028, form feed) is text.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Int64Array, Slice, row_splits_of
from layerbeam.transforms.commits import BlockId, InputFile
from layerbeam.transforms.settings import BlockLimits

# A whole record is in memory, several times over.
MAX_RECORD_BYTES = 256 << 20

_LINE_END = 10
_CARRIAGE_RETURN = 13
UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = {b"\xff\xfe": "FF FE", b"\xfe\xff": "FE FF"}
_IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))


class UnreadableFileError(OSError):
    """A file that cannot be read as records. The message says what to do."""


def refuse_other_encoding(first_bytes: bytes, encoding: str) -> None:
    """Raises UnreadableFileError if a file begins with the byte order mark of another encoding."""
    mark = _UTF16_MARKS.get(first_bytes[:2])
    if mark is not None:
        name = "UTF-8" if encoding == "utf-8" else encoding
        raise UnreadableFileError(
            f"begins with the byte order mark {mark}: it is UTF-16, not {name}; convert it, for example with "
            f"`iconv -f UTF-16 -t UTF-8`"
        )
    if encoding != "utf-8" and first_bytes.startswith(UTF8_MARK):
        raise UnreadableFileError(f"begins with the byte order mark of UTF-8, and input.encoding is {encoding}")


def tokens_by_length(lengths: Int64Array, limits: BlockLimits) -> Int64Array:
    """The estimated tokens of records with these lengths in bytes, see `BlockLimits`."""
    if limits.sentence_bytes is None:
        return np.minimum(2 + lengths // 4, limits.max_seq_length)
    return 2 * (1 + lengths // limits.sentence_bytes) + lengths // 4


def records_in_block(lengths: Int64Array, limits: BlockLimits) -> int | None:
    """The number of records with these lengths in bytes that fill a block; None if all of them do not.

    >>> records_in_block(np.array([40, 40, 40]), BlockLimits(80, 1000, 1000, 128))
    2
    >>> records_in_block(np.array([40, 40, 40]), BlockLimits(1000, 24, 1000, 128))
    2
    >>> records_in_block(np.array([40, 40, 40]), BlockLimits(1000, 1000, 1000, 128))
    >>> records_in_block(np.array([400, 400, 400]), BlockLimits(9999, 9999, 9, 128, sentence_bytes=80))
    2
    """
    texts = np.ones_like(lengths) if limits.sentence_bytes is None else 1 + lengths // limits.sentence_bytes
    estimates = (
        (texts, limits.text_rows),
        (lengths, limits.text_bytes),
        (tokens_by_length(lengths, limits), limits.token_rows),
    )
    fills = min(int(np.searchsorted(np.cumsum(amounts), limit)) for amounts, limit in estimates)
    return fills + 1 if fills < len(lengths) else None


def read_bytes(block: BlockId) -> bytes:
    """The block's bytes, read again. Raises UnreadableFileError if the file has other bytes at that place."""
    with storage.open_binary(block.file.path) as file:
        if not storage.is_compressed(block.file.path):
            file.seek(block.first_byte)
            raw = file.read(block.end_byte - block.first_byte)
        else:
            raw = _bytes_between(storage.read_chunks(file, block.file.path), block.first_byte, block.end_byte)
    if hashlib.sha256(raw).hexdigest() != block.sha256:
        raise UnreadableFileError("its bytes have changed since it was read")
    return raw


def record_bounds(
    block: BlockId, raw: bytes, record: Literal["line", "paragraph", "file"], encoding: str
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(first byte, byte after the last, first line in the file) of each record of a block.

    The line end after a record, and the byte order mark of UTF-8 at the file's start, are not part of it.
    """
    begin = len(UTF8_MARK) if block.first_byte == 0 and encoding == "utf-8" and raw.startswith(UTF8_MARK) else 0
    if record == "file":
        starts, stops = np.array([begin], np.int64), np.array([len(raw)], np.int64)
        return starts, stops, np.zeros(1, np.int64)
    ends = line_ends(raw)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    data = np.frombuffer(raw, np.uint8)
    stops = ends - (data[ends - 1] == _LINE_END)
    stops -= (stops > starts) & (stops < ends) & (data[stops - 1] == _CARRIAGE_RETURN)
    starts[0] = begin
    stops[0] = max(stops[0], begin)
    line = block.first_line + np.arange(len(ends))
    if record == "paragraph":
        is_full = ~blank_lines(data, starts, ends)
        first = is_full & ~np.concatenate([[False], is_full[:-1]])
        last = is_full & ~np.concatenate([is_full[1:], [False]])
        starts, stops, line = starts[first], stops[last], line[first]
    return starts, stops, line


def binary_array(data: npt.NDArray[np.uint8], starts: Int64Array, stops: Int64Array) -> pa.BinaryArray:
    """The pieces data[start:stop], which are in order and do not overlap, without the bytes between them."""
    inside = np.zeros(len(data) + 1, np.int8)
    np.add.at(inside, starts, 1)
    np.add.at(inside, stops, -1)
    kept = data[np.cumsum(inside[:-1], dtype=np.int8).astype(bool)]
    offsets = row_splits_of(stops - starts).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(kept)])


def cut_lines(slice_: Slice, limits: BlockLimits, encoding: str) -> Iterator[tuple[BlockId, bytes]]:
    """Identity and bytes of each block of the slice, if a line is a record."""
    with storage.open_binary(slice_.file.path) as file:
        chunks, position, line, _ = start_slice(file, slice_)
        pending = b""
        for run in whole_lines(chunks, position, slice_.end):
            if position == 0 and not pending:  # the first bytes of the file
                refuse_other_encoding(run, encoding)
            pending += run
            ends = line_ends(pending)
            begin = 0
            while (count := records_in_block(np.diff(ends, prepend=begin), limits)) is not None:
                size = int(ends[count - 1]) - begin
                raw = pending[begin : begin + size]
                yield identify(slice_.file, raw, line, count, position), raw
                begin, line, position, ends = begin + size, line + count, position + size, ends[count:]
            pending = pending[begin:]
    if pending:
        yield identify(slice_.file, pending, line, len(ends), position), pending


def cut_whole(slice_: Slice, encoding: str) -> Iterator[tuple[BlockId, bytes]]:
    """The one block of a file that is one record; none if the file is empty."""
    with storage.open_binary(slice_.file.path) as file:
        raw = b"".join(_up_to_limit(storage.read_chunks(file, slice_.file.path)))
    refuse_other_encoding(raw, encoding)
    if raw:
        yield identify(slice_.file, raw, 0, len(line_ends(raw)), 0), raw


def start_slice(file: BinaryIO, slice_: Slice) -> tuple[Iterator[bytes], int, int, bool]:
    """(chunks, position, line, blank): the file from the first line that begins in the slice.

    `blank`: whether what was skipped, of the line before it, is only white space.
    """
    # One byte back: a line begins at `start` if that byte is a line end.
    position = max(slice_.start - 1, 0)
    file.seek(position)
    chunks = storage.read_chunks(file, slice_.file.path)
    if slice_.start == 0:
        return chunks, 0, slice_.first_line, True
    rest, skipped, blank = _skip_line(chunks, slice_.end - position if slice_.end is not None else None)
    # `first_line` counts the line end before `start`.
    return itertools.chain([rest], chunks), position + skipped, slice_.first_line + int(skipped > 1), blank


def blank_lines(data: npt.NDArray[np.uint8], starts: Int64Array, ends: Int64Array) -> npt.NDArray[np.bool_]:
    """Whether each data[start:end] holds nothing but ASCII white space."""
    if not len(starts):
        return np.zeros(0, bool)
    is_text = np.append(~_IS_SPACE[data], False)  # `ends` may be the length of the data
    has_text = np.logical_or.reduceat(is_text, np.stack([starts, ends], axis=1).ravel())[::2]
    blank: npt.NDArray[np.bool_] = ~has_text | (starts == ends)
    return blank


def identify(file: InputFile, raw: bytes, first_line: int, num_lines: int, first_byte: int) -> BlockId:
    """The identity of the block with these bytes."""
    end_byte = first_byte + len(raw)
    return BlockId(file, first_line, num_lines, first_byte, end_byte, hashlib.sha256(raw).hexdigest())


def _skip_line(chunks: Iterator[bytes], limit: int | None = None) -> tuple[bytes, int, bool]:
    """(bytes after the first line end, number of bytes skipped, whether these are only white space).

    Stops soon after `limit` bytes: else a line over a thousand slices would be read to its end from each of them.
    """
    skipped, blank = 0, True
    for chunk in chunks:
        after = chunk.find(b"\n") + 1
        blank = blank and not (chunk[:after] if after else chunk).strip()
        if after:
            return chunk[after:], skipped + after, blank
        skipped += len(chunk)
        if limit is not None and skipped >= limit:
            break
    return b"", skipped, blank


def whole_lines(chunks: Iterable[bytes], position: int, end: int | None) -> Iterator[bytes]:
    """Runs of whole lines that begin before `end`. The file's last line may lack a line end.

    `position`: where the first chunk lies in the file.
    """
    begun: list[bytes] = []
    begun_bytes = 0
    for chunk in chunks:
        if end is not None and position >= end:
            return
        after = chunk.rfind(b"\n") + 1
        if not after:
            begun.append(chunk)
            begun_bytes += len(chunk)
            if begun_bytes > MAX_RECORD_BYTES:
                raise too_large()
            continue
        lines = b"".join([*begun, chunk[:after]])
        begun, begun_bytes = [chunk[after:]], len(chunk) - after
        if end is not None and position + len(lines) >= end:
            yield lines[: lines.index(b"\n", end - 1 - position) + 1]
            return
        yield lines
        position += len(lines)
    last = b"".join(begun)
    if last and (end is None or position < end):
        yield last


def _up_to_limit(chunks: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_RECORD_BYTES:
            raise too_large()
        yield chunk


def too_large() -> UnreadableFileError:
    """The error for a record that is too large for memory."""
    return UnreadableFileError(f"holds a record of more than {MAX_RECORD_BYTES >> 20} MiB; split it")


def _bytes_between(chunks: Iterable[bytes], start: int, end: int) -> bytes:
    """Bytes [start, end) of a stream of chunks."""
    parts, position = [], 0
    for chunk in chunks:
        parts.append(chunk[max(start - position, 0) : max(end - position, 0)])
        position += len(chunk)
        if position >= end:
            break
    return b"".join(parts)


def line_ends(data: bytes) -> Int64Array:
    """The end of each line, after its line end; a last line without one ends with the data."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_END) + 1
    if data and data[-1] != _LINE_END:
        ends = np.append(ends, len(data))
    return ends
