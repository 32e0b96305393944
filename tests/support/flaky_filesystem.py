"""A Beam file system for tests that fails by a plan: `faulty://`, a wrapper around Beam's local one.

Like an object store, it shows a file under its name only after the file is closed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem
from apache_beam.io.localfilesystem import LocalFileSystem
from object_store import ObjectPaths

SCHEME = "faulty://"


def local(path: str) -> str:
    return path.removeprefix(SCHEME)


@dataclasses.dataclass
class Plan:
    """Which calls fail: the given share of each kind. After `faults` failures nothing fails any more.

    Kinds that fail: `open` and `read` (a file), `create`, `write`, `close` (the upload stops), `truncate` (the upload
    is silently cut short), `list`, `stat`, `delete`. `delay` only waits.
    """

    seed: int = 0
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    faults: int = 1 << 30
    happened: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._lock = threading.Lock()

    def strikes(self, kind: str, path: str) -> bool:
        with self._lock:
            if len(self.happened) >= self.faults or self._random.random() >= self.shares.get(kind, 0):
                return False
            if kind != "delay":
                self.happened.append((kind, path))
            return True

    def step(self, kind: str, path: str) -> None:
        """Fail or wait here if the plan requires it."""
        if self.strikes("delay", path):
            time.sleep(0.01)
        if self.strikes(kind, path):
            raise OSError(errno.EIO, f"{kind} failed, as planned", path)


class FaultyFileSystem(ObjectPaths, FileSystem):
    """Beam finds it as a subclass of FileSystem."""

    plan = Plan()
    _real = LocalFileSystem(None)

    @classmethod
    def scheme(cls) -> str:
        return "faulty"

    def mkdirs(self, path: str) -> None:
        self._real.mkdirs(local(path))

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        self.plan.step("list", dir_or_prefix)
        prefix = local(dir_or_prefix)
        folder = prefix if os.path.isdir(prefix) else os.path.dirname(prefix)
        for parent, _, names in os.walk(folder):
            for path in (os.path.join(parent, name) for name in names):
                if path.startswith(prefix) and not path.endswith(".upload"):
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        found = os.stat(path)
                        yield FileMetadata(SCHEME + path, found.st_size, found.st_mtime)

    def exists(self, path: str) -> bool:
        self.plan.step("stat", path)
        return self._real.exists(local(path))

    def size(self, path: str) -> int:
        return self._real.size(local(path))

    def last_updated(self, path: str) -> float:
        return self._real.last_updated(local(path))

    def metadata(self, path: str) -> FileMetadata:
        self.plan.step("stat", path)
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def open(self, path, mime_type="application/octet-stream", compression_type=CompressionTypes.AUTO):
        self.plan.step("open", path)
        try:
            file = open(local(path), "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError as error:
            raise BeamIOError(f"no such object: {path}") from error
        return io.BufferedReader(_Download(file, path, self.plan))

    def create(self, path, mime_type="application/octet-stream", compression_type=CompressionTypes.AUTO):
        self.plan.step("create", path)
        os.makedirs(os.path.dirname(local(path)), exist_ok=True)
        return _Upload(path, self.plan)

    def delete(self, paths):
        for path in paths:
            below = sorted(os.listdir(local(path))) if path.endswith("/") else None
            for one in [path] if below is None else [path + name for name in below]:
                self.plan.step("delete", one)
                os.remove(local(one))

    def copy(self, source_file_names, destination_file_names):
        raise NotImplementedError

    rename = copy


class _Download(io.RawIOBase):
    def __init__(self, file: Any, path: str, plan: Plan) -> None:
        self._file, self._path, self._plan = file, path, plan

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, origin: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, origin)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        self._plan.step("read", self._path)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Upload(io.RawIOBase):
    def __init__(self, path: str, plan: Plan) -> None:
        self._path, self._plan, self._data = path, plan, io.BytesIO()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._plan.step("write", self._path)
        return self._data.write(data)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        data = self._data.getvalue()
        breaks_off = self._plan.strikes("close", self._path)
        if breaks_off or (data and self._plan.strikes("truncate", self._path)):
            data = data[: len(data) // 2]
        unfinished = f"{local(self._path)}.{threading.get_ident()}.upload"
        with open(unfinished, "wb") as file:
            file.write(data)
        os.replace(unfinished, local(self._path))
        if breaks_off:
            raise OSError(errno.EIO, "close failed, as planned", self._path)
