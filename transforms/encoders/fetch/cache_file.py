"""Files written into the cache: what goes wrong with them is told from what goes wrong with their source."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any


class CacheError(Exception):
    """The disk that is written to, not what is read; the OSError is its cause."""


class _CacheFile(io.FileIO):
    def write(self, data: Any) -> int:
        rest = memoryview(data)
        size = rest.nbytes
        try:
            while rest:
                rest = rest[super().write(rest) :]
        except OSError as error:
            raise CacheError(str(error)) from error
        return size


def create(path: Path) -> io.FileIO:
    """A new file, in folders that are made for it. CacheError where it cannot be made or, later, written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _CacheFile(str(path), "wb")
    except OSError as error:
        raise CacheError(str(error)) from error
