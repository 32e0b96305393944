"""Calls of a function in another process of this machine; what is large passes in memory that both processes map.

Linux only. The address is an abstract socket, so that nothing is left on a disk, and each side accepts only processes
of its own user.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle  # noqa: TID251 - between processes of one user and one run, which run the same code
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_ALIGNMENT = 64  # bytes; of arrays
_MESSAGE_BYTES = 1 << 16  # the sizes of 8,192 arrays

IS_POSSIBLE = sys.platform == "linux"


class CalledProcessEndedError(Exception):
    """The process that was called has ended."""


def listen() -> socket.socket:
    """A socket for `serve`, in this process or in one that gets it; its `getsockname()` is the address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")  # the system chooses a name
    listener.listen(socket.SOMAXCONN)
    return listener


def serve(listener: socket.socket) -> None:
    """Answer all who call, each in a thread of its own, until this process ends."""
    while True:
        connection, _ = listener.accept()
        if _is_own(connection):
            threading.Thread(target=_answer, args=(connection,), name="answer", daemon=True).start()
        else:
            connection.close()


class Caller:
    """A function of another process. `make`: gives it there; sent to it by pickling. Not thread-safe.

    Raises what the function raises. CalledProcessEndedError if its process has ended.
    """

    def __init__(self, address: bytes, make: Callable[[], Callable[[Any], Any]]) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        weakref.finalize(self, self._connection.close)
        with _as_ended():
            self._connection.connect(address)
        if not _is_own(self._connection):
            raise PermissionError("the address of the process to call belongs to another user")
        self(make)

    def __call__(self, value: Any) -> Any:
        with _as_ended():
            _send(self._connection, value)
            answer = _receive(self._connection)
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextlib.contextmanager
def _as_ended() -> Iterator[None]:
    try:
        yield
    except (ConnectionError, EOFError) as error:
        raise CalledProcessEndedError("the process that was called has ended") from error


def _answer(connection: socket.socket) -> None:
    """Make the function that a caller sends first, then call it with each value that follows."""
    function: Callable[[Any], Any] | None = None
    with connection, contextlib.suppress(ConnectionError, EOFError):  # the caller has ended
        while True:
            value = _receive(connection)
            answer: Any = None
            try:
                if function is None:
                    function = value()
                else:
                    answer = function(value)
            except Exception as error:
                answer = _portable(error)
            _send(connection, answer)


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same where a pickle would not give it again."""
    with contextlib.suppress(Exception):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
        if str(copy) == str(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _is_own(connection: socket.socket) -> bool:
    """Whether the other side is a process of this user."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _send(connection: socket.socket, value: Any) -> None:
    """Pickle a value into memory of a file without a name, its arrays behind, and pass that on."""
    arrays: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    pieces = [memoryview(body), *(array.raw() for array in arrays)]
    sizes = [len(piece) for piece in pieces]
    file = os.memfd_create("layerbeam")
    try:
        os.ftruncate(file, sum(map(_aligned, sizes)))
        with mmap.mmap(file, 0) as memory:
            for place, piece in zip(_places(sizes), pieces, strict=True):
                memory[place : place + len(piece)] = piece
        socket.send_fds(connection, [np.array(sizes, np.int64).tobytes()], [file])
    finally:
        os.close(file)


def _receive(connection: socket.socket) -> Any:
    """The value that the other side sent. EOFError if that has ended."""
    message, files, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 1)
    if not message:
        raise EOFError
    memory = memoryview(mmap.mmap(files[0], 0))
    os.close(files[0])
    sizes = np.frombuffer(message, np.int64).tolist()
    body, *arrays = (memory[place : place + size] for place, size in zip(_places(sizes), sizes, strict=True))
    return pickle.loads(body, buffers=arrays)  # noqa: S301 - of this user, see `_is_own`


def _places(sizes: list[int]) -> list[int]:
    return list(itertools.accumulate(map(_aligned, sizes[:-1]), initial=0))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
