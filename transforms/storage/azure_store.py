"""az:// through obstore: `az://container/name`, with account and credentials from variables of the environment."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from typing import IO, Any

import obstore
import obstore.store
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError

from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage.errors import AZURE_ACCOUNT, AZURE_LOG_IN
from layerbeam.transforms.storage.store import Store, in_parallel, pause, split_path

_DELETED_AT_ONCE = 256  # Azure's limit for a batch request
_BLOCK_BYTES = 16 << 20  # larger files are uploaded in blocks of this size; 50,000 blocks at most
_BLOCKS_AT_ONCE = 4
_LISTED_AT_ONCE = 1000
_TIMEOUT = "120s"  # of a request: obstore's own, 30 s, is too short for a block over a slow line
_TRIES = 10  # within a minute or two
_BROKEN_PAGE = "Error getting list response body"
_METADATA_SERVER = ("169.254.169.254", 80)  # gives a managed identity on Azure's machines


class AzureStore(Store):
    """An upload in blocks appears when its list of blocks is committed; Azure drops others after a week."""

    def __init__(self) -> None:
        """Raises OSError if no account or no credentials are given."""
        self._containers: dict[str, Any] = {}
        self._container("any")  # the account is looked up here, and nothing is requested
        if not {name for name in os.environ if name.startswith("AZURE_")} - {AZURE_ACCOUNT}:
            # What is left is a managed identity, for which obstore would ask this server for minutes.
            try:
                socket.create_connection(_METADATA_SERVER, timeout=1).close()
            except OSError as error:
                raise PermissionError(errno.EACCES, AZURE_LOG_IN) from error

    def _container(self, name: str) -> Any:
        if name not in self._containers:
            self._containers[name] = obstore.store.AzureStore(name, client_options={"timeout": _TIMEOUT})
        return self._containers[name]

    def _split(self, path: str) -> tuple[Any, str]:
        container, name = split_path(path)
        return self._container(container), name

    def list(self, prefix: str) -> Iterator[InputFile]:
        """Requests all files of the folder that `prefix` is in, because obstore lists by folders."""
        container, name = self._split(prefix)
        root, folder, last = prefix.removesuffix(name), name.rpartition("/")[0], ""
        for attempt in range(1, _TRIES + 1):
            pages = obstore.list(container, folder or None, chunk_size=_LISTED_AT_ONCE)
            files = (found for page in pages for found in page)
            try:
                # Not by obstore's `offset`, which takes the order by letters; an account with folders has another.
                if last and not any(found["path"] == last for found in files):
                    raise OSError(f"{root}{last}: was deleted while {prefix} was listed; run again")
                for found in files:
                    last = found["path"]
                    if last.startswith(name):
                        yield _as_file(root + last, found)
                return
            except GenericError as error:  # obstore repeats requests that fail, but not the reading of a page
                if attempt == _TRIES or _BROKEN_PAGE not in str(error):
                    raise
            pause(attempt)

    def stat(self, path: str) -> InputFile | None:
        container, name = self._split(path)
        try:
            return _as_file(path, obstore.head(container, name))
        except FileNotFoundError:
            return None

    def read(self, path: str, start: int, end: int | None) -> bytes:
        container, name = self._split(path)
        asked: Any = {"offset": start} if end is None else (start, end)
        try:
            return bytes(obstore.get(container, name, options={"range": asked} if start or end else {}).bytes())
        except BaseError:
            found = self.stat(path)
            if found is not None and found.size <= start:  # behind the end
                return b""
            raise

    def write(self, path: str, file: IO[bytes], size: int) -> None:
        container, name = self._split(path)
        obstore.put(
            container,
            name,
            file,
            use_multipart=size > _BLOCK_BYTES,
            chunk_size=_BLOCK_BYTES,
            max_concurrency=_BLOCKS_AT_ONCE,
        )

    def create(self, path: str, data: bytes) -> bool:
        container, name = self._split(path)
        for attempt in range(1, _TRIES + 1):
            try:
                obstore.put(container, name, data, mode="create", use_multipart=False)
                return True
            except (AlreadyExistsError, GenericError):  # any status 409; an answer that was lost
                if self.exists(path):
                    return False
                if attempt == _TRIES:
                    raise
            pause(attempt)
        return False

    def delete(self, paths: Sequence[str]) -> None:
        in_parallel(self._delete, paths, _DELETED_AT_ONCE)

    def _delete(self, paths: Sequence[str]) -> None:
        names = [split_path(path)[1] for path in paths]
        container, _ = self._split(paths[0])
        try:
            obstore.delete(container, names)
        except (FileNotFoundError, BaseError):  # a missing one hides the errors of others
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(container, name)


def _as_file(path: str, found: Any) -> InputFile:
    # The ETag of a listing has no quotes, that of a single file has.
    return InputFile(path, found["size"], found["last_modified"].timestamp(), found["e_tag"].strip('"'))
