"""Turn an encoder's handle into a folder on this machine; fetch and unpack it once.

TF Hub is read with tensorflow_hub, Hugging Face with huggingface_hub, stores with Beam.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import glob
import http.client
import itertools
import json
import os
import re
import shutil
import sys
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layerbeam.transforms import storage
from layerbeam.transforms.encoders.config_file import EncoderError
from layerbeam.transforms.encoders.fetch import archives
from layerbeam.transforms.encoders.fetch.cache import (
    DENSE_FILES,
    DENSE_FOLDER,
    SAFETENSORS,
    SUPPORTED,
    WANTED,
    WANTED_DENSE,
    WANTED_PICKLES,
    cache_folder,
    cached,
    one_folder_deep,
    wanted_of,
)
from layerbeam.transforms.encoders.formats import minilm
from layerbeam.transforms.encoders.source import LocalFolder
from layerbeam.transforms.hardware import import_tensorflow
from layerbeam.transforms.settings import find_secret
from layerbeam.transforms.storage import hf_store

_HUGGINGFACE = re.compile(r"hf://(?P<repository>[^/@]+(/[^/@]+)?)(@(?P<revision>.+))?")
# What people write before the name, and the name: org/name, at a revision as in a handle or as in an address.
_HUB = re.compile(r"(((https?://)?(www\.)?(huggingface|hf)\.co|hf:|huggingface:)/*)+", re.IGNORECASE)
_REPOSITORY = re.compile(
    r"(?!datasets/|spaces/)(\w[\w.-]*/\w[\w.-]*)(?:/|[@](?P<at>[^/]+)|/(?:tree|blob)/(?P<revision>[^/]+)(?:/.*)?)?"
)
# The owners of encoders that were once named without one, and of those of sentence-transformers.
_OWNERS = {
    "google-bert": r"bert-(base|large)-.+",
    "FacebookAI": r"(xlm-)?roberta-(base|large).*",
    "distilbert": r"distilbert-base-.+",
    "albert": r"albert-\w+-v[12]",
    "almanach": r"camembert-base",
    "sentence-transformers": r"(all|paraphrase|multi-qa|msmarco|distiluse|stsb|nli)-.+|LaBSE",
}
# Files of sentence-transformers, for `layerbeam init --from`: a few kilobytes.
_SETTINGS = (
    "modules.json",
    "artifact.metadata",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "[0-9]*_*/config.json",
)
_TIMEOUT_SECONDS = 60
_LONGEST_WAIT_SECONDS = 300


def locate(handle: str) -> LocalFolder:
    """The folder behind a handle, fetched if it is not local. EncoderError if there is none."""
    if not handle.strip():
        raise EncoderError(f"{handle}: the handle is empty; {SUPPORTED}")
    if secret := find_secret(handle):
        raise EncoderError(secret)
    if handle == "minilm":
        return _minilm()
    if handle.startswith("hf://"):
        return _from_huggingface(handle)
    meant = _meant(handle)
    if meant is not None and _HUB.match(handle) and not os.path.exists(handle):
        raise EncoderError(f"{handle}: an encoder on Hugging Face is hf://org/name; did you mean `{meant}`?")
    if handle.lower().startswith(("https://", "http://")):
        return one_folder_deep(_from_address(handle))
    if "://" in handle:
        return one_folder_deep(_from_file_system(handle))
    path = os.path.expanduser(handle)
    # The name in the handle and, if it is a link, the name of its target.
    both = (os.path.basename(os.path.abspath(path)), os.path.basename(os.path.realpath(path)))
    names = tuple(dict.fromkeys(map(archives.stem, both)))
    if os.path.isdir(path):
        return one_folder_deep(LocalFolder(Path(path), names))
    if os.path.isfile(path) and archives.ending_of(path):
        status = os.stat(path)
        key = f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}"
        folder = cached(handle, key, lambda folder: archives.extract(handle, Path(path), folder))
        return one_folder_deep(LocalFolder(folder, names, copy=folder))
    found = "is a file" if os.path.exists(path) else "there is no such folder"
    hint = "" if meant is None or os.path.exists(path) else f"; did you mean `{meant}`?"
    raise EncoderError(f"{handle}: {found} (absolute: {os.path.abspath(path)}); {SUPPORTED}{hint}")


def _meant(handle: str) -> str | None:
    """The handle that was probably meant, if it is minilm or an encoder on Hugging Face.

    >>> _meant("https://huggingface.co/org/name/tree/v1"), _meant("hf:org/name"), _meant("bert-base-uncased")
    ('hf://org/name@v1', 'hf://org/name', 'hf://google-bert/bert-base-uncased')
    """
    if handle.lower() in ("minilm", "all-minilm-l6-v2"):
        return "minilm"
    before = _HUB.match(handle)
    name = handle[before.end() :] if before else handle
    if found := _REPOSITORY.fullmatch(name):
        revision = found["at"] or found["revision"] or "main"
        return f"hf://{found[1]}{'' if revision == 'main' else f'@{revision}'}"
    owner = next((owner for owner, names in _OWNERS.items() if re.fullmatch(names, name.rstrip("/"))), None)
    return f"hf://{owner}/{name.rstrip('/')}" if owner and "/" not in name.rstrip("/") else None


def _minilm() -> LocalFolder:
    folder = minilm.packaged_folder()
    if folder is not None:
        return LocalFolder(folder, ("minilm",))
    try:
        return _from_huggingface(minilm.HUGGINGFACE)
    except EncoderError as error:
        raise EncoderError(f"{minilm.NOT_INSTALLED}; or, the same file: {error}") from None


def _from_address(handle: str) -> LocalFolder:
    """A .zip or a compressed SavedModel from an address."""
    try:
        address = urllib.parse.urlsplit(handle)
    except ValueError as error:
        raise EncoderError(f"{handle}: is not an address ({error})") from error
    fetch = _from_zip if address.path.lower().endswith(".zip") else _from_tf_hub
    folder = fetch(handle, address.geturl())
    # The parts of its path, the last first: tfhub.dev/tensorflow/bert_en_uncased_L-12_H-768_A-12/4.
    names = [archives.stem(part) for part in handle.split("?")[0].split("/")[3:] if part]
    return LocalFolder(folder, tuple(reversed(names)), copy=folder)


def _from_tf_hub(handle: str, address: str) -> Path:
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
    return folder


def _missing_file(folder: Path) -> str | None:
    """A file that this SavedModel lacks; None if it is complete."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    counts = {path.name.rsplit("-", 1)[-1] for path in folder.glob("variables/variables.data-*-of-*")} or {"00001"}
    # One by one: the name of a file may speak of billions.
    shards = (f"variables/variables.data-{number:05}-of-{count}" for count in counts for number in range(int(count)))
    expected = ["saved_model.pb", "variables/variables.index"]
    # A damaged graph names no assets: opening the folder reports it.
    with contextlib.suppress(Exception):  # google.protobuf's DecodeError
        saved = SavedModel.FromString((folder / "saved_model.pb").read_bytes())
        expected += [f"assets/{file.filename}" for graph in saved.meta_graphs for file in graph.asset_file_def]
    return next((name for name in itertools.chain(expected, shards) if not (folder / name).is_file()), None)


def _from_zip(handle: str, address: str) -> Path:
    """A .zip from an address, such as Google's checkpoints; its progress goes to standard error.

    It is cached by its address: asking whether it has changed would need a connection each time that an encoder is
    opened. `layerbeam encoder` shows the folder; delete it to fetch the file again.
    """

    def fetch(archive: Path) -> None:
        from rich.console import Console
        from rich.progress import wrap_file

        answer = urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS)  # noqa: S310 - https or http: see `locate`
        with answer as response, archive.open("wb") as file:
            total = int(response.headers.get("Content-Length") or 0)
            console = Console(stderr=True)
            with wrap_file(response, total=total, description=handle, console=console, transient=True) as reader:
                shutil.copyfileobj(reader, file)
            if total and file.tell() != total:
                raise http.client.IncompleteRead(b"", total - file.tell())

    advice = "; try the address in a browser; try again; or download it by hand and give the file"
    return archives.cached_archive(handle, address, ".zip", fetch, advice)


def _other_dense(modules: Path) -> list[str]:
    """The files of Dense modules that a modules.json lists and WANTED_DENSE does not find; none if it is damaged."""
    try:
        paths = [module["path"] for module in json.loads(modules.read_bytes()) if module["type"].endswith("Dense")]
        others = [glob.escape(path) for path in paths if not fnmatch.fnmatchcase(path, DENSE_FOLDER)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    return [f"{path}/{name}" for path in others for name in DENSE_FILES]


def _from_huggingface(handle: str) -> LocalFolder:
    """A repository of Hugging Face's hub, with huggingface_hub, which has its own cache and shows its progress."""
    match = _HUGGINGFACE.fullmatch(handle)
    if match is None:
        meant = _meant(handle)
        hint = "" if meant is None else f"; did you mean `{meant}`?"
        raise EncoderError(f"{handle}: is not of the form hf://org/name or hf://org/name@revision{hint}")
    try:
        import huggingface_hub
    except ImportError:
        raise EncoderError(f"{handle}: needs the extra hf: {storage.install_command('hf')}") from None
    repository = match["repository"]
    try:
        fetch = functools.partial(_fetch_patiently, huggingface_hub.snapshot_download, repository)
        folder = fetch(revision=match["revision"], allow_patterns=[*WANTED, *WANTED_DENSE, *_SETTINGS])
        if os.path.isfile(os.path.join(folder, "config.json")) and not glob.glob(
            f"{glob.escape(folder)}/{SAFETENSORS}"
        ):
            fetch(revision=os.path.basename(folder), allow_patterns=list(WANTED_PICKLES))
        if others := _other_dense(Path(folder, "modules.json")):
            fetch(revision=os.path.basename(folder), allow_patterns=others)
    except Exception as error:  # also those of its HTTP client, which differs between versions
        reason = " ".join(str(error).split())
        raise EncoderError(
            f"{handle}: cannot be fetched ({type(error).__name__}: {reason}); {_advice(error, repository)}"
        ) from error
    if not os.path.isdir(folder):  # huggingface_hub makes no folder if no file is wanted
        raise EncoderError(f"{handle}: there is no file of an encoder; {SUPPORTED}")
    return LocalFolder(Path(folder), tuple(reversed(repository.split("/"))), copy=Path(folder))


def _fetch_patiently(fetch: Callable[..., str], *arguments: Any, **settings: Any) -> str:
    """What `fetch` gives, asked again for a minute or two while the Hub is busy.

    Its client repeats all requests but the first, which asks for the commit.
    """
    for tried in range(hf_store.RETRIES):
        try:
            return fetch(*arguments, **settings)
        except Exception as error:
            answer = _answer(error)
            if answer is None or answer.status_code not in hf_store.PASSING:
                raise
            # Seconds: of Retry-After, else those that the Hub's own header says, else ever more.
            said = re.search(r"^\d+", answer.headers.get("Retry-After", ""))
            said = said or re.search(r"(?<=\bt=)\d+", answer.headers.get("RateLimit", ""))
            time.sleep(min(int(said[0]) if said else 2**tried, _LONGEST_WAIT_SECONDS))
    return fetch(*arguments, **settings)


def _answer(error: BaseException) -> Any:
    """The Hub's answer that an error is about; None if there was none."""
    return getattr(error, "response", None) or getattr(error.__cause__, "response", None)


def _advice(error: Exception, repository: str) -> str:
    """What to do about an error of huggingface_hub."""
    page = f"https://huggingface.co/{repository}"
    kinds = {kind.__name__ for one in (error, error.__cause__) for kind in type(one).__mro__}
    status = getattr(_answer(error), "status_code", None)
    if "GatedRepoError" in kinds:
        return f"ask for access at {page}, then run `hf auth login`"
    if "RevisionNotFoundError" in kinds:
        return f"{page}/tree/main lists its branches and tags; a commit is given with all 40 digits"
    if kinds & {"RepositoryNotFoundError", "HFValidationError"} or status in (401, 403, 404):
        return f"check the name at {page}; a private one needs `hf auth login`"
    if status == 429:
        return "wait some minutes; after `hf auth login` the Hub allows more requests"
    if status is not None:
        return "the Hub has a problem: try again later"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return "the variable HF_HOME names another place for what is fetched"
    return "check the connection and try again; or fetch it where there is one, and give the folder"


def _from_file_system(handle: str) -> LocalFolder:
    """A copy of a folder or an archive on one of Beam's file systems."""
    reason = storage.unsupported_reason(handle)
    if reason is not None:
        raise EncoderError(f"{handle}: {reason}")

    def copy(path: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            storage.copy_into(path, file)

    def copy_folder(folder: Path) -> None:
        for name, file in files.items():
            copy(file.path, folder / name)

    ending = archives.ending_of(handle)
    try:
        stored = storage.stat_file(handle) if ending else None
        tree = {} if ending else storage.list_tree(handle)
        files = {name: tree[name] for name in wanted_of(tree)}
    except Exception as error:  # each store's client has its own exceptions
        raise EncoderError(f"{handle}: cannot be read ({error})") from error
    if stored and not stored.problem:
        folder = archives.cached_archive(handle, f"{stored}", ending, lambda path: copy(handle, path))
    elif files:
        folder = cached(handle, f"{sorted(files.items())}", copy_folder)
    else:
        raise EncoderError(f"{handle}: {stored.problem if stored else 'there is no file of an encoder'}; {SUPPORTED}")
    return LocalFolder(folder, (archives.stem(handle.rstrip("/").rsplit("/", 1)[-1]),), copy=folder)
