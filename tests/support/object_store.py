"""An object store for tests: the Beam file system `memory://`, which has no folders and no local paths."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem

from layerbeam.transforms import storage


class ObjectPaths:
    """Path handling common to object stores, where folders are only prefixes. Not one of Beam's file systems itself."""

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        folder, _, name = path.rpartition("/")
        return folder, name

    def has_dirs(self) -> bool:
        return False


class MemoryFileSystem(ObjectPaths, FileSystem):
    """An object store in this process: {path: (time, bytes)}. Beam finds it as a subclass of FileSystem."""

    stored: dict[str, tuple[float, bytes]] = {}  # noqa: RUF012
    opened: list[str] = []  # noqa: RUF012
    short: set[str] = set()  # noqa: RUF012

    @classmethod
    def scheme(cls) -> str:
        return "memory"

    def mkdirs(self, path: str) -> None:
        pass

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        return (self.metadata(path) for path in sorted(self.stored) if path.startswith(dir_or_prefix))

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def exists(self, path: str) -> bool:
        return path in self.stored

    def size(self, path: str) -> int:
        return len(self.stored[path][1])

    def last_updated(self, path: str) -> float:
        return self.stored[path][0]

    def open(self, path, mime_type="application/octet-stream", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED, "files are taken as they are"
        self.opened.append(path)
        if path not in self.stored:
            raise BeamIOError(f"no such object: {path}")
        data = self.stored[path][1]
        # Buffered, like the streams of object stores.
        return io.BufferedReader(io.BytesIO(data[: len(data) // 2] if path in self.short else data), buffer_size=64)

    def create(self, path, mime_type="application/octet-stream", compression_type=CompressionTypes.AUTO):
        raise NotImplementedError

    copy = rename = delete = create


def upload(folder: Path, to: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            MemoryFileSystem.stored[f"{to}/{path.relative_to(folder)}"] = (1_700_000_000.0, path.read_bytes())


def created_at_once(path: str, contents: list[bytes]) -> list[bool]:
    """What `create_if_absent` returns to threads that call it at the same time."""
    barrier = threading.Barrier(len(contents))

    def create(content: bytes) -> bool:
        barrier.wait()
        return storage.create_if_absent(path, content)

    with ThreadPoolExecutor(len(contents)) as threads:
        return list(threads.map(create, contents))
