"""What ends a run from outside: signals and crashed worker processes."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_SECONDS = 8
# The signal that ends this process. Global, because handlers are per process.
_received: list[int] = []


def install_signal_handlers() -> None:
    """From now on the first SIGINT or SIGTERM raises KeyboardInterrupt in the main thread; later ones do nothing.

    The process ends some seconds later at the latest, with status 130 or 143: in code that never checks for signals,
    too, and where the exception is swallowed. Committed blocks are whole at any time.
    """
    terminal = os.dup(2)  # descriptor 2 itself is away while TensorFlow is imported
    numbers, wakeup = os.pipe()
    main = threading.get_ident()

    def end(number: int) -> None:
        with contextlib.suppress(OSError):
            os.write(terminal, b"layerbeam: interrupted\n")
        os._exit(128 + number)

    def stop(number: int, frame: FrameType | None) -> None:
        if _received:
            return
        _received.append(number)
        # What the exception interrupts, such as a destructor, may not print it.
        sys.excepthook = lambda *_: None
        sys.unraisablehook = lambda _: None
        if any(inner.f_code.co_filename.startswith("<frozen importlib") for inner, _ in traceback.walk_stack(frame)):
            end(number)  # a module in C may print the exception, or abort; an import leaves nothing to clean up
        raise KeyboardInterrupt

    def end_late() -> None:
        while (number := os.read(numbers, 1)[0]) not in _SIGNALS:
            pass
        # The system may have given it to another thread, which does not wake the main one up.
        signal.pthread_kill(main, number)
        time.sleep(_GRACE_SECONDS)
        end(number)

    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    threading.Thread(target=end_late, name="end by signals", daemon=True).start()
    for number in _SIGNALS:
        signal.signal(number, stop)


def interrupting_signal(error: BaseException) -> int | None:
    """The signal behind an error, whatever libraries have made of the KeyboardInterrupt; None if there is none."""
    if _received:
        return _received[0]
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


class WorkerDiedError(Exception):
    """A worker process has died. Beam's local runner would wait for it forever."""


def how_it_ended(status: int) -> str:
    """What the status of a process of this run says, as the end of a sentence."""
    number = max(-status, 0)
    hint = " (out of memory? give fewer --processes)" if number == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(number).name}{hint}" if number else f"ended with status {status}"


def run_in_thread(function: Callable[[], Any]) -> Any:
    """What the function returns or raises, called in another thread: the main thread stays open to signals.

    Interrupting Beam's local runner directly would wait until starting workers are up. WorkerDiedError if a worker
    process dies: the thread that watches it ends with an error, nothing else.
    """
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    excepthook = threading.excepthook

    def call() -> None:
        try:
            ended.put((function(), None))
        except BaseException as error:
            ended.put((None, error))

    def note(thread: threading.ExceptHookArgs) -> None:
        code = re.search(r"Worker subprocess exited with return code (-?\d+)", str(thread.exc_value))
        if code is None:
            excepthook(thread)
            return
        ended.put((None, WorkerDiedError(f"a worker process {how_it_ended(int(code[1]))}")))

    threading.excepthook = note
    try:
        threading.Thread(target=call, name="pipeline", daemon=True).start()
        result, error = ended.get()
    finally:
        threading.excepthook = excepthook
    if error is not None:
        raise error
    return result
