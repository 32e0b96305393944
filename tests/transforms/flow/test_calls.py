"""Functions of other processes: values and errors cross, and the death of a process is an error, not a wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from layerbeam.transforms.flow import calls
from layerbeam.transforms.flow.blocks import TextBlock

pytestmark = pytest.mark.skipif(not calls.IS_POSSIBLE, reason="Linux only")

SERVE = """
import socket, sys
from layerbeam.transforms.flow import calls
calls.serve(socket.socket(fileno=int(sys.argv[1])))
"""


class OwnError(Exception):
    """An error that a pickle does not give again."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"because of {cause}")


def echo():
    return lambda value: value


def doubles():
    return lambda values: [values * 2, os.getpid()]


def raises():
    def raise_it(error):
        raise error if isinstance(error, Exception) else OwnError(ValueError(error))

    return raise_it


def cannot_be_made():
    raise OSError(28, "No space left on device", "weights")


@pytest.fixture
def server():
    """A process that serves, and its address."""
    with calls.listen() as listener:
        address, file = listener.getsockname(), listener.fileno()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen([sys.executable, "-c", SERVE, str(file)], pass_fds=[file], env=environment)
    with process:
        yield process, address
        process.kill()


def test_values_cross_in_both_directions(server):
    process, address = server
    twice = calls.Caller(address, doubles)
    for values in (np.arange(6, dtype=np.float16).reshape(2, 3).T, np.empty((0, 4)), np.ones(1 << 22, np.float32)):
        product, where = twice(values)
        assert where == process.pid
        assert product.dtype == values.dtype
        np.testing.assert_array_equal(product, values * 2)
        product += 1  # the caller's own


def test_blocks_cross(server):
    block = TextBlock.of(["a", "", "\U0001f600 \0"])
    found = calls.Caller(server[1], echo)(block)
    assert found.texts.equals(pa.array(["a", "", "\U0001f600 \0"]))
    np.testing.assert_array_equal(found.line, block.line)


def test_errors_are_raised_where_the_call_is(server):
    call = calls.Caller(server[1], raises)
    with pytest.raises(MemoryError, match=r"^too large$"):
        call(MemoryError("too large"))
    with pytest.raises(FileNotFoundError) as missing:
        call(FileNotFoundError(2, "No such file", "weights"))
    assert missing.value.filename == "weights"
    with pytest.raises(RuntimeError, match=r"^OwnError: because of no$"):
        call("no")
    with pytest.raises(ValueError, match=r"^still there$"):
        call(ValueError("still there"))
    with pytest.raises(OSError, match="No space left on device"):
        calls.Caller(server[1], cannot_be_made)


def gives_a_function():
    return lambda _: lambda: None


class Unreadable:
    """A value whose pickle cannot be read."""

    def __reduce__(self):
        return int, ("no number",)


def test_what_cannot_be_pickled_is_an_error_of_the_call(server):
    with pytest.raises(Exception, match="pickle"):
        calls.Caller(server[1], gives_a_function)(1)
    call = calls.Caller(server[1], echo)
    with pytest.raises(ValueError, match="no number"):
        call(Unreadable())
    assert call(1) == 1


def test_many_arrays(server):
    found = calls.Caller(server[1], echo)([np.full(2, number) for number in range(20000)])
    assert np.concatenate(found).tolist() == np.arange(20000).repeat(2).tolist()


def test_many_callers_at_once(server):
    found = {}

    def call(number):
        twice = calls.Caller(server[1], doubles)
        found[number] = [int(twice(np.full(1000, number + each))[0].sum()) for each in range(20)]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [2000 * (number + each) for each in range(20)] for number in range(8)}


def test_death_during_a_call(server):
    process, address = server
    call = calls.Caller(address, kills_itself)
    for _ in range(2):
        with pytest.raises(calls.CalledProcessEndedError, match="has ended"):
            call(None)
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(calls.CalledProcessEndedError, match="has ended"):
        calls.Caller(address, echo)


def kills_itself():
    return lambda _: os.kill(os.getpid(), signal.SIGKILL)


def test_server_outlives_a_caller_that_dies(server):
    code = f"from test_calls import *; calls.Caller({server[1]!r}, echo); os._exit(1)"
    folder = os.path.dirname(__file__)
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=False)
    assert calls.Caller(server[1], echo)(1) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_turned_away(server):
    """Before it reads a byte, which could be a pickle that runs code."""
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.connect({server[1]!r}); sys.exit(s.recv(1) != b'')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert calls.Caller(server[1], echo)(1) == 1
