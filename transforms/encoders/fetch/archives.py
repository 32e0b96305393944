"""Unpack archives of encoders: .zip (Google's checkpoints) and .tar, .tar.gz, .tgz (TF Hub's SavedModels)."""

from __future__ import annotations

import errno
import functools
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from layerbeam.transforms.encoders.config_file import EncoderError, at, first_line
from layerbeam.transforms.encoders.fetch.cache import CacheError, cached, create

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")

# Of a name that is too long, or that is both a file's and a folder's.
_ERRORS_OF_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)

# (name in the archive, size in bytes, how to open it)
_Member = tuple[str, int, Callable[[], Any]]


def stem(name: str) -> str:
    """The name without the archive's ending.

    >>> stem("uncased_L-12_H-768_A-12.zip")
    'uncased_L-12_H-768_A-12'
    """
    return name[: len(name) - len(ending_of(name))]


def ending_of(name: str) -> str:
    """The archive's ending as it is written; empty if there is none.

    >>> ending_of("bert.TAR.GZ"), ending_of("bert.gz")
    ('.TAR.GZ', '')
    """
    return next((name[-len(ending) :] for ending in ENDINGS if name.lower().endswith(ending)), "")


def extract(handle: str, archive: Path, folder: Path) -> None:
    """Unpack the files of an archive into the folder.

    Before anything is written, EncoderError for an archive that is damaged or cannot be read, for an entry outside the
    folder, for one that is neither file nor folder (a link), and for a disk that is too small. CacheError if the folder
    cannot be written.
    """
    place = at(handle, archive)
    try:
        with zipfile.ZipFile(archive) if archive.suffix.lower() == ".zip" else tarfile.open(archive) as file:
            members = _zip_members(file) if isinstance(file, zipfile.ZipFile) else _tar_members(file)
            if not members:
                raise EOFError("it holds no file")
            for name, _, _ in members:
                path = _path(name)
                if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                    raise EncoderError(
                        f"{place}: the entry {name!r} would lie outside the folder; no honest archive has such an "
                        "entry: take it from its publisher"
                    )
            needed, free = sum(size for _, size, _ in members), shutil.disk_usage(folder).free
            if needed > free:
                raise EncoderError(f"{handle}: unpacked it takes {needed:,} bytes, and {folder} has {free:,} free")
            for name, size, open_member in members:
                with open_member() as source, create(folder / _path(name)) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                    if target.tell() != size:
                        raise EOFError(f"the entry {name!r} has {target.tell():,} bytes, not {size:,}")
    except EncoderError:
        raise
    except CacheError as error:
        if getattr(error.__cause__, "errno", None) in _ERRORS_OF_NAMES:
            reason = f"the entry {name[:80]!r} cannot have this name"
            raise EncoderError(f"{place}: cannot be unpacked ({reason}); download it again") from error
        raise
    except Exception as error:
        # An errno is that of the archive's disk, except EINVAL: a position that no file can have.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise EncoderError(f"{place}: cannot be read: {error.strerror}") from error
        # zipfile, tarfile and their decompressors have a dozen exceptions for damage.
        raise EncoderError(f"{place}: cannot be unpacked ({first_line(error)}); download it again") from error


def _path(name: str) -> PurePosixPath:
    """The path of an entry in the folder; some Windows programs separate names with backslashes in .zip files."""
    path = PurePosixPath(name.replace("\\", "/"))
    if not path.parts or "\0" in name:
        raise ValueError(f"the entry {name!r} has no name")
    return path


def _zip_members(file: zipfile.ZipFile) -> list[_Member]:
    entries = [entry for entry in file.infolist() if not entry.is_dir()]
    for entry in entries:
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise zipfile.BadZipFile(f"the entry {entry.filename!r} is a link")
    return [(entry.filename, entry.file_size, functools.partial(file.open, entry)) for entry in entries]


def _tar_members(file: tarfile.TarFile) -> list[_Member]:
    entries = [entry for entry in file if not entry.isdir()]
    for entry in entries:
        if not entry.isfile():
            raise tarfile.TarError(f"the entry {entry.name!r} is neither a file nor a folder")
    # tarfile accepts an archive that ends after a file without the end mark, and gzip's CRC comes after that.
    stream: Any = file.fileobj
    stream.seek(file.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.TarError(f"it breaks off at byte {file.offset:,}")
    while stream.read(1 << 20):
        pass
    return [(entry.name, entry.size, functools.partial(file.extractfile, entry)) for entry in entries]


def cached_archive(handle: str, key: str, ending: str, fetch: Callable[[Path], Any]) -> Path:
    """The cached folder of an archive. `fetch` writes the archive to the path that it is given, with this ending."""

    def fill(folder: Path) -> None:
        archive = folder.with_name(folder.name + ending)
        try:
            fetch(archive)
            extract(handle, archive, folder)
        finally:
            archive.unlink(missing_ok=True)

    return cached(handle, key, fill)
