"""One writer for each output folder.

On disks a file in the folder is locked (flock): nobody else gets it while the run lives, and it is free again with the
process, however that ends. On NFS this holds between machines as far as the server and its mounts do locks. Object
stores have no lock that Beam could take: there a run says twice a minute in `_writer.json` that it lives. Two that
start within the same second may both go on; they write the same bytes under the same names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.transforms import storage
from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.layout import LOCK, WRITER

_HEARTBEAT_INTERVAL_SECONDS = 30
# After so long without a beat a writer is dead: a few may be late on a store that is slow.
_DEAD_AFTER_SECONDS = 150
_SETTLE_SECONDS = 1.0


@contextlib.contextmanager
def only_writer(output_path: str) -> Iterator[None]:
    """Hold the output folder. BusyError while another run does; a dead one's hold is no obstacle."""
    with _locked(output_path) if storage.is_local(output_path) else _heartbeat_lock(output_path):
        yield


@contextlib.contextmanager
def _locked(output_path: str) -> Iterator[None]:
    path = os.path.join(output_path, LOCK)
    hold: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    try:
        file = _open_lock(path, os.O_RDONLY)  # so that nothing keeps the disk from becoming read-only
    except OSError as error:
        raise UsageError(f"output.path: cannot write to {output_path}: {storage.reason_of(error)}") from error
    try:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
                os.close(file)
                file = _open_lock(path, os.O_RDWR)  # NFS wants it for a lock that is nobody else's
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"{output_path}: another run is at work in this folder; wait for it or stop it") from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                raise
            hold = _heartbeat_lock(output_path)  # a mount that does no locks
        if not _is_at(file, path):  # who had it has just ended, and taken the file away
            raise BusyError(f"{output_path}: another run has just ended in this folder; start again")
        try:
            with hold:
                yield
        finally:
            with contextlib.suppress(OSError):
                os.remove(path)
            with contextlib.suppress(OSError):
                os.rmdir(output_path)  # if nothing came of it
    finally:
        os.close(file)


def _open_lock(path: str, access: int) -> int:
    """A file, not the folder: of folders NFS keeps no locks."""
    while True:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        try:
            return os.open(path, access | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:
            continue  # who had the folder found that nothing came of it


def _is_at(file: int, path: str) -> bool:
    """Whether the open file is the one that lies there now."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False


@contextlib.contextmanager
def _heartbeat_lock(output_path: str) -> Iterator[None]:
    path = storage.join(output_path, WRITER)
    now = storage.stat_file(path)
    if isinstance(now, InputFile) and time.time() - now.modified < _DEAD_AFTER_SECONDS:
        other = storage.read_json(path) or {}
        if not _owner_is_dead(other):
            raise BusyError(
                f"{output_path}: another run is at work in this folder, on {other.get('host', 'some machine')}; wait "
                f"for it or stop it (one that was killed is forgotten after {_DEAD_AFTER_SECONDS} s)"
            )
    me = {"host": _host_id(), "pid": os.getpid(), "token": uuid.uuid4().hex}
    try:
        _beat(path, me)
    except (FileNotFoundError, PermissionError) as error:
        raise UsageError(f"output.path: cannot write to {output_path}: {storage.reason_of(error)}") from error
    time.sleep(_SETTLE_SECONDS)
    now_there = storage.read_json(path)
    if now_there is None:
        raise OSError(f"{path}: cannot be read back after it was written")
    if now_there != me:
        raise BusyError(f"{output_path}: another run has just begun in this folder; wait for it or stop it")
    ended = threading.Event()

    def keep_beating() -> None:
        while not ended.wait(_HEARTBEAT_INTERVAL_SECONDS):
            with contextlib.suppress(Exception):  # the next one may get through
                if storage.read_json(path) not in (me, None):
                    return  # this process slept so long that another took over
                _beat(path, me)

    thread = threading.Thread(target=keep_beating, name="writer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):  # whoever comes next sees that this process is no more
            if storage.read_json(path) == me:
                storage.delete_files([path])


def _beat(path: str, me: dict[str, Any]) -> None:
    with storage.write_whole(path, temporary=os.path.dirname(path)) as file:
        file.write(json.dumps(me).encode("ascii"))


def _host_id() -> str:
    """This machine, or container, within which a process's number says which it is."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _owner_is_dead(writer: dict[str, Any]) -> bool:
    """Whether the writer was a process of this machine that lives no more."""
    pid = writer.get("pid")
    if writer.get("host") != _host_id() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return pid == os.getpid()  # this process has only begun: the number was another's before
