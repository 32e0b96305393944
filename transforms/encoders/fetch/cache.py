"""Folders of encoders on this machine, and what is fetched into them once.

They lie under `~/.cache/layerbeam`, or `$XDG_CACHE_HOME/layerbeam`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from layerbeam.transforms.encoders.fetch import archives
from layerbeam.transforms.encoders.fetch.cache_file import CacheError
from layerbeam.transforms.encoders.source import EncoderError

# A line of help for handles that lead to none.
SUPPORTED = "an encoder is minilm, hf://org/name, an https:// address, or a folder or an archive (.zip, .tar.gz)"
# What says of which kind a folder is.
MARKS = ("saved_model.pb", "config.json", "bert_config.json")
# What belongs beside one of them: a folder with such a file lacks its mark, and is not the folder around an encoder.
_BESIDE = ("vocab.txt", "*.safetensors", "*.ckpt*", "pytorch_model*.bin")

# What is fetched of a folder elsewhere: nothing else is read, and the weights of other frameworks are as large again.
WANTED = (
    "saved_model.pb",
    "tfhub_module.pb",
    "variables/*",
    "assets/*",
    "bert_config.json",
    "*.ckpt*",
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer_config.json",
    "vocab.txt",
    "LICENSE*",
)


@dataclasses.dataclass(frozen=True)
class Located:
    """A folder on this machine. `names`: of folder, archive or address, the nearest first: they may tell the casing.

    `copy`: the folder in a cache that can be deleted to be made again, `folder` or around it; None where it is no copy.
    """

    folder: Path
    names: tuple[str, ...]
    copy: Path | None = None


def one_folder_deep(located: Located) -> Located:
    """The folder itself or, where it holds no encoder but one folder, that one: Google's archives are made so."""
    if any(path.is_file() for pattern in (*MARKS, *_BESIDE) for path in located.folder.glob(pattern)):
        return located
    inner = [path for path in located.folder.iterdir() if path.is_dir() and path.name[0] not in "._"]
    if len(inner) != 1:
        return located
    return dataclasses.replace(located, folder=inner[0], names=(inner[0].name, *located.names))


def is_wanted(name: str) -> bool:
    """Whether a file of a folder elsewhere is needed; the encoder may lie one folder deep."""
    path = PurePosixPath(name)
    parts = len(path.parts)
    if ".." in path.parts or parts > 3:  # an object's name may hold anything
        return False
    return any(path.match(wanted) and parts <= wanted.count("/") + 2 for wanted in WANTED)


def cache_folder() -> Path:
    """Where fetched encoders are kept. A relative XDG_CACHE_HOME does not count, as its specification has it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if os.path.isabs(given) else os.path.expanduser("~/.cache")) / "layerbeam"


def cached(handle: str, key: str, fill: Callable[[Path], Any]) -> Path:
    """The folder that `fill` made for this key, now or before; several processes may ask for it at once.

    Errors of `fill` are the caller's, but for CacheError. EncoderError where the cache cannot be written.
    """
    root = cache_folder() / "encoders"
    folder = root / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    if _has_files(folder):
        return folder
    unfinished = root / f"{folder.name}.tmp"
    try:
        with _cache_errors():
            root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{folder.name}.lock"):
            if not _has_files(folder):
                try:
                    with _cache_errors():
                        _delete(folder, *root.glob(f"{unfinished.name}*"))  # of a process that was killed
                        unfinished.mkdir()
                    fill(unfinished)
                    with _cache_errors():
                        unfinished.rename(folder)
                finally:
                    _delete(unfinished)
    except CacheError as error:
        raise EncoderError(
            f"{handle}: cannot be copied or unpacked into {root} ({error}); XDG_CACHE_HOME names another place for it"
        ) from error
    return folder


def _has_files(folder: Path) -> bool:
    """Whether there is more than what somebody left who deleted the encoder in it; `one_folder_deep` skips the same."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return any(path.parts[0][0] not in "._" for path in files)


def _delete(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextlib.contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(str(error)) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file, which is deleted at the end: whoever waited for it meanwhile finds it gone, and begins anew.

    A process that is killed leaves the file, and nothing is held by it.
    """
    while True:
        with _cache_errors():
            lock = path.open("w")
        with lock:
            with _cache_errors():
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_same(lock, path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_same(file: IO[str], path: Path) -> bool:
    """Whether the open file is still the one under this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def cached_archive(handle: str, key: str, ending: str, fetch: Callable[[Path], Any]) -> Path:
    """The folder of an archive that `fetch` writes to the path it is given, which has this ending."""

    def fill(folder: Path) -> None:
        archive = folder.with_name(folder.name + ending)
        try:
            fetch(archive)
            archives.extract(handle, archive, folder)
        finally:
            archive.unlink(missing_ok=True)

    return cached(handle, key, fill)
