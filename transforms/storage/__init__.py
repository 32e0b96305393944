"""Files on any Beam file system, with the gaps of Beam's own functions closed.

Local paths go through the operating system: Beam's glob passes over names with a backslash, takes `[1]` in a literal
path for a pattern, and its `delete` expands patterns too.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import glob
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import shutil
import stat
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, BinaryIO, Protocol, cast

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from layerbeam.transforms.commits import InputFile, SkippedFile

# What each of Beam's file systems needs: (a module that it imports, what brings it).
_PACKAGES = {
    "gs": ("apache_beam.io.gcp.gcsfilesystem", "layerbeam[gcp]"),
    "s3": ("boto3", "apache-beam[aws]"),
    "hdfs": ("hdfs", "apache-beam[hadoop]"),
}

_CHUNK_BYTES = 1 << 20
_COMPRESSED_CHUNK_BYTES = 1 << 16  # text rarely grows more than a hundredfold


class TruncatedFileError(OSError):
    """A compressed file that ends before its stream does, or whose stream is damaged."""


def is_local(path: str) -> bool:
    """Whether the path lies on this machine's file system."""
    return FileSystems.get_scheme(path) is None


def set_options(arguments: Iterable[str] = ()) -> None:
    """Give Beam's file systems their options, as its command line has them; without any, s3:// and hdfs:// refuse."""
    FileSystems.set_options(PipelineOptions(list(arguments)))


def unsupported_reason(path: str) -> str | None:
    """Why no file can be reached under this path, and what to do; None where one can. `set_options` comes first."""
    scheme = FileSystems.get_scheme(path)
    if scheme is None:
        return None
    if scheme == "file":
        return "a local path has no scheme: leave off file://"
    package, install = _PACKAGES.get(scheme, ("", ""))
    if package and not is_installed(package):
        return f"{scheme}:// needs a package that is not installed; run: pip install '{install}'"
    try:
        FileSystems.get_filesystem(path)
    except Exception as error:  # ValueError, BeamIOError, and what each store's client has
        if package:
            options = "; give Beam's options --hdfs_host, --hdfs_port and --hdfs_user" if scheme == "hdfs" else ""
            return f"Beam cannot open {scheme}:// here ({error}){options}"
        known = ", ".join(f"{name}://" for name in _PACKAGES)
        return f"Beam has no file system for {scheme}:// here; it has local paths (without a scheme), {known}"
    return None


def is_installed(package: str) -> bool:
    """Whether it can be imported, with all that it imports."""
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


_LOG_IN = (
    "no credentials were found; run: gcloud auth application-default login, or give a service account's key file in "
    "the variable GOOGLE_APPLICATION_CREDENTIALS"
)
_ERRNO_OF_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}


@contextlib.contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    """Let a store's errors be OSError, as a disk's are: each client has classes of its own, which Beam wraps or not."""
    try:
        yield
    except Exception as error:
        cause: Any = error
        while isinstance(cause, BeamIOError) and cause.exception_details:
            cause = next(iter(cause.exception_details.values()))
        if isinstance(cause, OSError):
            raise
        response = getattr(cause, "response", None)
        status = getattr(cause, "code", None) or getattr(response, "status_code", None) or 0
        message = getattr(cause, "message", None) or getattr(response, "text", None) or str(cause)
        raise OSError(_ERRNO_OF_STATUS.get(status, errno.EIO), reason_of_service(message), path) from error


def reason_of(error: OSError) -> str:
    """What is wrong with a file, without the name of it."""
    return error.strerror or str(error)


def reason_of_service(message: str) -> str:
    """What Google's service says, without the request before it and the client's remark behind it.

    >>> reason_of_service("GET https://host/o?a=b: No such object: in/a: ('Request failed with status code', 404)")
    'No such object: in/a'
    >>> reason_of_service('{"error": {"code": 403, "message": "No access to in."}}')
    'No access to in.'
    """
    of_json = re.search(r'"message": *"([^"]+)"', message)
    plain = re.sub(r"^(\d+ )?[A-Z]+ \S+: |: \('Request failed .*$", "", " ".join(message.split()))
    reason = of_json[1] if of_json is not None else plain
    return f"{reason} ({_LOG_IN})" if reason.startswith("Anonymous c") else reason


def join(folder: str, *names: str) -> str:
    """`folder/name`, on any file system."""
    return cast(str, FileSystems.join(folder, *names))


def find_files(patterns: Iterable[str]) -> list[InputFile | SkippedFile]:
    """The files that the globs match, each once under its first spelling, in the order of their paths.

    A path that exists as it stands is that file, whatever characters it has. What matched and is no readable file
    (a folder, a broken link, a pipe) comes back as `SkippedFile`.
    """
    found: dict[str, InputFile | SkippedFile] = {}
    for pattern in patterns:
        if is_local(pattern):
            paths = [pattern] if os.path.lexists(pattern) else _match(pattern)
            for path in paths:
                # A pattern may well match a folder beside the files; only a folder that is named is worth a word.
                if path == pattern or not os.path.isdir(path):
                    found.setdefault(os.path.normpath(path), stat_file(path))
        else:
            try:
                matches = _list(pattern)
            except OSError as error:
                raise BeamIOError(f"{pattern}: {reason_of(error)}") from error
            for file in matches:
                found.setdefault(file.path, _input_file(file))
    return sorted(found.values(), key=lambda file: file.path)


def _list(pattern: str) -> Any:
    with _as_os_errors(pattern):
        return FileSystems.match([pattern])[0].metadata_list


def _match(pattern: str) -> Iterator[str]:
    """As Python's glob, but `**` enters no folder in which it is already: through a link upwards that has no end."""
    names = pattern.split("/")
    if "**" not in names:
        yield from glob.iglob(pattern)
        return
    place = names.index("**")
    rest = list(itertools.dropwhile("**".__eq__, names[place:])) or ["*"]
    tops = glob.iglob("/".join(names[:place]) or "/") if place else [""]
    for folder in itertools.chain.from_iterable(map(_folders_from, tops)):
        yield from _match(os.path.join(glob.escape(folder), *rest))


def _folders_from(top: str) -> Iterator[str]:
    """The folder and those below it, links followed; without those with a leading dot, as glob has it."""
    to_visit: list[tuple[str, frozenset[tuple[int, int]]]] = [(top, frozenset())]
    while to_visit:
        folder, above = to_visit.pop()
        try:
            status = os.stat(folder or ".")
            names = os.listdir(folder or ".")
        except OSError:
            continue
        here = (status.st_dev, status.st_ino)
        if here not in above:
            yield folder
            paths = [os.path.join(folder, name) for name in names if not name.startswith(".")]
            to_visit += [(path, above | {here}) for path in paths if os.path.isdir(path)]


def stat_file(path: str) -> InputFile | SkippedFile:
    """Size and time of a file as they are now, or why it is none that can be read."""
    try:
        if not is_local(path):
            # `?` is any character, also one that would mean something in a pattern.
            pattern = re.sub(r"[\[*?\\]", "?", path)
            found = [file for file in _list(pattern) if file.path == path]
            return _input_file(found[0]) if found else SkippedFile(path, "No such file")
        status = os.stat(path)
    except OSError as error:
        return SkippedFile(path, reason_of(error))
    if stat.S_ISDIR(status.st_mode):
        return SkippedFile(path, f"is a folder; to read the files in it, write {path.rstrip('/')}/*")
    if not stat.S_ISREG(status.st_mode):
        return SkippedFile(path, "is not a regular file")
    return InputFile(path, status.st_size, status.st_mtime)


def find_change(file: InputFile) -> SkippedFile | None:
    """What is wrong where a file is no longer the one that was found: other bytes or another time, or none at all."""
    now = stat_file(file.path)
    if isinstance(now, SkippedFile):
        return now
    return None if now == file else SkippedFile(file.path, "changed while it was being read; run again")


def _input_file(metadata: Any) -> InputFile:
    # Whole seconds: some stores tell parts of them in a listing, and not of a single object.
    return InputFile(metadata.path, metadata.size_in_bytes, float(int(metadata.last_updated_in_seconds or 0)))


def is_inside(path: str, folder: str) -> bool:
    """Whether the file lies in the folder or below it, links followed."""
    if is_local(path) != is_local(folder):
        return False
    if not is_local(path):
        return path.startswith(folder.rstrip("/") + "/")
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def open_binary(path: str) -> BinaryIO:
    """The file's bytes as they are stored, never decompressed."""
    if is_local(path):
        return open(path, "rb")
    with _as_os_errors(path):
        opened = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return cast(BinaryIO, io.BufferedReader(_StoredFile(path, opened), _CHUNK_BYTES))


class _StoredFile(io.RawIOBase):
    """A file in a store, whose errors while it is read are OSError, too."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path = path
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _as_os_errors(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _as_os_errors(self._path):
            return self._file.seek(offset, whence)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def read_bytes(path: str) -> bytes:
    """The whole file."""
    with open_binary(path) as file:
        return file.read()


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is none or it is not whole."""
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def exists(path: str) -> bool:
    """Whether there is a file or folder of that name."""
    if is_local(path):
        return os.path.lexists(path)
    with _as_os_errors(path):
        return bool(FileSystems.exists(path))


def check_bucket(folder: str) -> None:
    """OSError where the store's bucket is not there or closed to us; the folder itself may be yet to come."""
    _list(join(folder, "_*"))  # without a star Beam takes a bucket that is missing for a file that is


def list_folder(folder: str) -> dict[str, int]:
    """Sizes in bytes of the files directly in the folder, by name; empty where there is no folder."""
    if is_local(folder):
        if not os.path.isdir(folder):
            return {}
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    return {file.path.rsplit("/", 1)[-1]: file.size_in_bytes for file in _list(join(folder, "*"))}


def list_tree(folder: str) -> dict[str, InputFile]:
    """The files in a folder of one of Beam's file systems and below it, by their path in it."""
    root = folder.rstrip("/") + "/"
    return {file.path[len(root) :]: _input_file(file) for file in _list(root + "**")}


def copy_into(path: str, file: IO[bytes]) -> None:
    """Copy the bytes of a file, on any file system, into an open one. OSError where they are fewer than its size."""
    expected = stat_file(path)
    with open_binary(path) as source:
        shutil.copyfileobj(source, file, _CHUNK_BYTES)
        copied = file.tell()
    if not isinstance(expected, InputFile) or copied != expected.size:
        raise OSError(f"{path}: {copied:,} bytes came, not {getattr(expected, 'size', 0):,}")


def delete_files(paths: Iterable[str]) -> None:
    """Delete these files; one that is gone already is no error."""
    for path in paths:
        if is_local(path):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        elif exists(path):
            with _as_os_errors(path):
                FileSystems.delete([path])


def delete_folder(folder: str) -> None:
    """Delete the folder with all that is in it; one that is gone already is no error."""
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
    elif list_folder(folder):
        FileSystems.delete([f"{folder.rstrip('/')}/"])  # a hundred in one request, where the store has that
        delete_files(join(folder, name) for name in list_folder(folder))  # Google's only logs what it could not delete


def delete_empty_folder(folder: str) -> None:
    """Delete a folder in which nothing is; stores have none."""
    if is_local(folder):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def create_empty(path: str) -> None:
    """An empty file: it is whole as soon as it is there."""
    if is_local(path):
        open(path, "wb").close()
    else:
        with _as_os_errors(path):
            FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED).close()


class HashedWriter(io.RawIOBase):
    """A file being written, with the count and the SHA-256 of what went into it."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file = file
        self._path = path
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        with _as_os_errors(self._path):
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

    `sync`: on the disk before it appears. Of most files a power cut may take the end, which size and hash tell.

    Local: written in the folder `temporary` (on the same disk) and renamed. Object stores: written under its name; an
    upload appears when it is closed, and a rename would copy every byte.
    """
    if not is_local(path):
        with _as_os_errors(path):
            file = FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)
        try:
            writer = HashedWriter(file, path)
            yield writer
            with _as_os_errors(path):
                file.close()
            _check_size(path, writer.num_bytes)
        except BaseException:
            _abandon(file)
            with contextlib.suppress(Exception):
                delete_files([path])
            raise
        return
    os.makedirs(temporary, exist_ok=True)
    # A name of its own for each attempt: a worker that outlives its driver must not write into a newer one's file.
    unfinished = os.path.join(temporary, uuid.uuid4().hex)
    try:
        with open(unfinished, "xb") as local_file:
            writer = HashedWriter(local_file, path)
            yield writer
            if sync:
                local_file.flush()
                os.fsync(local_file.fileno())
        _check_size(unfinished, writer.num_bytes)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)
        raise


def _abandon(file: Any) -> None:
    """Let an upload end that broke off.

    Most of Beam's files can only be closed, and then what broke off appears as if it were whole. Google's can be given
    up, and must be: one that could not be closed is closed again when Python clears it away, and would then write
    over what another attempt has written under this name.
    """
    with contextlib.suppress(Exception):
        getattr(file, "terminate", file.close)()
    if hasattr(file, "terminate"):
        with contextlib.suppress(Exception):
            file._buffer.close()  # what marks it as closed, if giving up has failed, too


def _check_size(path: str, num_bytes: int) -> None:
    """OSError where the disk or the store did not keep all that it was given."""
    now = stat_file(path)
    if not isinstance(now, InputFile) or now.size != num_bytes:
        kept = f"{now.size:,} bytes" if isinstance(now, InputFile) else "nothing"
        raise OSError(f"{path}: {kept} came to be written, not {num_bytes:,} bytes")


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
    """Whether the name ends in one of .gz, .bz2, .zst."""
    return os.path.splitext(path)[1] in _DECOMPRESSORS


def read_chunks(file: BinaryIO, path: str) -> Iterator[bytes]:
    """The file's bytes from where it stands, decompressed by the ending of `path`.

    Beam's own reader ends silently where a .gz, .bz2 or .zst is cut off: TruncatedFileError here. Several members
    one after the other are one stream, as the tools that write them take it.
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
            except Exception as error:  # zlib.error, OSError, ZstdError: three names for one thing
                raise TruncatedFileError(f"the compressed data is damaged ({error})") from error
            if data:
                yield data
            chunk = stream.unused_data if stream.eof else b""
            if stream.eof:
                stream = None
    if stream is not None or not begun:
        raise TruncatedFileError("the compressed data ends before its end (a download or copy that broke off?)")
