"""One active attempt in each output folder.

An attempt takes a number by creating `_runs/<n>.json`, which only one program can do. Then it looks whether one with a
lower number is active (`attempts`). So of two that start together the one with the lower number works.

On disks a file in the folder is locked too (flock), which the kernel frees when the process ends, however it ends. On
NFS it holds between machines if the server and the mounts support locks. Elsewhere a killed program is known by its
missing heartbeats.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.output.attempts import CLAIMED, held_tokens, owner_of_this_process, refuse_if_busy
from layerbeam.pipeline.output.heartbeat import beating
from layerbeam.pipeline.output.run_log import run_numbers
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout

_SETTLE_SECONDS = 1.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)


@contextlib.contextmanager
def only_writer(output_path: str, *, force: bool = False, beam_options: Any = None) -> Iterator[dict[str, Any]]:
    """Hold the output folder for an attempt; gives its `run` (number) and `owner`, for its record.

    Raises BusyError while another attempt is active; one that died does not count. `force` and `beam_options` as for
    `refuse_if_busy`. If the attempt leaves no record, nothing of it stays.
    """
    _refuse_links(output_path)
    token = uuid.uuid4().hex
    held_tokens.add(token)
    try:
        with _file_lock(output_path) if storage.is_local(output_path) else contextlib.nullcontext(False) as locked:
            claim = _take_number(output_path, token, locked=locked)
            try:
                refuse_if_busy(output_path, claim["run"], locked=locked, force=force, beam_options=beam_options)
                with beating(storage.join(output_path, layout.alive_path(claim["run"]))):
                    yield claim
            finally:
                _remove_claim(output_path, claim)
    finally:
        held_tokens.discard(token)
        storage.delete_empty_folder(output_path)  # the run has written nothing


def _refuse_links(output_path: str) -> None:
    for path in (os.path.join(output_path, name) for name in layout.OWN_FOLDERS):
        if storage.is_local(output_path) and os.path.islink(path):
            raise UsageError(
                f"output.path: {path} is a link, and a run would write and delete files where it leads to; remove it "
                "(only the folder of a view may be a link, to another disk)"
            )


@contextlib.contextmanager
def _file_lock(output_path: str) -> Iterator[bool]:
    """Hold the file lock; gives False on a mount without locks. Raises BusyError while another process holds it."""
    path = os.path.join(output_path, layout.LOCK)
    lock = contextlib.ExitStack()
    try:
        lock.enter_context(storage.locked_file(path, wait=False))
    except BlockingIOError as error:
        raise BusyError(f"{output_path}: another run is active in this folder; wait for it or stop it") from error
    except OSError as error:
        if error.filename is not None:
            raise _not_writable(output_path, error) from error
        if error.errno not in _NO_LOCKS:
            raise
        storage.delete_files(output_path, [layout.LOCK])
        yield False
    else:
        with lock:
            yield True


def _take_number(output_path: str, token: str, *, locked: bool) -> dict[str, Any]:
    """Create the first file `_runs/<n>.json` that no attempt has."""
    claim: dict[str, Any] = {"run": 0, "owner": owner_of_this_process(token)}
    try:
        while True:
            claim["run"] = 1 + max(run_numbers(output_path), default=claim["run"])
            path = storage.join(output_path, layout.run_path(claim["run"]))
            data = json.dumps(claim | {"state": CLAIMED}).encode("ascii")
            if storage.create_if_absent(path, data):
                break
    except OSError as error:
        if storage.is_local(output_path) or isinstance(error, FileNotFoundError | PermissionError):
            raise _not_writable(output_path, error) from error
        raise
    if not locked:
        # Another one may just create a number that it chose before it could see this one. And not every store refuses
        # to create a file that exists.
        time.sleep(_SETTLE_SECONDS)
        if storage.read_if_exists(path) != data:  # the other one may have ended
            raise BusyError(f"{output_path}: another run has just started in this folder; wait for it or stop it")
    return claim


def _remove_claim(output_path: str, claim: dict[str, Any]) -> None:
    """Free the number of an attempt that has left no record."""
    path = storage.join(output_path, layout.run_path(claim["run"]))
    with contextlib.suppress(OSError):  # the next attempt sees that this one has ended
        if storage.read_json(path) == claim | {"state": CLAIMED}:
            storage.delete_files(output_path, [layout.run_path(claim["run"]), layout.alive_path(claim["run"])])
            storage.delete_empty_folder(os.path.dirname(path))


def _not_writable(output_path: str, error: OSError) -> UsageError:
    return UsageError(f"output.path: cannot write to {output_path}: {storage.reason_of(error)}")
