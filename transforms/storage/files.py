"""Read, create and delete whole files; files that appear under their name complete or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, BinaryIO

import pyarrow as pa

from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.storage import stores
from layerbeam.transforms.storage.listing import exists, is_local, join, list_folder, stat_file


def open_binary(path: str) -> BinaryIO:
    """The file's bytes as they are stored, never decompressed. Errors are OSError, also while reading."""
    return open(path, "rb") if is_local(path) else stores.open_binary(path)


def open_arrow(path: str) -> Any:
    """As `open_binary`, for Arrow's readers.

    Arrow reads local files itself. Its threads may hold a Python file a moment longer than the reader, and a program
    that ends in this moment aborts ("terminate called without an active exception").
    """
    if not is_local(path):
        return stores.open_binary(path)
    open(path, "rb").close()  # its errors are plainer than Arrow's
    return pa.OSFile(os.fsencode(path))


def read_bytes(path: str) -> bytes:
    """The whole file."""
    with open_binary(path) as file:
        return file.read()


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or incomplete."""
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def copy_into(path: str, file: IO[bytes]) -> None:
    """Copy a file's bytes into an open file. Raises OSError if they are fewer than its size."""
    expected = stat_file(path)
    with open_binary(path) as source:
        shutil.copyfileobj(source, file, 1 << 20)
        copied = file.tell()
    if not isinstance(expected, InputFile) or copied != expected.size:
        raise OSError(f"{path}: {copied:,} bytes came, not {getattr(expected, 'size', 0):,}")


def create_empty(path: str) -> None:
    """Create an empty file, which is complete as soon as it exists."""
    if is_local(path):
        open(path, "wb").close()
    else:
        with stores.as_os_errors(path):
            stores.create(path).close()


def create_whole(path: str, data: bytes, *, temporary: str) -> bool:
    """Create a small file, whole, if there is none of that name; False if there is.

    On stores two programs that create it in the same moment may both believe that they did: the later one's stays.
    """
    if not is_local(path):
        if exists(path):
            return False
        with write_whole(path, temporary=temporary) as file:
            file.write(data)
        return True
    for folder in (temporary, os.path.dirname(path) or "."):
        os.makedirs(folder, exist_ok=True)
    unfinished = os.path.join(temporary, uuid.uuid4().hex)
    try:
        with open(unfinished, "xb") as written:
            written.write(data)
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, path)
            return True
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)


def delete_files(paths: Iterable[str]) -> None:
    """Delete these files; a missing one is not an error."""
    for path in paths:
        if is_local(path):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        elif exists(path):
            stores.delete(path)


def delete_folder(folder: str) -> None:
    """Delete the folder with all that is in it; a missing one is not an error."""
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
    elif list_folder(folder):
        stores.delete(f"{folder.rstrip('/')}/")  # a hundred files per request, if the store supports it
        delete_files(join(folder, name) for name in list_folder(folder))  # GCS only logs what it could not delete


def delete_empty_folder(folder: str) -> None:
    """Delete a folder that is empty; stores have no folders."""
    if is_local(folder):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


class HashedWriter(io.RawIOBase):
    """A file being written, with the count and the SHA-256 of its bytes so far."""

    def __init__(self, file: IO[bytes], errors: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._file = file
        self._errors = errors
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        with self._errors():
            self._file.write(data)
        size = memoryview(data).nbytes
        self.num_bytes += size
        return size

    def tell(self) -> int:
        return self.num_bytes

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


def write_whole(path: str, *, temporary: str, sync: bool = False) -> AbstractContextManager[HashedWriter]:
    """Write a file that appears under its name complete or not at all.

    Local: written in the folder `temporary` (on the same disk) and renamed. Stores: written under its name, because an
    upload appears when it is closed, and a rename would copy every byte.

    `sync`: flush it to the disk before the rename. Without it a power cut may truncate the file, which size and hash
    reveal.
    """
    return _rename_when_complete(path, temporary, sync) if is_local(path) else _upload(path)


@contextlib.contextmanager
def _upload(path: str) -> Iterator[HashedWriter]:
    file = stores.create(path)
    try:
        writer = HashedWriter(file, lambda: stores.as_os_errors(path))
        yield writer
        with stores.as_os_errors(path):
            file.close()
        _check_size(path, writer.num_bytes)
    except BaseException:
        stores.abort(file)
        with contextlib.suppress(Exception):
            delete_files([path])
        raise


@contextlib.contextmanager
def _rename_when_complete(path: str, temporary: str, sync: bool) -> Iterator[HashedWriter]:
    os.makedirs(temporary, exist_ok=True)
    # Each attempt has its own name: a worker that outlives its driver must not write into a newer attempt's file.
    unfinished = os.path.join(temporary, uuid.uuid4().hex)
    try:
        with open(unfinished, "xb") as file:
            writer = HashedWriter(file)
            yield writer
            if sync:
                file.flush()
                os.fsync(file.fileno())
        _check_size(unfinished, writer.num_bytes)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)
        raise


def _check_size(path: str, num_bytes: int) -> None:
    """Raises OSError if the disk or the store did not keep all bytes."""
    now = stat_file(path)
    if not isinstance(now, InputFile) or now.size != num_bytes:
        kept = f"{now.size:,}" if isinstance(now, InputFile) else "none"
        raise OSError(f"{path}: only {kept} of {num_bytes:,} bytes were written")
