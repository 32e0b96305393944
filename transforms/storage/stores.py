"""Beam's file systems (gs://, s3://, hdfs:// and others) behind functions whose errors are OSError.

Beam is imported for the first path with a scheme, because that takes 0.9 s.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, BinaryIO, cast

from layerbeam.transforms.commits import InputFile

# What each of Beam's file systems needs: (a module that it imports, the package that provides it).
_PACKAGES = {
    "gs": ("apache_beam.io.gcp.gcsfilesystem", "gcp"),
    "s3": ("boto3", "apache-beam[aws]"),
    "hdfs": ("hdfs", "apache-beam[hadoop]"),
}
_BUFFER_BYTES = 1 << 20
_UNCOMPRESSED = "uncompressed"  # CompressionTypes.UNCOMPRESSED
_LOG_IN = (
    "no credentials were found; run: gcloud auth application-default login, or give a service account's key file in "
    "the variable GOOGLE_APPLICATION_CREDENTIALS"
)
_ERRNO_OF_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}

# The arguments of the last `set_options`; None: never called, as on a worker, where Beam itself sets the options.
_options: list[str] | None = None


def set_options(arguments: Iterable[str] = ()) -> None:
    """Set the options of Beam's file systems, as on its command line. Without a call s3:// and hdfs:// do not open."""
    global _options
    _options = list(arguments)
    _beam.cache_clear()
    if "apache_beam" in sys.modules:
        _beam()


@functools.cache
def _beam() -> Any:
    """Beam's `FileSystems`, with the options that were set."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    if _options is not None:
        FileSystems.set_options(PipelineOptions(_options))
    return FileSystems


def scheme_of(path: str) -> str | None:
    """The scheme of a path, by the rule of Beam's `FileSystems.get_scheme`; None for a local path.

    >>> scheme_of("gs://bucket/a"), scheme_of("file:///tmp/a"), scheme_of(" s3://b")
    ('gs', 'file', 's3')
    >>> scheme_of("/tmp/a"), scheme_of("C:/a"), scheme_of("C:\\\\a"), scheme_of("a/b://c"), scheme_of("://a"), scheme_of("1s://a")
    (None, None, None, None, None, None)
    """
    match = re.match(r"([a-zA-Z][-a-zA-Z0-9+.]*)://", path.strip())
    return match[1] if match else None


def unsupported_reason(path: str) -> str | None:
    """Why no file under this path can be reached, and what to do; None if it can. Call `set_options` first."""
    scheme = scheme_of(path)
    if scheme is None:
        return None
    if scheme == "file":
        return "a local path has no scheme: leave off file://"
    package, install = _PACKAGES.get(scheme, ("", ""))
    if package and not is_installed(package):
        return f"{scheme}:// needs a package that is not installed; run: {install_command(install)}"
    try:
        _beam().get_filesystem(path)
    except Exception as error:  # ValueError, BeamIOError, and those of each store's client
        if package:
            options = "; give Beam's options --hdfs_host, --hdfs_port and --hdfs_user" if scheme == "hdfs" else ""
            return f"Beam cannot open {scheme}:// here ({error}){options}"
        known = ", ".join(f"{name}://" for name in _PACKAGES)
        return f"Beam has no file system for {scheme}:// here; it has local paths (without a scheme), {known}"
    return None


def install_command(extra: str) -> str:
    """The command that installs an extra of layerbeam, which is on no package index, or another package's."""
    if "[" in extra:
        return f"pip install '{extra}'"
    return f"pip install -c constraints.txt -e '.[{extra}]' (in your clone of layerbeam)"


def is_installed(module: str) -> bool:
    """Whether a module can be imported, with all that it imports."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Convert errors to OSError: each store's client has its own exceptions, which Beam may or may not wrap."""
    try:
        yield
    except Exception as error:
        cause: Any = error
        while details := getattr(cause, "exception_details", None):  # of a BeamIOError
            cause = next(iter(details.values()))
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
    return cast(str, _beam().join(folder, *names))


def list_files(pattern: str) -> list[InputFile]:
    """The files that match a glob."""
    with as_os_errors(pattern):
        found = _beam().match([pattern])[0].metadata_list
    # Whole seconds: some stores give fractions in a listing, but not for a single object.
    return [InputFile(file.path, file.size_in_bytes, float(int(file.last_updated_in_seconds or 0))) for file in found]


def exists(path: str) -> bool:
    """Whether there is a file of that name."""
    with as_os_errors(path):
        return bool(_beam().exists(path))


def delete(path: str) -> None:
    """Delete a file, or all files of a folder if the path ends in a slash."""
    with as_os_errors(path):
        _beam().delete([path])


def open_binary(path: str) -> BinaryIO:
    """The file's bytes as they are stored, buffered."""
    with as_os_errors(path):
        opened = _beam().open(path, compression_type=_UNCOMPRESSED)
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
        with as_os_errors(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with as_os_errors(self._path):
            return self._file.seek(offset, whence)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def create(path: str) -> IO[bytes]:
    """A new file in the store, which appears when it is closed. Write and close it within `as_os_errors`."""
    with as_os_errors(path):
        return cast(IO[bytes], _beam().create(path, compression_type=_UNCOMPRESSED))


def abort(file: Any) -> None:
    """Give up an upload that failed.

    Most of Beam's files can only be closed, and the incomplete file then appears. Google's can be terminated, and must
    be: Python's garbage collector closes a file again whose close failed, which would overwrite what another attempt
    has written under this name.
    """
    with contextlib.suppress(Exception):
        getattr(file, "terminate", file.close)()
    if hasattr(file, "terminate"):
        with contextlib.suppress(Exception):
            file._buffer.close()  # marks it as closed, even if `terminate` failed
