"""What the folder has from earlier runs, found by the hash of a block's bytes or texts: a file, written before a run.

The file is the number of its records, the records, then the lines of commits. A record stands for what a commit holds
of one file: 24 bytes, which a process reads once (24 MB for a million blocks); with fields, there is a second one for
its texts. A commit is read when it is asked for.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import Int64Array
from layerbeam.transforms.flow.commits import Commit, FileRange, parse_commit

# `content`, `place`: what `keys_of` gives, or `texts_key` as content, ascending. `offset`: of the commit's line, behind
# the records.
_RECORD = np.dtype([("content", "<i8"), ("place", "<i8"), ("offset", "<i8")])
_COUNT_BYTES = 8
# What a store is asked for; the line of a pack may be longer.
_LINE_BYTES = 64 << 10
_COMMITS_KEPT = 64
# Of equal bytes at many other places so many are tried.
_MOST_MOVED = 3


def keys_of(file_range: FileRange) -> tuple[int, int]:
    """64 bits that stand for the bytes, and 64 for their place."""
    place = f"{file_range.first_byte}\0{file_range.file.path}"
    return _as_int(file_range.sha256), _as_int(place)


def texts_key(file_range: FileRange) -> int | None:
    """64 bits that stand for the texts, as `keys_of` has for the bytes; None if the texts are not known."""
    return _as_int(file_range.texts) if file_range.texts else None


def _as_int(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def write_content_index(file: Any, count: int, records: Iterable[tuple[int, int, int]], lines: Iterable[bytes]) -> None:
    """Write (content, place, offset), so many and ascending, then the lines of commits; the first has offset 0."""
    file.write(count.to_bytes(_COUNT_BYTES, "little"))
    for some in storage.in_batches(records):
        file.write(np.array(some, _RECORD).tobytes())
    for line in lines:
        file.write(line + b"\n")


class _Records(NamedTuple):
    """The columns of all records, int64 each, and the place of the first line."""

    content: Int64Array
    place: Int64Array
    offset: Int64Array
    lines_start: int


@functools.lru_cache(maxsize=1)
def _load_records(path: str) -> _Records:
    """All records; once in a process, for all its threads."""
    count = int.from_bytes(_read(path, 0, _COUNT_BYTES), "little")
    records = np.frombuffer(_read(path, _COUNT_BYTES, count * _RECORD.itemsize), _RECORD)
    content, place, offset = (np.ascontiguousarray(records[name]) for name in _RECORD.fields or ())
    return _Records(content, place, offset, _COUNT_BYTES + records.nbytes)


def _read(path: str, start: int, size: int, *, is_line: bool = False) -> bytes:
    """So many bytes, or the line there, which is about as long; none if a newer attempt has deleted the file."""
    try:
        with storage.open_binary(path, start + size) as file:
            file.seek(start)
            return file.readline() if is_line else file.read(size)
    except OSError as error:
        if storage.is_absent(path, error):
            return b""
        raise


class IndexedFile(NamedTuple):
    """What a commit holds of one file. `offset`: of the commit."""

    offset: int
    commit: Commit
    file_range: FileRange


class ContentIndex:
    """The commits in a file that `write_content_index` wrote; none if the path is empty."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._commits: dict[int, Commit | None] = {}

    def find(self, file_range: FileRange) -> Iterator[IndexedFile]:
        """What commits hold of the same bytes: those of the same place first, then a few others."""
        content, place = keys_of(file_range)
        return (indexed for indexed in self._find(content, place) if indexed.file_range.sha256 == file_range.sha256)

    def find_texts(self, file_range: FileRange) -> Iterator[IndexedFile]:
        """As `find`, what they hold of the same texts."""
        texts = texts_key(file_range)
        found = iter(()) if texts is None else self._find(texts, keys_of(file_range)[1])
        return (indexed for indexed in found if indexed.file_range.texts == file_range.texts)

    def _find(self, content: int, place: int) -> Iterator[IndexedFile]:
        if not self.path:
            return
        records = _load_records(self.path)
        first, end = (int(np.searchsorted(records.content, content, side)) for side in ("left", "right"))
        places, offsets = records.place[first:end], records.offset[first:end]
        here, behind = (int(np.searchsorted(places, place, side)) for side in ("left", "right"))
        moved = [*offsets[:here][:_MOST_MOVED], *offsets[behind:][:_MOST_MOVED]][:_MOST_MOVED]
        for offset in dict.fromkeys(map(int, [*offsets[here:behind], *moved])):
            if (commit := self.commit(offset)) is not None:
                yield from (IndexedFile(offset, commit, file_range) for file_range in commit.files)

    def commit(self, offset: int) -> Commit | None:
        """The commit at this offset; None if it is damaged."""
        if offset not in self._commits:
            start = _load_records(self.path).lines_start + offset
            self._commits[offset] = parse_commit(_read(self.path, start, _LINE_BYTES, is_line=True))
            if len(self._commits) > _COMMITS_KEPT:
                del self._commits[next(iter(self._commits))]
        return self._commits[offset]
