"""What every store of files can do: `Store`, one subclass per kind of store; and reading one of its files."""

from __future__ import annotations

import abc
import concurrent.futures
import errno
import io
import itertools
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage.errors import as_os_errors

Item = TypeVar("Item")

# One request of a sequential read, at most; Beam's own readers have the same buffer.
_BUFFER_BYTES = 16 << 20
# The first request behind the bytes that the caller expects to need. Each further one is twice as large.
_AFTER_BYTES = 1 << 12
_REQUESTS_AT_ONCE = 8
CONNECTIONS = 64  # of a client: each thread that waits for the store keeps one


class Store(abc.ABC):
    """A store, for the whole process. Its errors have any type: call it within `as_os_errors`.

    Files appear under their names complete or not at all, unless a subclass says otherwise.
    """

    @abc.abstractmethod
    def list(self, prefix: str) -> Iterator[InputFile]:
        """The files whose paths begin with `prefix`, page after page."""

    @abc.abstractmethod
    def stat(self, path: str) -> InputFile | None:
        """Size and time of a file; None if it is missing."""

    @abc.abstractmethod
    def read(self, path: str, start: int, end: int | None) -> bytes:
        """The bytes [start, end) that the file has, in one request."""

    @abc.abstractmethod
    def write(self, path: str, file: IO[bytes], size: int) -> None:
        """Store what an open file of `size` bytes holds. If it fails, what the store had under the name stays."""

    @abc.abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Store data unless there is a file of that name, as one operation of the store; False: there is.

        False too if the store had created it, but its answer was lost and the request was repeated.
        """

    @abc.abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Delete files of one bucket; a missing one is not an error."""

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def match(self, pattern: str) -> Iterator[InputFile]:
        """The files that match a glob of Beam's, where `*` does not cross a slash and `**` does."""
        from apache_beam.io.filesystem import FileSystem

        # By RE2, because Python takes time in the power of the number of stars at a name of many dashes.
        expression = "\\A" + FileSystem.translate_pattern(pattern).removesuffix("\\Z") + "\\z"
        prefix = re.split(r"[\[*?]", pattern, maxsplit=1)[0]
        if prefix == pattern:
            found = self.stat(pattern)
            yield from [found] if found is not None else []
        else:
            for files in in_batches(self.list(prefix)):
                matches = pc.match_substring_regex(pa.array([file.path for file in files]), expression)
                yield from itertools.compress(files, matches.to_pylist())


def split_path(path: str) -> tuple[str, str]:
    """(bucket, name) of a file.

    >>> split_path("gs://bucket/a/b")
    ('bucket', 'a/b')
    """
    bucket, _, name = path.partition("://")[2].partition("/")
    return bucket, name


def in_batches(items: Iterable[Item], size: int = 1000) -> Iterator[list[Item]]:
    """The items, `size` at a time.

    >>> list(in_batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def in_parallel(request: Callable[[list[str]], None], paths: Sequence[str], size: int) -> None:
    """Make requests for so many paths each, several at once."""
    with concurrent.futures.ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        list(threads.map(request, in_batches(paths, size)))


def range_header(start: int, end: int | None) -> dict[str, str]:
    """The header of a request for these bytes of a file; none for the whole file.

    >>> range_header(2, 5), range_header(0, None)
    ({'Range': 'bytes=2-4'}, {})
    """
    return {} if start == 0 and end is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}


def pause(attempt: int) -> None:
    """Wait before a request is repeated, longer each time, and at random, so that threads take turns."""
    time.sleep(random.uniform(0, 2**attempt / 16))  # noqa: S311


def open_stored(store: Store, path: str, end: int | None) -> BinaryIO:
    """A file of a store, buffered; see `storage.open_binary`."""
    size = _BUFFER_BYTES if end is None else min(max(end, _AFTER_BYTES), _BUFFER_BYTES)
    return cast(BinaryIO, io.BufferedReader(StoredFile(store, path, end), size))


class StoredFile(io.RawIOBase):
    """A file of a store. Each read is one request, for no more than is asked for.

    `end`: no request crosses this position, and requests behind it begin small; None: no such limit.
    """

    def __init__(self, store: Store, path: str, end: int | None = None) -> None:
        self._store, self._path = store, path
        self._end = sys.maxsize if end is None else end
        self._after = _AFTER_BYTES
        self._position = 0
        self._size: int | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer).nbytes
        if self._position < self._end:
            wanted = min(wanted, self._end - self._position)
        elif wanted > self._after:
            wanted, self._after = self._after, 2 * self._after
        data = self._read(wanted)
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._read(None)

    def _read(self, count: int | None) -> bytes:
        start = self._position
        if count == 0 or (self._size is not None and start >= self._size):
            return b""
        with as_os_errors(self._path):
            data = self._store.read(self._path, start, None if count is None else start + count)
        self._position += len(data)
        if (count is None or len(data) < count) and (data or start == 0):
            self._size = self._position
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            if self._size is None:
                with as_os_errors(self._path):
                    found = self._store.stat(self._path)
                if found is None:
                    raise FileNotFoundError(errno.ENOENT, "No such file", self._path)
                self._size = found.size
            offset += self._size
        elif whence == os.SEEK_CUR:
            offset += self._position
        self._position = offset
        return offset
