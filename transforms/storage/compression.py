"""Decompression of .gz, .bz2 and .zst that notices damage and truncation."""

from __future__ import annotations

import bz2
import os
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol, cast

_CHUNK_BYTES = 1 << 20
_COMPRESSED_CHUNK_BYTES = 1 << 16  # text rarely expands more than a hundredfold


class TruncatedFileError(OSError):
    """A compressed file that is truncated or damaged."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip() -> _Decompressor:
    return zlib.decompressobj(wbits=31)


def _zstandard() -> _Decompressor:
    import zstandard

    return cast(_Decompressor, zstandard.ZstdDecompressor().decompressobj())


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    ".gz": _gzip,
    ".bz2": bz2.BZ2Decompressor,
    ".zst": _zstandard,
}


def is_compressed(path: str) -> bool:
    """Whether the name ends in .gz, .bz2 or .zst."""
    return os.path.splitext(path)[1] in _DECOMPRESSORS


def read_chunks(file: BinaryIO, path: str) -> Iterator[bytes]:
    """The rest of the file's bytes, decompressed according to the ending of `path`.

    Several members in a row are one stream, as for the tools that write them. Raises TruncatedFileError if a file is
    damaged or truncated; Beam's own reader silently ends there.
    """
    new_stream = _DECOMPRESSORS.get(os.path.splitext(path)[1])
    if new_stream is None:
        yield from iter(lambda: file.read(_CHUNK_BYTES), b"")
        return
    stream: _Decompressor | None = None
    begun = False
    for chunk in iter(lambda: file.read(_COMPRESSED_CHUNK_BYTES), b""):
        while chunk:
            if stream is None:
                chunk = chunk.lstrip(b"\0")  # gzip members may be padded with zeros
                if not chunk:
                    break
                stream = new_stream()
                begun = True
            try:
                data = stream.decompress(chunk)
            except Exception as error:  # zlib.error, OSError or ZstdError, depending on the format
                raise TruncatedFileError(f"the compressed data is damaged ({error})") from error
            if data:
                yield data
            chunk = stream.unused_data if stream.eof else b""
            if stream.eof:
                stream = None
    if stream is not None or not begun:
        raise TruncatedFileError("the compressed data is truncated (incomplete download or copy?)")
