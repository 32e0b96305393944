"""Files that appear under their name complete or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import uuid
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.storage.files import delete_files
from layerbeam.transforms.storage.listing import stat_file
from layerbeam.transforms.storage.paths import is_local

if TYPE_CHECKING:
    from layerbeam.transforms.storage.stores import Upload


class HashedWriter(io.RawIOBase):
    """A file being written, with the count and the SHA-256 of its bytes so far."""

    def __init__(self, file: IO[bytes] | Upload) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        self._file.write(data)
        size = memoryview(data).nbytes
        self.num_bytes += size
        return size

    def tell(self) -> int:
        return self.num_bytes

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


@contextlib.contextmanager
def write_whole(path: str, *, temporary: str, sync: bool = False) -> Iterator[HashedWriter]:
    """Write a file that appears under its name complete or not at all.

    Local: written in the folder `temporary` (on the same disk) and renamed. Stores: written under its name, because an
    upload appears when it is closed, and a rename would copy every byte.

    `sync`: flush it to the disk before the rename. Without it a power cut may truncate the file, which size and hash
    reveal.
    """
    with _upload(path) if not is_local(path) else _rename_when_complete(path, temporary, sync) as writer:
        yield writer


@contextlib.contextmanager
def _upload(path: str) -> Iterator[HashedWriter]:
    from layerbeam.transforms.storage import stores

    upload = stores.create(path)
    try:
        writer = HashedWriter(upload)
        yield writer
        upload.close()
        _check_size(path, writer.num_bytes)
    except BaseException:
        upload.abort()
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
