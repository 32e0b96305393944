"""Where the files of an encoder lie: a handle becomes a folder on this machine, fetched and unpacked once.

What is fetched lies under `~/.cache/layerbeam` (or `$XDG_CACHE_HOME/layerbeam`), in Hugging Face's own cache for `hf://`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from transforms.encoders import archives, minilm
from transforms.encoders.source import EncoderError

SUPPORTED = (
    "an encoder is minilm, hf://org/name, an https:// address of TF Hub, or a folder or archive (.zip, .tar.gz), local "
    "or on any Beam file system, with saved_model.pb (TF Hub), bert_config.json and bert_model.ckpt (Google) or "
    "config.json and model.safetensors (Hugging Face)"
)
# What says of which kind a folder is.
MARKS = ("saved_model.pb", "config.json", "bert_config.json")

# What is fetched of a folder elsewhere: nothing else is read, and the weights of other frameworks are as large again.
_WANTED = (
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
_HUGGINGFACE = re.compile(r"hf://(?P<repository>[^/@]+(/[^/@]+)?)(@(?P<revision>.+))?")


@dataclasses.dataclass(frozen=True)
class Located:
    """A folder on this machine. `names`: of folder, archive or address, the nearest first: they may tell the casing.

    `fetched`: whether it is a copy made here, which can be deleted to be made again.
    """

    folder: Path
    names: tuple[str, ...]
    fetched: bool = False


def locate(handle: str) -> Located:
    """The folder behind a handle; what lies elsewhere is fetched first. EncoderError where there is none."""
    if handle == "minilm":
        located = _minilm()
        minilm.check_weights(located.folder)
        return located
    if handle.startswith("hf://"):
        return _from_huggingface(handle)
    if handle.startswith(("https://", "http://")):
        return _from_tf_hub(handle)
    if "://" in handle:
        return _one_folder_deep(_from_file_system(handle))
    path = os.path.expanduser(handle)
    if os.path.isdir(path):
        return _one_folder_deep(Located(Path(path), (os.path.basename(os.path.abspath(path)),)))
    if os.path.isfile(path) and archives.is_archive(path):
        return _one_folder_deep(_unpacked(handle, Path(path)))
    found = "is a file" if os.path.exists(path) else "there is no such folder"
    raise EncoderError(f"{handle}: {found} (absolute: {os.path.abspath(path)}); {SUPPORTED}")


def _minilm() -> Located:
    folder = minilm.packaged_folder()
    if folder is not None:
        return Located(folder, ("minilm",))
    try:
        return _from_huggingface(minilm.HUGGINGFACE)
    except EncoderError as error:
        raise EncoderError(f"{minilm.NOT_INSTALLED}; or, the same file: {error}") from None


def _one_folder_deep(located: Located) -> Located:
    """The folder itself or, where it holds no encoder but one folder, that one: Google's archives are made so."""
    if any((located.folder / mark).is_file() for mark in MARKS):
        return located
    inner = [path for path in located.folder.iterdir() if path.is_dir() and path.name[0] not in "._"]
    if len(inner) != 1:
        return located
    return dataclasses.replace(located, folder=inner[0], names=(inner[0].name, *located.names))


def _unpacked(handle: str, archive: Path) -> Located:
    status = archive.stat()
    key = f"{os.path.realpath(archive)} {status.st_size} {status.st_mtime_ns}"
    folder = _cached(handle, key, lambda folder: archives.extract(handle, archive, folder))
    return Located(folder, (archives.stem(archive.name),), fetched=True)


def _from_file_system(handle: str) -> Located:
    """A folder or an archive on one of Beam's file systems, copied."""
    from apache_beam.io.filesystem import BeamIOError

    from transforms import filesystem
    from transforms.records import InputFile

    names = (archives.stem(handle.rstrip("/").rsplit("/", 1)[-1]),)
    try:
        if archives.is_archive(handle):
            file = filesystem.stat_file(handle)
            if not isinstance(file, InputFile):
                raise EncoderError(f"{handle}: {file.reason}; {SUPPORTED}")

            def copy_archive(folder: Path) -> None:
                with _named_temporary(folder, handle) as archive:
                    filesystem.copy_to_local(handle, archive)
                    archives.extract(handle, archive, folder)

            return Located(_cached(handle, f"{file}", copy_archive), names, fetched=True)
        files = {name: file for name, file in filesystem.list_tree(handle).items() if _is_wanted(name)}
        if not files:
            raise EncoderError(f"{handle}: no file of an encoder lies there; {SUPPORTED}")

        def copy_folder(folder: Path) -> None:
            for name, file in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                filesystem.copy_to_local(file.path, folder / name)

        return Located(_cached(handle, f"{sorted(files.items())}", copy_folder), names, fetched=True)
    except (BeamIOError, OSError) as error:
        raise EncoderError(f"{handle}: cannot be read: {error}") from error
    except ValueError as error:
        if isinstance(error, EncoderError):
            raise
        raise EncoderError(
            f"{handle}: Beam has no file system for it here ({error}); gs:// needs the extra gcp: pip install "
            "'layerbeam[gcp]'"
        ) from error


def _is_wanted(name: str) -> bool:
    """Whether a file of a folder elsewhere is needed; the encoder may lie one folder deep."""
    path = PurePosixPath(name)
    parts = len(path.parts)
    return parts <= 3 and any(path.match(wanted) and parts <= wanted.count("/") + 2 for wanted in _WANTED)


@contextlib.contextmanager
def _named_temporary(folder: Path, handle: str) -> Iterator[Path]:
    """A path beside the folder, with the handle's ending; what was written there is deleted at the end."""
    path = folder.with_name(f"{folder.name}{handle[len(archives.stem(handle)) :]}")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _from_tf_hub(handle: str) -> Located:
    """A compressed SavedModel behind an address, by tensorflow_hub; its progress goes to standard error."""
    import warnings

    from transforms.threads import import_tensorflow

    tf = import_tensorflow()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pkg_resources")
        import tensorflow_hub as hub
    cache = os.environ.setdefault("TFHUB_CACHE_DIR", str(cache_folder() / "tfhub"))
    os.environ.setdefault("TFHUB_DOWNLOAD_PROGRESS", "1")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            folder = Path(hub.resolve(handle))
        # tensorflow_hub takes a download that broke off between two files for a whole one, and keeps it.
        missing = _missing_file(_one_folder_deep(Located(folder, ())).folder)
        if missing is not None:
            shutil.rmtree(folder, ignore_errors=True)
            raise OSError(f"what came has no {missing}")
    except (OSError, ValueError, EOFError, tarfile.TarError, http.client.HTTPException, tf.errors.OpError) as error:
        raise EncoderError(
            f"{handle}: cannot be fetched ({error}); the address must answer with a SavedModel as .tar.gz: one that "
            "broke off, or a page in place of a model, is not kept. Try the address in a browser; try again; or "
            f"download it by hand and give the folder ({cache} is where it would be kept)"
        ) from error
    # tfhub.dev/tensorflow/bert_en_uncased_L-12_H-768_A-12/4: the last part is a version.
    names = tuple(reversed([archives.stem(part) for part in handle.split("?")[0].split("/")[3:] if part]))
    return _one_folder_deep(Located(folder, names, fetched=True))


def _missing_file(folder: Path) -> str | None:
    """A file that this SavedModel should have and has not; None where all are there."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    expected = ["saved_model.pb", "variables/variables.index"]
    for shard in folder.glob("variables/variables.data-*-of-*"):
        count = int(shard.name.rsplit("-", 1)[-1])
        expected += [f"variables/variables.data-{number:05}-of-{count:05}" for number in range(count)]
    if len(expected) == 2:
        expected.append("variables/variables.data-00000-of-00001")
    if (folder / "saved_model.pb").is_file():
        saved = SavedModel()
        with contextlib.suppress(Exception):  # google.protobuf's DecodeError: whoever opens the folder will say so
            saved.ParseFromString((folder / "saved_model.pb").read_bytes())
        expected += [f"assets/{file.filename}" for graph in saved.meta_graphs for file in graph.asset_file_def]
    return next((name for name in expected if not (folder / name).is_file()), None)


def _from_huggingface(handle: str) -> Located:
    """A repository of Hugging Face's hub, by huggingface_hub, which keeps its own cache and shows its progress."""
    match = _HUGGINGFACE.fullmatch(handle)
    if match is None:
        raise EncoderError(f"{handle}: is not of the form hf://org/name or hf://org/name@revision")
    try:
        import huggingface_hub
    except ImportError:
        raise EncoderError(f"{handle}: needs the extra hf: pip install 'layerbeam[hf]'") from None
    from huggingface_hub.errors import HfHubHTTPError

    repository = match["repository"]
    try:
        folder = huggingface_hub.snapshot_download(repository, revision=match["revision"], allow_patterns=list(_WANTED))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise EncoderError(
            f"{handle}: cannot be fetched ({type(error).__name__}: {reason}); check the name at "
            f"https://huggingface.co/{repository}; a private one needs `hf auth login`"
        ) from error
    return Located(Path(folder), tuple(reversed(repository.split("/"))), fetched=True)


def cache_folder() -> Path:
    """Where fetched encoders are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "layerbeam"


def _cached(handle: str, key: str, fill: Callable[[Path], Any]) -> Path:
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
            if not folder.is_dir():
                unfinished.mkdir()
                fill(unfinished)
                (unfinished / ".handle").write_text(json.dumps(handle))
                unfinished.rename(folder)
    except OSError as error:
        raise EncoderError(
            f"{handle}: cannot be copied or unpacked into {root} ({error}); XDG_CACHE_HOME names another place for it"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder
