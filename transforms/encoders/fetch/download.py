"""Fetch encoders: from TF Hub with tensorflow_hub, from Hugging Face with huggingface_hub, and plain .zip files."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import sys
import urllib.request
import warnings
from pathlib import Path

from layerbeam.transforms.encoders.fetch import archives
from layerbeam.transforms.encoders.fetch.cache import (
    SUPPORTED,
    WANTED,
    LocalFolder,
    cache_folder,
    create,
    one_folder_deep,
)
from layerbeam.transforms.encoders.source import EncoderError
from layerbeam.transforms.hardware import import_tensorflow

_HUGGINGFACE = re.compile(r"hf://(?P<repository>[^/@]+(/[^/@]+)?)(@(?P<revision>.+))?")
_TIMEOUT_SECONDS = 60


def from_tf_hub(handle: str, address: str) -> LocalFolder:
    """A compressed SavedModel from an address, with tensorflow_hub; its progress goes to standard error."""
    tf = import_tensorflow()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pkg_resources")
        import tensorflow_hub as hub
    cache = os.environ.setdefault("TFHUB_CACHE_DIR", str(cache_folder() / "tfhub"))
    os.environ.setdefault("TFHUB_DOWNLOAD_PROGRESS", "1")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            folder = Path(hub.resolve(address))
        # tensorflow_hub accepts and keeps a download that ended between two files.
        missing = _missing_file(one_folder_deep(LocalFolder(folder, ())).folder)
        if missing is not None:
            shutil.rmtree(folder, ignore_errors=True)
            raise OSError(f"the download has no {missing}")
    except (OSError, ValueError, EOFError, http.client.HTTPException, tf.errors.OpError) as error:
        raise EncoderError(
            f"{handle}: cannot be fetched ({error}); the address must answer with a SavedModel as .tar.gz: an "
            "incomplete download, or a page instead of a model, is not kept. Try the address in a browser; try again; "
            f"or download it by hand and give the folder ({cache} is where it would be kept)"
        ) from error
    return one_folder_deep(LocalFolder(folder, _names(handle), copy=folder))


def _missing_file(folder: Path) -> str | None:
    """A file that this SavedModel lacks; None if it is complete."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    expected = ["saved_model.pb", "variables/variables.index"]
    for shard in folder.glob("variables/variables.data-*-of-*"):
        count = int(shard.name.rsplit("-", 1)[-1])
        expected += [f"variables/variables.data-{number:05}-of-{count:05}" for number in range(count)]
    if len(expected) == 2:
        expected.append("variables/variables.data-00000-of-00001")
    if (folder / "saved_model.pb").is_file():
        saved = SavedModel()
        with contextlib.suppress(Exception):  # google.protobuf's DecodeError: opening the folder reports it
            saved.ParseFromString((folder / "saved_model.pb").read_bytes())
        expected += [f"assets/{file.filename}" for graph in saved.meta_graphs for file in graph.asset_file_def]
    return next((name for name in expected if not (folder / name).is_file()), None)


def from_zip(handle: str, address: str) -> LocalFolder:
    """A .zip from an address, such as Google's checkpoints; its progress goes to standard error.

    It is cached by its address: asking whether it has changed would need a connection each time that an encoder is
    opened. `layerbeam encoder` shows the folder; delete it to fetch the file again.
    """

    def fetch(archive: Path) -> None:
        from rich.console import Console
        from rich.progress import wrap_file

        answer = urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS)  # noqa: S310 - https or http: see `locate`
        with answer as response, create(archive) as file:
            total = int(response.headers.get("Content-Length") or 0)
            console = Console(stderr=True)
            with wrap_file(response, total=total, description=handle, console=console, transient=True) as reader:
                shutil.copyfileobj(reader, file)
            if total and file.tell() != total:
                raise http.client.IncompleteRead(b"", total - file.tell())

    try:
        folder = archives.cached_archive(handle, address, ".zip", fetch)
    except (OSError, http.client.HTTPException) as error:
        raise EncoderError(
            f"{handle}: cannot be fetched ({error}); try the address in a browser; try again; or download it by hand "
            "and give the file"
        ) from error
    return one_folder_deep(LocalFolder(folder, _names(handle), copy=folder))


def _names(address: str) -> tuple[str, ...]:
    """The parts of an address's path, the last first: tfhub.dev/tensorflow/bert_en_uncased_L-12_H-768_A-12/4."""
    return tuple(reversed([archives.stem(part) for part in address.split("?")[0].split("/")[3:] if part]))


def from_huggingface(handle: str) -> LocalFolder:
    """A repository of Hugging Face's hub, with huggingface_hub, which has its own cache and shows its progress."""
    match = _HUGGINGFACE.fullmatch(handle)
    if match is None:
        raise EncoderError(f"{handle}: is not of the form hf://org/name or hf://org/name@revision")
    try:
        import huggingface_hub
    except ImportError:
        raise EncoderError(f"{handle}: needs the extra hf: pip install 'layerbeam[hf]'") from None
    repository = match["repository"]
    try:
        folder = huggingface_hub.snapshot_download(repository, revision=match["revision"], allow_patterns=list(WANTED))
    except Exception as error:  # also those of its HTTP client, which differs between versions
        reason = " ".join(str(error).split())
        raise EncoderError(
            f"{handle}: cannot be fetched ({type(error).__name__}: {reason}); check the name at "
            f"https://huggingface.co/{repository}; a private one needs `hf auth login`"
        ) from error
    if not os.path.isdir(folder):  # huggingface_hub makes no folder if no file is wanted
        raise EncoderError(f"{handle}: there is no file of an encoder; {SUPPORTED}")
    return LocalFolder(Path(folder), tuple(reversed(repository.split("/"))), copy=Path(folder))
