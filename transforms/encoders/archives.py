"""Archives of encoders unpacked: .zip (Google's checkpoints) and .tar, .tar.gz, .tgz (TF Hub's SavedModels)."""

from __future__ import annotations

import contextlib
import functools
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from transforms.encoders.source import EncoderError

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")

# (name in the archive, size in bytes, how to open it)
_Member = tuple[str, int, Callable[[], IO[bytes]]]


def is_archive(path: str) -> bool:
    """Whether the name is that of an archive which `extract` can unpack."""
    return path.endswith(ENDINGS)


def stem(name: str) -> str:
    """The name without the archive's ending.

    >>> stem("uncased_L-12_H-768_A-12.zip")
    'uncased_L-12_H-768_A-12'
    """
    return next((name[: -len(ending)] for ending in ENDINGS if name.endswith(ending)), name)


def extract(handle: str, archive: Path, folder: Path) -> None:
    """Unpack the files of an archive into the folder.

    EncoderError for an archive that is damaged, for an entry that would lie outside the folder and for one that is
    neither file nor folder (a link), before anything is written; where the disk has too little room.
    """
    try:
        with _zip_members(archive) if archive.suffix == ".zip" else _tar_members(archive) as members:
            for name, _, _ in members:
                path = PurePosixPath(name.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                    raise EncoderError(
                        f"{handle}: {archive}: the entry {name!r} would lie outside the folder; no honest encoder "
                        "comes so: take it from its publisher"
                    )
            size, free = sum(size for _, size, _ in members), shutil.disk_usage(folder).free
            if size > free:
                raise EncoderError(f"{handle}: unpacked it takes {size:,} bytes, and {folder} has {free:,} free")
            for name, _, open_member in members:
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with open_member() as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise EncoderError(f"{handle}: {archive}: cannot be unpacked ({error}); download it again") from None


@contextlib.contextmanager
def _zip_members(archive: Path) -> Iterator[list[_Member]]:
    with zipfile.ZipFile(archive) as file:
        members: list[_Member] = []
        for entry in file.infolist():
            if entry.is_dir():
                continue
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise zipfile.BadZipFile(f"the entry {entry.filename!r} is a link")
            members.append((entry.filename, entry.file_size, functools.partial(file.open, entry)))
        yield members


@contextlib.contextmanager
def _tar_members(archive: Path) -> Iterator[list[_Member]]:
    with tarfile.open(archive) as file:
        members: list[_Member] = []
        for entry in file:
            if entry.isdir():
                continue
            if not entry.isfile():
                raise tarfile.TarError(f"the entry {entry.name!r} is neither a file nor a folder")
            members.append((entry.name, entry.size, functools.partial(_opened, file, entry)))
        yield members


def _opened(file: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    opened = file.extractfile(entry)
    if opened is None:
        raise tarfile.TarError(f"the entry {entry.name!r} holds nothing")
    return opened
