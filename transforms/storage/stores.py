"""Beam's file systems (gs://, s3://, hdfs:// and others) behind functions whose errors are OSError.

The only module here that imports Beam; the others import it for the first path with a scheme.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any, BinaryIO, cast

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.storage import paths

_BUFFER_BYTES = 1 << 20
_LOG_IN = (
    "no credentials were found; run: gcloud auth application-default login, or give a service account's key file in "
    "the variable GOOGLE_APPLICATION_CREDENTIALS"
)
_ERRNO_OF_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}


def set_options(arguments: Iterable[str]) -> None:
    """Set the options of Beam's file systems; see `paths.set_options`."""
    FileSystems.set_options(PipelineOptions(list(arguments)))


if paths.store_options is not None:
    set_options(paths.store_options)


def connection_error(path: str) -> Exception | None:
    """The error of finding the file system of this path; None if it is found."""
    try:
        FileSystems.get_filesystem(path)
    except Exception as error:  # ValueError, BeamIOError, and those of each store's client
        return error
    return None


@contextlib.contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    """Convert errors to OSError: each store's client has its own exceptions, which Beam may or may not wrap."""
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


def reason_of_service(message: str) -> str:
    """The reason in an error of Google's service, without the request before it and the client's remark after it.

    >>> reason_of_service("GET https://host/o?a=b: No such object: in/a: ('Request failed with status code', 404)")
    'No such object: in/a'
    >>> reason_of_service('{"error": {"code": 403, "message": "No access to in."}}')
    'No access to in.'
    """
    in_json = re.search(r'"message": *"([^"]+)"', message)
    plain = re.sub(r"^(\d+ )?[A-Z]+ \S+: |: \('Request failed .*$", "", " ".join(message.split()))
    reason = in_json[1] if in_json is not None else plain
    return f"{reason} ({_LOG_IN})" if reason.startswith("Anonymous c") else reason


def join(folder: str, *names: str) -> str:
    """`folder/name`."""
    return cast(str, FileSystems.join(folder, *names))


def list_files(pattern: str) -> list[InputFile]:
    """The files that match a glob."""
    with _as_os_errors(pattern):
        found = FileSystems.match([pattern])[0].metadata_list
    # Whole seconds: some stores give fractions in a listing, but not for a single object.
    return [InputFile(file.path, file.size_in_bytes, float(int(file.last_updated_in_seconds or 0))) for file in found]


def exists(path: str) -> bool:
    """Whether there is a file of that name."""
    with _as_os_errors(path):
        return bool(FileSystems.exists(path))


def delete(path: str) -> None:
    """Delete a file, or all files of a folder if the path ends in a slash."""
    with _as_os_errors(path):
        FileSystems.delete([path])


def open_binary(path: str) -> BinaryIO:
    """The file's bytes as they are stored, buffered."""
    with _as_os_errors(path):
        opened = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return cast(BinaryIO, io.BufferedReader(_Download(path, opened), _BUFFER_BYTES))


class _Download(io.RawIOBase):
    """A file being read from a store."""

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


def create(path: str) -> Upload:
    """A new file in the store, which appears when it is closed."""
    with _as_os_errors(path):
        return Upload(path, FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED))


class Upload:
    """A file being written to a store."""

    def __init__(self, path: str, file: Any) -> None:
        self._path = path
        self._file = file

    def write(self, data: Any) -> None:
        with _as_os_errors(self._path):
            self._file.write(data)

    def close(self) -> None:
        with _as_os_errors(self._path):
            self._file.close()

    def abort(self) -> None:
        """Give up an upload that failed.

        Most of Beam's files can only be closed, and the incomplete file then appears. Google's can be terminated, and
        must be: Python's garbage collector closes a file again whose close failed, which would overwrite what another
        attempt has written under this name.
        """
        with contextlib.suppress(Exception):
            getattr(self._file, "terminate", self._file.close)()
        if hasattr(self._file, "terminate"):
            with contextlib.suppress(Exception):
                self._file._buffer.close()  # marks it as closed, even if `terminate` failed
