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
_COUNT = struct.Struct("q")  # the message next to the memory: how many pieces it holds

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
        pieces = _pieces_of(value)
        with _as_ended():
            _send(self._connection, pieces)
            pieces = _receive(self._connection)
        answer = _value_of(pieces)
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
            pieces = _receive(connection)
            try:
                value, answer = _value_of(pieces), None
                if function is None:
                    function = value()
                else:
                    answer = function(value)
                pieces = _pieces_of(answer)
            except Exception as error:
                pieces = _pieces_of(_portable(error))
            _send(connection, pieces)


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


def _pieces_of(value: Any) -> list[memoryview]:
    """The pickle of a value without its arrays, and these."""
    arrays: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    return [memoryview(body), *(array.raw() for array in arrays)]


def _value_of(pieces: list[memoryview]) -> Any:
    body, *arrays = pieces
    return pickle.loads(body, buffers=arrays)  # noqa: S301 - of this user, see `_is_own`


def _send(connection: socket.socket, pieces: list[memoryview]) -> None:
    """Write the pieces, behind their sizes, into memory of a file without a name, and pass that on."""
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    written = [memoryview(sizes.tobytes()), *pieces]
    *places, end = _places([len(piece) for piece in written])
    file = os.memfd_create("layerbeam")
    try:
        os.ftruncate(file, end)
        with mmap.mmap(file, 0) as memory:
            for place, piece in zip(places, written, strict=True):
                memory[place : place + len(piece)] = piece
        socket.send_fds(connection, [_COUNT.pack(len(pieces))], [file])
    finally:
        os.close(file)


def _receive(connection: socket.socket) -> list[memoryview]:
    """The pieces that the other side sent. EOFError if that has ended."""
    message, files, _, _ = socket.recv_fds(connection, _COUNT.size, 1)
    if not message:
        raise EOFError
    memory = memoryview(mmap.mmap(files[0], 0))
    os.close(files[0])
    sizes = np.frombuffer(memory, np.int64, *_COUNT.unpack(message))
    _, *places, _ = _places([sizes.nbytes, *sizes.tolist()])
    return [memory[place : place + size] for place, size in zip(places, sizes.tolist(), strict=True)]


def _places(sizes: list[int]) -> list[int]:
    """Where each piece begins, and where all end."""
    return list(itertools.accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))
