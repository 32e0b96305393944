"""One writer for each output folder.

On disks a file in the folder is locked (flock). The lock is free again when the process ends, however it ends. On NFS
it holds between machines if the server and the mounts support locks. Object stores have no lock that Beam could use:
there a run writes a heartbeat to `_writer.json` every 30 s. Two runs that start within the same second may both
continue; they write the same bytes under the same names.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.transforms import layout, storage
from layerbeam.transforms.commits import InputFile

_HEARTBEAT_INTERVAL_SECONDS = 30
# A writer without a heartbeat for so long is dead: on a slow store a few may be late.
_DEAD_AFTER_SECONDS = 150
_SETTLE_SECONDS = 1.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)


def only_writer(output_path: str) -> contextlib.AbstractContextManager[None]:
    """Hold the output folder. Raises BusyError while another run holds it; a run that died does not."""
    return _file_lock(output_path) if storage.is_local(output_path) else _heartbeat_lock(output_path)


@contextlib.contextmanager
def _file_lock(output_path: str) -> Iterator[None]:
    path = os.path.join(output_path, layout.LOCK)
    lock = contextlib.ExitStack()
    heartbeat: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    try:
        lock.enter_context(storage.locked_file(path, wait=False))
    except BlockingIOError as error:
        raise BusyError(f"{output_path}: another run is at work in this folder; wait for it or stop it") from error
    except OSError as error:
        if error.filename is not None:
            raise _not_writable(output_path, error) from error
        if error.errno not in _NO_LOCKS:
            raise
        lock.callback(storage.delete_files, [path])
        heartbeat = _heartbeat_lock(output_path)
    try:
        with lock, heartbeat:
            yield
    finally:
        storage.delete_empty_folder(output_path)  # the run has written nothing


def _not_writable(output_path: str, error: OSError) -> UsageError:
    return UsageError(f"output.path: cannot write to {output_path}: {storage.reason_of(error)}")


@contextlib.contextmanager
def _heartbeat_lock(output_path: str) -> Iterator[None]:
    path = storage.join(output_path, layout.WRITER)
    now = storage.stat_file(path)
    if isinstance(now, InputFile) and time.time() - now.modified < _DEAD_AFTER_SECONDS:
        other = storage.read_json(path) or {}
        if not _owner_is_dead(other):
            raise BusyError(
                f"{output_path}: another run is at work in this folder, on {other.get('host', 'some machine')}; wait "
                f"for it or stop it (a killed run is forgotten after {_DEAD_AFTER_SECONDS} s)"
            )
    me = {"host": _host_id(), "pid": os.getpid(), "token": uuid.uuid4().hex}
    try:
        _beat(path, me)
    except (FileNotFoundError, PermissionError) as error:
        raise _not_writable(output_path, error) from error
    time.sleep(_SETTLE_SECONDS)
    writer = storage.read_json(path)
    if writer is None:
        raise OSError(f"{path}: cannot be read back after it was written")
    if writer != me:
        raise BusyError(f"{output_path}: another run has just started in this folder; wait for it or stop it")
    ended = threading.Event()

    def keep_beating() -> None:
        while not ended.wait(_HEARTBEAT_INTERVAL_SECONDS):
            with contextlib.suppress(Exception):  # the next beat may succeed
                if storage.read_json(path) not in (me, None):
                    return  # this process was suspended so long that another took over
                _beat(path, me)

    thread = threading.Thread(target=keep_beating, name="writer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):  # the next run sees that this process has ended
            if storage.read_json(path) == me:
                storage.delete_files([path])


def _beat(path: str, me: dict[str, Any]) -> None:
    with storage.write_whole(path, temporary=os.path.dirname(path)) as file:
        file.write(json.dumps(me).encode("ascii"))


def _host_id() -> str:
    """The machine or container within which process ids are unique."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _owner_is_dead(writer: dict[str, Any]) -> bool:
    """Whether the writer was a process of this machine that has ended."""
    pid = writer.get("pid")
    if writer.get("host") != _host_id() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return pid == os.getpid()  # this process has just started: its id belonged to another before
