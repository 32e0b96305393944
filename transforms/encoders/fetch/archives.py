"""Unpack archives of encoders: .zip (Google's checkpoints) and .tar, .tar.gz, .tgz (TF Hub's SavedModels)."""

from __future__ import annotations

import errno
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from layerbeam.transforms.encoders.config_file import EncoderError, at, first_line
from layerbeam.transforms.encoders.fetch.cache import cached

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")


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

    Before anything is written, EncoderError for an archive that is damaged, for an entry outside the folder, for one
    that is neither file nor folder (a link), and for a disk that is too small. OSError of either disk.
    """
    place = at(handle, archive)
    try:
        with zipfile.ZipFile(archive) if archive.suffix.lower() == ".zip" else tarfile.open(archive) as file:
            files, sizes = _zip_files(file) if isinstance(file, zipfile.ZipFile) else _tar_files(file)
            if not sizes:
                raise EOFError("it holds no file")
            for name in sizes:
                path = PurePosixPath(name.replace("\\", "/"))
                if not path.parts or "\0" in name:
                    raise EOFError(f"the entry {name!r} has no name")
                if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                    raise EncoderError(
                        f"{place}: the entry {name!r} would lie outside the folder; no honest archive has such an "
                        "entry: take it from its publisher"
                    )
            needed, free = sum(sizes.values()), shutil.disk_usage(folder).free
            if needed > free:
                raise EncoderError(f"{handle}: unpacked it takes {needed:,} bytes, and {folder} has {free:,} free")
            for member in files:
                file.extract(member, folder)
    except EncoderError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: an impossible position
            raise
        # zipfile, tarfile and their decompressors have a dozen exceptions for damage.
        raise EncoderError(f"{place}: cannot be unpacked ({first_line(error)}); download it again") from error


def _zip_files(file: zipfile.ZipFile) -> tuple[list[Any], dict[str, int]]:
    """(its files, {name: bytes})."""
    entries = [entry for entry in file.infolist() if not entry.is_dir()]
    for entry in entries:
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise zipfile.BadZipFile(f"the entry {entry.filename!r} is a link")
    sizes = {entry.filename: entry.file_size for entry in entries}
    for entry in entries:
        entry.filename = entry.filename.replace("\\", "/")  # some Windows programs separate names so
    return entries, sizes


def _tar_files(file: tarfile.TarFile) -> tuple[list[Any], dict[str, int]]:
    """(its files, {name: bytes})."""
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
    file.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
    return entries, {entry.name: entry.size for entry in entries}


def cached_archive(handle: str, key: str, ending: str, fetch: Callable[[Path], Any], advice: str = "") -> Path:
    """The cached folder of an archive. `fetch` writes the archive to the path that it is given, with this ending."""

    def fill(folder: Path) -> None:
        archive = folder.with_name(f"archive{ending}")
        fetch(archive)
        extract(handle, archive, folder)

    return cached(handle, key, fill, advice)
