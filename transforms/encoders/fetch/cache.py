"""The cache of fetched encoders, `~/.cache/layerbeam` or `$XDG_CACHE_HOME/layerbeam`, and what a local folder holds."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from layerbeam.transforms.encoders.config_file import EncoderError
from layerbeam.transforms.encoders.source import LocalFolder

# The last part of errors about a handle that leads to no encoder.
SUPPORTED = "an encoder is minilm, hf://org/name, an https:// address, or a folder or an archive (.zip, .tar.gz)"
# The files that show a folder's format.
MARKS = ("saved_model.pb", "config.json", "bert_config.json")
# Files that lie next to one of them: a folder with such a file is an incomplete encoder, not a folder around one.
_COMPANIONS = ("vocab.txt", "tokenizer.json", "*.safetensors", "*.ckpt*", "pytorch_model*.bin")

_UNFINISHED = ".tmp"
SAFETENSORS = "model*.safetensors"
# What is fetched from a remote folder. Nothing else is read, and weights for other frameworks are as large again.
WANTED = (
    "saved_model.pb",
    "tfhub_module.pb",
    "variables/*",
    "assets/*",
    "bert_config.json",
    "*.ckpt*",
    "config.json",
    SAFETENSORS,
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "sentence_*_config.json",
    "vocab.txt",
    "LICENSE*",
    "adapter_config.json",
    "adapter_model.safetensors",
)
# Fetched, too, if there are none.
WANTED_PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
# Dense modules, in folders that sentence-transformers names so: a few megabytes.
DENSE_FOLDER, DENSE_FILES = "[0-9]*_Dense", ("config.json", "model.safetensors", "pytorch_model.bin")
WANTED_DENSE = tuple(f"{DENSE_FOLDER}/{name}" for name in DENSE_FILES)


def one_folder_deep(located: LocalFolder) -> LocalFolder:
    """The folder itself or, if it holds no encoder but a single folder, that one, as in Google's archives."""
    if any(path.is_file() for pattern in (*MARKS, *_COMPANIONS) for path in located.folder.glob(pattern)):
        return located
    inner = [path for path in located.folder.iterdir() if path.is_dir() and path.name[0] not in "._"]
    if len(inner) != 1:
        return located
    return dataclasses.replace(located, folder=inner[0], names=(inner[0].name, *located.names))


def wanted_of(names: Iterable[str]) -> list[str]:
    """Those of a remote folder's files that are needed; the encoder may be one folder deep."""
    names = list(names)
    dense = [name for name in names if _matches(name, WANTED_DENSE)]
    others = [name for name in names if not _matches(name, WANTED_DENSE)]
    found = [name for name in others if _matches(name, WANTED)]
    if not any(PurePosixPath(name).match(SAFETENSORS) for name in found):
        found += [name for name in others if _matches(name, WANTED_PICKLES)]
    return found + dense


def _matches(name: str, patterns: Sequence[str]) -> bool:
    path = PurePosixPath(name)
    parts = len(path.parts)
    if ".." in path.parts or parts > 3:  # an object's name may contain anything
        return False
    return any(path.match(wanted) and parts <= wanted.count("/") + 2 for wanted in patterns)


def cache_folder() -> Path:
    """Where fetched encoders are kept. A relative XDG_CACHE_HOME is ignored, as its specification demands."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if os.path.isabs(given) else os.path.expanduser("~/.cache")) / "layerbeam"


def cached(handle: str, key: str, fill: Callable[[Path], Any], advice: str = "") -> Path:
    """The folder that `fill` has written for this key, now or earlier. Processes that fill it at once take the first.

    EncoderError if it cannot be filled, with the advice.
    """
    root = cache_folder() / "encoders"
    folder = root / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    if _has_files(folder):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        _delete_abandoned(root)
        with tempfile.TemporaryDirectory(suffix=_UNFINISHED, dir=root, ignore_cleanup_errors=True) as unfinished:
            filled = Path(unfinished) / "encoder"
            filled.mkdir()
            fill(filled)
            try:
                filled.rename(folder)
            except OSError:
                if not _has_files(folder):
                    raise
    except EncoderError:
        raise
    except Exception as error:  # each store's client has its own exceptions
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        place = f"; XDG_CACHE_HOME names another place than {root}" if is_full or str(root) in str(error) else ""
        raise EncoderError(f"{handle}: cannot be fetched ({error}){advice}{place}") from error
    return folder


def _has_files(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("*"))


def _delete_abandoned(root: Path) -> None:
    """Delete what processes that were killed have left: nobody fetches an encoder for a day."""
    for path in root.glob(f"*{_UNFINISHED}"):
        with contextlib.suppress(FileNotFoundError):  # another process has just finished
            if path.stat().st_mtime < time.time() - 86_400:
                shutil.rmtree(path, ignore_errors=True)
