"""Read, create and delete whole files; files that appear under their name complete or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, BinaryIO

import pyarrow as pa

from layerbeam.transforms.storage import stores
from layerbeam.transforms.storage.listing import file_names, is_absent, is_local, join, stat_file
from layerbeam.transforms.storage.locking import create_file
from layerbeam.transforms.storage.store import StoredFile, open_stored

# The start of the name of a local file until it is whole. Readers of folders skip names that begin with `_`.
UNFINISHED = "_unfinished-"
_SPOOLED_BYTES = 32 << 20
# What disks and mounts answer that cannot link, or not once more.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def open_binary(path: str, end: int | None = None) -> BinaryIO:
    """The file's bytes as they are stored, never decompressed. Errors are OSError, also while reading.

    `end`: where the bytes end that the caller expects to need. A store then gives no more, and what is read behind them
    is fetched in small pieces at first. None: the whole file is read, in large pieces.
    """
    if is_local(path):
        return open(path, "rb", opener=_open_regular)
    with stores.store_of(path) as store:
        return open_stored(store, path, end)


def _open_regular(path: str, flags: int) -> int:
    """Open a file that ends. A pipe would wait for a writer, and some devices never end."""
    file = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(file).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # Python reports a folder itself
        os.close(file)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return file


def open_arrow(path: str) -> Any:
    """As `open_binary`, for Arrow's readers, which read the ranges that they need.

    Arrow reads local files itself. Its threads may hold a Python file a moment longer than the reader, and a program
    that ends in this moment aborts ("terminate called without an active exception").
    """
    if not is_local(path):
        with stores.store_of(path) as store:
            return StoredFile(store, path)  # each read is one request
    open_binary(path).close()  # its errors are plainer than Arrow's
    return pa.OSFile(os.fsencode(path))


def read_bytes(path: str) -> bytes:
    """The whole file."""
    with open_binary(path) as file:
        return file.read()


def read_if_exists(path: str) -> bytes | None:
    """The whole file; None if there is none. OSError if it cannot be read now."""
    try:
        return read_bytes(path)
    except OSError as error:
        if is_absent(path, error):
            return None
        raise


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or incomplete. OSError if it cannot be read now."""
    try:
        value = parse_json(read_if_exists(path) or b"")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_json(data: bytes | str) -> Any:
    """The value of JSON. ValueError also for one that is nested too deep for Python."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def copy_into(path: str, file: IO[bytes]) -> None:
    """Copy a file's bytes into an open file. Raises OSError if they are fewer than its size."""
    expected = stat_file(path)
    with open_binary(path) as source:
        shutil.copyfileobj(source, file, 1 << 20)
        copied = file.tell()
    if expected.problem or copied != expected.size:
        raise OSError(f"{path}: {copied:,} bytes came, not {expected.size:,}")


def create_if_absent(path: str, data: bytes) -> bool:
    """Create a small file, complete or not at all, unless there is one of that name; False: there is, and it differs.

    Two programs that do this at once with different data do not both get True: the file system decides (link, or O_EXCL
    where it has no links), gs:// by if_generation_match=0, s3:// and az:// by If-None-Match. Beam's other stores have
    no such operation; there both may get True, and the later one's file stays.

    Local: where links are not supported, the file is incomplete for a moment, and after a power cut.
    """
    if is_local(path):
        is_new = _link(path, data) if data else _create(path, data)
    else:
        with stores.store_of(path) as store:
            is_new = store.create(path, data)
    # The answer may have been lost, of a store or of NFS: then the repeated request finds this program's own file.
    return is_new or read_if_exists(path) == data


def _link(path: str, data: bytes) -> bool:
    with unfinished_file(os.path.dirname(path)) as unfinished:
        with open(unfinished, "wb") as file:
            file.write(data)
        _check_size(unfinished, len(data))
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create(path, data)
    return True


def _create(path: str, data: bytes) -> bool:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        with open(path, "xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


def delete_files(folder: str, names: Iterable[str]) -> None:
    """Delete these files of a folder, on a store many at a time; a missing one is not an error.

    `names`: relative to the folder. OSError for one that leads out of it: only the folder itself may be a link.
    """
    paths = _inside(folder, names)
    if not is_local(folder):
        stores.delete(list(paths))
        return
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def delete_folder(folder: str, name: str) -> None:
    """Delete a folder in a folder with all that is in it; a missing one is not an error. OSError as `delete_files`."""
    # Of a file in it, because the folder must not be a link either.
    inner = os.path.dirname(next(_inside(folder, [f"{name}/_"])))
    if is_local(folder):
        shutil.rmtree(inner, ignore_errors=True)
    else:
        stores.delete([file.path for file in stores.list_prefix(inner + "/")])


def _inside(folder: str, names: Iterable[str]) -> Iterator[str]:
    """The paths of these files of a folder. OSError for a name that leads out of it, by `..` or a link."""
    real, checked = os.path.realpath(folder), set[str]()
    for name in names:
        inner = os.path.dirname(name)
        if inner not in checked:
            path = join(folder, inner)
            if ".." in inner.split("/") or (
                is_local(folder) and os.path.realpath(path) != f"{real}/{inner}".rstrip("/")
            ):
                raise OSError(f"{path}: leads out of {folder} and would be deleted there; remove this link or name")
            checked.add(inner)
        yield join(folder, name)


def delete_unfinished(folder: str) -> None:
    """Delete what programs that were killed have left in the folder. In stores nothing has a name until it is whole."""
    if is_local(folder):
        delete_files(folder, list(file_names(folder, UNFINISHED)))


def delete_empty_folder(folder: str) -> None:
    """Delete a folder that is empty; stores have no folders."""
    if is_local(folder):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def flush(folders: Iterable[str]) -> None:
    """Put on the disk what was written to the file systems of these folders, by any process of this machine.

    Local only: what a store has accepted is stored. A missing folder is none. OSError if a disk has lost data.
    """
    existing = [folder for folder in folders if is_local(folder) and os.path.isdir(folder)]
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)  # Linux; not in Python's `os`
    for folder in {os.stat(folder).st_dev: folder for folder in existing}.values():
        if syncfs is None:
            os.sync()
            continue
        file = os.open(folder, os.O_RDONLY)
        failed, number = syncfs(file), ctypes.get_errno()
        os.close(file)
        if failed:
            raise OSError(number, os.strerror(number), folder)


class HashedWriter(io.RawIOBase):
    """A file being written, with the count and the SHA-256 of its bytes so far."""

    def __init__(self, file: IO[bytes]) -> None:
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
def write_atomically(path: str | Callable[[str], str], *, sync: bool = False) -> Iterator[HashedWriter]:
    """Write a file that appears under its name complete or not at all. A file of that name is replaced.

    If it fails, nothing is deleted: what has the name may be another program's.

    Args:
        path: The name, or a function that gives it, always in one folder, from the SHA-256 of the bytes as hexadecimal
            digits. Local: the file is written there under another name and renamed. Stores: it is collected in memory,
            from 32 MiB on in a local temporary file, and uploaded at the end.
        sync: Flush it to the disk before the rename. Without it a power cut may truncate the file, which size and
            hash reveal.
    """
    name_of = path if callable(path) else lambda _: path
    folder = os.path.dirname(name_of(""))
    if not is_local(folder):
        with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as spool:
            writer = HashedWriter(spool)
            yield writer
            spool.seek(0)
            target = name_of(writer.sha256)
            with stores.store_of(target) as store:
                store.write(target, spool, writer.num_bytes)
        return
    with unfinished_file(folder) as unfinished:
        with open(unfinished, "wb") as file:
            writer = HashedWriter(file)
            yield writer
            if sync:
                file.flush()
                os.fsync(file.fileno())
        _check_size(unfinished, writer.num_bytes)
        os.replace(unfinished, name_of(writer.sha256))


@contextlib.contextmanager
def unfinished_file(folder: str) -> Iterator[str]:
    """A new local file in this folder, deleted in the end if it is still there.

    Each attempt has its own name: a worker that outlives its driver must not write into a newer attempt's file.
    """
    path = os.path.join(folder, f"{UNFINISHED}{uuid.uuid4().hex}")
    os.close(create_file(path, os.O_WRONLY | os.O_EXCL))
    try:
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def _check_size(path: str, num_bytes: int) -> None:
    """Raises OSError if the disk did not keep all bytes."""
    now = stat_file(path)
    if now.problem or now.size != num_bytes:
        kept = "none" if now.problem else f"{now.size:,}"
        raise OSError(f"{path}: only {kept} of {num_bytes:,} bytes were written")
