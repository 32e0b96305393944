"""Decompression of .gz, .bz2 and .zst that notices damage and truncation."""

from __future__ import annotations

import bz2
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import zstandard

_CHUNK_BYTES = 1 << 20
_AFTER_BYTES = 1 << 12
_COMPRESSED_CHUNK_BYTES = 1 << 16
_UNPACKED_BYTES = 1 << 18  # if these are line ends, all that is known of each of them takes a hundredfold
# The first bytes of a member, and all pieces of Zstandard: its library gives 32 MiB of them at most (128 KiB of four
# bytes), and has no other limit. Further pieces grow: the rest of a piece is copied at the end of each short member.
_PIECE_BYTES = 1 << 10
_NONZERO = re.compile(rb"[^\0]")


class TruncatedFileError(OSError):
    """A compressed file that is truncated or damaged."""


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def is_compressed(path: str) -> bool:
    """Whether the name ends in .gz, .bz2 or .zst."""
    return os.path.splitext(path)[1] in _DECOMPRESSORS


def read_chunks(file: BinaryIO, path: str, needed: int = sys.maxsize) -> Iterator[bytes]:
    """The rest of the file's bytes, decompressed according to the ending of `path`.

    `needed`: as many bytes as the caller is sure to need, if the file is not compressed. Chunks behind them begin
    small, because reading from a store is a download.

    Several members in a row are one stream, as for the tools that write them. Raises TruncatedFileError if a file is
    damaged or truncated; Beam's own reader silently ends there.
    """
    new_stream = _DECOMPRESSORS.get(os.path.splitext(path)[1])
    if new_stream is None:
        after = _AFTER_BYTES
        while chunk := file.read(min(needed if needed > 0 else after, _CHUNK_BYTES)):
            yield chunk
            after = after if needed > 0 else 2 * after
            needed -= len(chunk)
        return
    limit = () if path.endswith(".zst") else (_UNPACKED_BYTES,)
    stream, size, begun, found, unpacked = None, 0, False, list[bytes](), 0
    for stored in iter(lambda: file.read(_COMPRESSED_CHUNK_BYTES), b""):
        position = 0
        while True:
            if stream is None:
                # gzip members may be padded with zeros
                position = next((match.start() for match in _NONZERO.finditer(stored, position)), len(stored))
            if position == len(stored):
                break
            if stream is None:
                begun, stream, size = True, new_stream(), _PIECE_BYTES
            piece = stored[position : position + size]
            try:
                for data in _decompress(stream, piece, limit):
                    found.append(data)
                    unpacked += len(data)
                    if unpacked >= _UNPACKED_BYTES:
                        yield b"".join(found)
                        found, unpacked = [], 0
            except Exception as error:  # zlib.error, OSError or ZstdError, depending on the format
                if unpacked:
                    yield b"".join(found)
                raise _problem(error) from error
            position += len(piece)
            size *= 2 if limit else 1
            if stream.eof:
                position, stream = position - len(stream.unused_data), None
        if unpacked:
            yield b"".join(found)
        found, unpacked = [], 0
    if stream is not None or not begun:
        raise TruncatedFileError("the compressed data is truncated (incomplete download or copy?)")


def whole_lines(chunks: Iterable[bytes], most: int = sys.maxsize) -> Iterator[bytes]:
    """Runs of whole lines. A line of more than `most` bytes may be in several. The last one may lack a line end."""
    begun, size = list[bytes](), 0
    for chunk in chunks:
        after = chunk.rfind(b"\n") + 1
        if after:
            yield b"".join([*begun, chunk[:after]])
            begun, size = [], 0
        begun.append(chunk[after:])
        size += len(begun[-1])
        if size > most:
            run, begun = b"".join(begun), []
            yield run
    if last := b"".join(begun):
        yield last


def _decompress(stream: Any, piece: bytes, limit: tuple[int, ...]) -> Iterator[bytes]:
    """What the next piece of a member holds."""
    while True:
        data = stream.decompress(piece, *limit)
        yield from (data[at : at + _UNPACKED_BYTES] for at in range(0, len(data), _UNPACKED_BYTES))
        piece = getattr(stream, "unconsumed_tail", b"")  # bz2 keeps it to itself
        if stream.eof or not (piece or len(data) == _UNPACKED_BYTES):
            return


def _problem(error: Exception) -> OSError:
    if "too much memory" in str(error):
        return OSError("takes more than 128 MiB to decompress (zstd --long); use `zstd -d --long=31`, and zstd again")
    return TruncatedFileError(f"the compressed data is damaged ({error})")
