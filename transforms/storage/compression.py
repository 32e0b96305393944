"""Decompression of .gz, .bz2 and .zst that notices damage and truncation."""

from __future__ import annotations

import bz2
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard

_CHUNK_BYTES = 1 << 20
_AFTER_BYTES = 1 << 12
_COMPRESSED_CHUNK_BYTES = 1 << 16  # text rarely expands more than a hundredfold


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
    stream, begun = None, False
    for chunk in iter(lambda: file.read(_COMPRESSED_CHUNK_BYTES), b""):
        # gzip members may be padded with zeros
        while chunk := chunk.lstrip(b"\0") if stream is None else chunk:
            begun = True
            stream = new_stream() if stream is None else stream
            try:
                data = stream.decompress(chunk)
            except Exception as error:  # zlib.error, OSError or ZstdError, depending on the format
                raise TruncatedFileError(f"the compressed data is damaged ({error})") from error
            if data:
                yield data
            chunk, stream = (stream.unused_data, None) if stream.eof else (b"", stream)
    if stream is not None or not begun:
        raise TruncatedFileError("the compressed data is truncated (incomplete download or copy?)")
