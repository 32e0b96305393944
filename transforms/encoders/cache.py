"""Folders of encoders on this machine, and what is fetched into them once.

They lie under `~/.cache/layerbeam`, or `$XDG_CACHE_HOME/layerbeam`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from transforms.encoders import archives
from transforms.encoders.source import EncoderError

SUPPORTED = (
    "an encoder is minilm, hf://org/name, an https:// address of TF Hub, or a folder or archive (.zip, .tar.gz), local "
    "or on any Beam file system, with saved_model.pb (TF Hub), bert_config.json and bert_model.ckpt (Google) or "
    "config.json and model.safetensors (Hugging Face)"
)
# What says of which kind a folder is.
MARKS = ("saved_model.pb", "config.json", "bert_config.json")


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

    `fetched`: whether it is a copy made here, which can be deleted to be made again.
    """

    folder: Path
    names: tuple[str, ...]
    fetched: bool = False


def one_folder_deep(located: Located) -> Located:
    """The folder itself or, where it holds no encoder but one folder, that one: Google's archives are made so."""
    if any((located.folder / mark).is_file() for mark in MARKS):
        return located
    inner = [path for path in located.folder.iterdir() if path.is_dir() and path.name[0] not in "._"]
    if len(inner) != 1:
        return located
    return dataclasses.replace(located, folder=inner[0], names=(inner[0].name, *located.names))


def is_wanted(name: str) -> bool:
    """Whether a file of a folder elsewhere is needed; the encoder may lie one folder deep."""
    path = PurePosixPath(name)
    parts = len(path.parts)
    return parts <= 3 and any(path.match(wanted) and parts <= wanted.count("/") + 2 for wanted in WANTED)


def cache_folder() -> Path:
    """Where fetched encoders are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "layerbeam"


def cached(handle: str, key: str, fill: Callable[[Path], Any]) -> Path:
    """The folder that `fill` made for this key, now or before; several processes may ask for it at once."""
    root = cache_folder() / "encoders"
    folder = root / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    if folder.is_dir():
        return folder
    unfinished = root / f"{uuid.uuid4().hex}.tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump(handle, lock)  # for whoever tidies up: the folder's name does not say what it holds
            if not folder.is_dir():
                unfinished.mkdir()
                fill(unfinished)
                unfinished.rename(folder)
    except OSError as error:
        if error.errno is None:  # of the store that is read, not of this disk
            raise
        raise EncoderError(
            f"{handle}: cannot be copied or unpacked into {root} ({error}); XDG_CACHE_HOME names another place for it"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def cached_archive(handle: str, key: str, fetch: Callable[[Path], Any]) -> Path:
    """The folder of an archive that `fetch` writes to the path it is given, which ends as the handle does."""

    def fill(folder: Path) -> None:
        with _named_temporary(folder, handle) as archive:
            fetch(archive)
            archives.extract(handle, archive, folder)

    return cached(handle, key, fill)


@contextlib.contextmanager
def _named_temporary(folder: Path, handle: str) -> Iterator[Path]:
    """A path beside the folder, with the handle's ending; what was written there is deleted at the end."""
    path = folder.with_name(f"{folder.name}{handle[len(archives.stem(handle)) :]}")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
