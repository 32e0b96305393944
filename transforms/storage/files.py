"""Read, create and delete whole files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable
from typing import IO, Any, BinaryIO

from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.storage.listing import exists, list_folder, stat_file
from layerbeam.transforms.storage.paths import is_local, join


def open_binary(path: str) -> BinaryIO:
    """The file's bytes as they are stored, never decompressed. Errors are OSError, also while reading."""
    if is_local(path):
        return open(path, "rb")
    from layerbeam.transforms.storage import stores

    return stores.open_binary(path)


def read_bytes(path: str) -> bytes:
    """The whole file."""
    with open_binary(path) as file:
        return file.read()


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or incomplete."""
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def copy_into(path: str, file: IO[bytes]) -> None:
    """Copy a file's bytes into an open file. Raises OSError if they are fewer than its size."""
    expected = stat_file(path)
    with open_binary(path) as source:
        shutil.copyfileobj(source, file, 1 << 20)
        copied = file.tell()
    if not isinstance(expected, InputFile) or copied != expected.size:
        raise OSError(f"{path}: {copied:,} bytes came, not {getattr(expected, 'size', 0):,}")


def create_empty(path: str) -> None:
    """Create an empty file, which is complete as soon as it exists."""
    if is_local(path):
        open(path, "wb").close()
    else:
        from layerbeam.transforms.storage import stores

        stores.create(path).close()


def delete_files(paths: Iterable[str]) -> None:
    """Delete these files; a missing one is not an error."""
    for path in paths:
        if is_local(path):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        elif exists(path):
            from layerbeam.transforms.storage import stores

            stores.delete(path)


def delete_folder(folder: str) -> None:
    """Delete the folder with all that is in it; a missing one is not an error."""
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
    elif list_folder(folder):
        from layerbeam.transforms.storage import stores

        stores.delete(f"{folder.rstrip('/')}/")  # a hundred files per request, if the store supports it
        delete_files(join(folder, name) for name in list_folder(folder))  # GCS only logs what it could not delete


def delete_empty_folder(folder: str) -> None:
    """Delete a folder that is empty; stores have no folders."""
    if is_local(folder):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
