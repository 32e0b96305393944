"""The cache of fetched encoders, `~/.cache/layerbeam` or `$XDG_CACHE_HOME/layerbeam`, and what a local folder holds."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from layerbeam.transforms import storage
from layerbeam.transforms.encoders.config_file import EncoderError
from layerbeam.transforms.encoders.source import LocalFolder

# The last part of errors about a handle that leads to no encoder.
SUPPORTED = "an encoder is minilm, hf://org/name, an https:// address, or a folder or an archive (.zip, .tar.gz)"
# The files that show a folder's format.
MARKS = ("saved_model.pb", "config.json", "bert_config.json")
# Files that lie next to one of them: a folder with such a file is an incomplete encoder, not a folder around one.
_COMPANIONS = ("vocab.txt", "tokenizer.json", "*.safetensors", "*.ckpt*", "pytorch_model*.bin")

# What is fetched from a remote folder. Nothing else is read, and weights for other frameworks are as large again.
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
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "LICENSE*",
)


def one_folder_deep(located: LocalFolder) -> LocalFolder:
    """The folder itself or, if it holds no encoder but a single folder, that one, as in Google's archives."""
    if any(path.is_file() for pattern in (*MARKS, *_COMPANIONS) for path in located.folder.glob(pattern)):
        return located
    inner = [path for path in located.folder.iterdir() if path.is_dir() and path.name[0] not in "._"]
    if len(inner) != 1:
        return located
    return dataclasses.replace(located, folder=inner[0], names=(inner[0].name, *located.names))


def is_wanted(name: str) -> bool:
    """Whether a file of a remote folder is needed; the encoder may be one folder deep."""
    path = PurePosixPath(name)
    parts = len(path.parts)
    if ".." in path.parts or parts > 3:  # an object's name may contain anything
        return False
    return any(path.match(wanted) and parts <= wanted.count("/") + 2 for wanted in WANTED)


def cache_folder() -> Path:
    """Where fetched encoders are kept. A relative XDG_CACHE_HOME is ignored, as its specification demands."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if os.path.isabs(given) else os.path.expanduser("~/.cache")) / "layerbeam"


class CacheError(Exception):
    """An error of the disk that is written to, not of the source that is read; its cause is the OSError."""


@contextlib.contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(str(error)) from error


class _CacheFile(io.FileIO):
    @_cache_errors()
    def write(self, data: Any) -> int:
        rest = memoryview(data)
        size = rest.nbytes
        while rest:
            rest = rest[super().write(rest) :]
        return size


@_cache_errors()
def create(path: Path) -> io.FileIO:
    """A new file and its folders. Raises CacheError if it cannot be created or, later, written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _CacheFile(str(path), "wb")


def cached(handle: str, key: str, fill: Callable[[Path], Any]) -> Path:
    """The folder that `fill` has written for this key, now or earlier. Safe with several processes at once.

    Errors of `fill` pass through, except CacheError. Raises EncoderError if the cache cannot be written.
    """
    root = cache_folder() / "encoders"
    folder = root / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    if _has_files(folder):
        return folder
    unfinished = root / f"{folder.name}.tmp"
    try:
        with contextlib.ExitStack() as lock:
            with _cache_errors():
                lock.enter_context(storage.locked_file(f"{folder}.lock", wait=True))
            if not _has_files(folder):
                lock.callback(_delete, unfinished)
                with _cache_errors():
                    _delete(folder, *root.glob(f"{unfinished.name}*"))  # left by a process that was killed
                    unfinished.mkdir()
                fill(unfinished)
                with _cache_errors():
                    unfinished.rename(folder)
    except CacheError as error:
        raise EncoderError(
            f"{handle}: cannot be copied or unpacked into {root} ({error}); XDG_CACHE_HOME names another place for it"
        ) from error
    return folder


def _has_files(folder: Path) -> bool:
    """Whether the folder holds files, other than hidden ones of a deleted encoder, as `one_folder_deep` skips them."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return any(path.parts[0][0] not in "._" for path in files)


def _delete(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
