"""The process that encodes for all workers of `--processes`: one copy of the weights, and one process on a device."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

from layerbeam.pipeline.console import quiet
from layerbeam.pipeline.run.signals import WorkerDiedError, how_it_ended
from layerbeam.pipeline.run.worker_process import shell_command
from layerbeam.transforms.flow import calls
from layerbeam.transforms.hardware import import_tensorflow, tf


def is_needed(device: str) -> bool:
    """Whether processes of a run on this `encoder.device` would share a GPU or a TPU."""
    is_shared = device in ("gpu", "tpu") or (device == "auto" and bool(tf.config.list_physical_devices("GPU")))
    return is_shared and calls.IS_POSSIBLE


@contextlib.contextmanager
def start(*, verbose: bool) -> Iterator[bytes]:
    """The address of a process that encodes until the context ends. WorkerDiedError if it has died by then."""
    with calls.listen() as listener:
        address, file = listener.getsockname(), listener.fileno()
        command = shell_command(__name__, str(file), verbose=verbose)
        process = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, pass_fds=[file])  # noqa: S602 - as Beam does
    try:
        yield address
    except Exception as error:
        if status := _end(process):  # what a worker says of it is a consequence
            raise WorkerDiedError(f"the process that encodes {how_it_ended(status)}") from error
        raise
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End the process; its status, 0 if it was alive."""
    assert process.stdin is not None  # noqa: S101 - for mypy
    process.stdin.close()
    return process.wait()


def main() -> None:
    """Encode for those who call the socket given as the first argument, until standard input ends."""
    listener, verbose = socket.socket(fileno=int(sys.argv[1])), "--verbose" in sys.argv
    logging.getLogger().addHandler(logging.NullHandler())
    import_tensorflow()
    threading.Thread(target=calls.serve, args=(listener,), name="serve", daemon=True).start()
    with quiet(verbose):
        sys.stdin.buffer.read()  # it ends with the driver, too
    os._exit(0)
