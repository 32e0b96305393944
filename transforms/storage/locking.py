"""A lock on a local file (flock). The kernel frees it when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

_ATTEMPTS = 1000  # far more than other runs can end in the folder meanwhile


@contextlib.contextmanager
def locked_file(path: str, *, wait: bool) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created before and deleted afterwards.

    A file, not its folder, is locked: NFS has no locks on folders.

    Raises BlockingIOError if another process holds it, unless `wait`; an OSError with a filename if the file cannot be
    created; an OSError without one if the lock fails, such as ENOLCK on a mount without locks.
    """
    access = os.O_RDONLY  # a file that is open for writing would keep the disk from being remounted read-only
    while True:
        file = create_file(path, access)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if error.errno != errno.EBADF or access == os.O_RDWR:
                    raise
                access = os.O_RDWR  # NFS grants an exclusive lock only to files open for writing
                continue
            if not _is_at(file, path):
                continue  # the previous holder has deleted the file
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.remove(path)
            return
        finally:
            os.close(file)


def create_file(path: str, access: int) -> int:
    """Open or create the file. Creates its folder too, which another program may remove while it is empty."""
    folder = os.path.dirname(path) or "."
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            os.makedirs(folder, exist_ok=True)
        except FileExistsError:  # also raised if the folder vanishes within `makedirs`
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat(folder).st_mode):
                    raise
            continue
        except FileNotFoundError:  # a folder above has vanished
            continue
        try:
            return os.open(path, access | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:  # the folder has vanished, or is one in which nobody can create a file, such as /proc
            if not attempts_left:
                raise
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _is_at(file: int, path: str) -> bool:
    """Whether this path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False
