"""Turn an encoder's handle into a folder on this machine; fetch and unpack it once."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path

from layerbeam.transforms import storage
from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.encoders.fetch import archives
from layerbeam.transforms.encoders.fetch.cache import SUPPORTED, LocalFolder, cached, create, is_wanted, one_folder_deep
from layerbeam.transforms.encoders.fetch.download import from_huggingface, from_tf_hub, from_zip
from layerbeam.transforms.encoders.formats import minilm
from layerbeam.transforms.encoders.source import EncoderError


def locate(handle: str) -> LocalFolder:
    """The folder behind a handle, fetched if it is not local. EncoderError if there is none."""
    if not handle.strip():
        raise EncoderError(f"{handle}: the handle is empty; {SUPPORTED}")
    if handle == "minilm":
        located = _minilm()
        minilm.check_weights(located.folder)
        return located
    if handle.startswith("hf://"):
        return from_huggingface(handle)
    if handle.lower().startswith(("https://", "http://")):
        return _from_address(handle)
    if "://" in handle:
        return one_folder_deep(_from_file_system(handle))
    path = os.path.expanduser(handle)
    if os.path.isdir(path):
        return one_folder_deep(LocalFolder(Path(path), _names(path)))
    if os.path.isfile(path) and archives.is_archive(path):
        return one_folder_deep(_unpacked(handle, Path(path)))
    found = "is a file" if os.path.exists(path) else "there is no such folder"
    raise EncoderError(f"{handle}: {found} (absolute: {os.path.abspath(path)}); {SUPPORTED}")


def _minilm() -> LocalFolder:
    folder = minilm.packaged_folder()
    if folder is not None:
        return LocalFolder(folder, ("minilm",))
    try:
        return from_huggingface(minilm.HUGGINGFACE)
    except EncoderError as error:
        raise EncoderError(f"{minilm.NOT_INSTALLED}; or, the same file: {error}") from None


def _from_address(handle: str) -> LocalFolder:
    try:
        address = urllib.parse.urlsplit(handle)
    except ValueError as error:
        raise EncoderError(f"{handle}: is not an address ({error})") from error
    fetch = from_zip if address.path.lower().endswith(".zip") else from_tf_hub
    return fetch(handle, address.geturl())


def _names(path: str) -> tuple[str, ...]:
    """The name in the handle and, if it is a link, the name of its target."""
    names = (os.path.basename(os.path.abspath(path)), os.path.basename(os.path.realpath(path)))
    return tuple(dict.fromkeys(map(archives.stem, names)))


def _unpacked(handle: str, archive: Path) -> LocalFolder:
    status = archive.stat()
    key = f"{os.path.realpath(archive)} {status.st_size} {status.st_mtime_ns}"
    folder = cached(handle, key, lambda folder: archives.extract(handle, archive, folder))
    return LocalFolder(folder, _names(str(archive)), copy=folder)


def _from_file_system(handle: str) -> LocalFolder:
    """A copy of a folder or an archive on one of Beam's file systems."""
    names = (archives.stem(handle.rstrip("/").rsplit("/", 1)[-1]),)
    reason = storage.unsupported_reason(handle)
    if reason is not None:
        raise EncoderError(f"{handle}: {reason}")

    def copy(path: str, target: Path) -> None:
        with create(target) as file:
            storage.copy_into(path, file)

    try:
        if archives.is_archive(handle):
            file = storage.stat_file(handle)
            if not isinstance(file, InputFile):
                raise EncoderError(f"{handle}: {file.reason}; {SUPPORTED}")
            folder = archives.cached_archive(
                handle, f"{file}", archives.ending_of(handle), lambda path: copy(handle, path)
            )
            return LocalFolder(folder, names, copy=folder)
        files = {name: file for name, file in storage.list_tree(handle).items() if is_wanted(name)}
        if not files:
            raise EncoderError(f"{handle}: there is no file of an encoder; {SUPPORTED}")

        def copy_folder(folder: Path) -> None:
            for name, file in files.items():
                copy(file.path, folder / name)

        folder = cached(handle, f"{sorted(files.items())}", copy_folder)
        return LocalFolder(folder, names, copy=folder)
    except EncoderError:
        raise
    except Exception as error:  # each store's client has its own exceptions
        raise EncoderError(f"{handle}: cannot be read ({error})") from error
