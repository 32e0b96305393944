"""What ends a run from outside: signals and crashed worker processes; and silence for other threads meanwhile."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO, cast

_GRACE_SECONDS = 10


class MainThreadStream(io.TextIOBase):
    """A stream that writes what the main thread prints and drops what other threads print.

    `stream` is the stream behind it, for a thread that may print.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = underlying(stream)

    def write(self, text: str) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        return self.stream.write(text) if is_main else len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()


def underlying(stream: TextIO) -> TextIO:
    """The stream itself, or the one behind a MainThreadStream."""
    return stream.stream if isinstance(stream, MainThreadStream) else stream


@contextlib.contextmanager
def only_main_thread_prints() -> Iterator[None]:
    """Drops what other threads print to standard error.

    Beam's threads print tracebacks before an error is raised, and those of other workers even later; one message is
    enough.
    """
    before = sys.stderr
    sys.stderr = cast(TextIO, MainThreadStream(before))
    try:
        yield
    finally:
        sys.stderr = before


@contextlib.contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Hides what Beam prints to standard error while a pipeline runs, unless `verbose`."""
    if verbose:
        yield
        return
    with only_main_thread_prints(), contextlib.redirect_stderr(io.StringIO()):
        yield


class SignalGuard:
    """While entered, SIGINT and SIGTERM raise KeyboardInterrupt in the main thread; `number` is the signal."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: Any) -> None:
        self.number = number
        raise KeyboardInterrupt


class WorkerCrashWatcher:
    """While entered, a worker process that dies raises KeyboardInterrupt in the main thread; `message` is the reason.

    Beam's local runner would wait for it forever: the thread that watches the process ends with an error, nothing else.
    """

    def __init__(self, guard: SignalGuard) -> None:
        self.message: str | None = None
        self._guard = guard
        self._before = threading.excepthook

    def __enter__(self) -> WorkerCrashWatcher:
        threading.excepthook = self._note
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._before

    def _note(self, ended: threading.ExceptHookArgs) -> None:
        code = re.search(r"Worker subprocess exited with return code (-?\d+)", str(ended.exc_value))
        if code is None:
            self._before(ended)
            return
        if self._guard.number is not None:
            return  # the signal that interrupted this process reached the workers as well
        number = max(-int(code[1]), 0)
        how = f"was killed by {signal.Signals(number).name}" if number else f"ended with status {code[1]}"
        hint = " (out of memory? give fewer --processes)" if number == signal.SIGKILL else ""
        self.message = self.message or f"a worker process {how}{hint}"
        os.kill(os.getpid(), signal.SIGINT)
        # In case the main thread is in code that never checks for signals. Committed blocks are whole at any time.
        threading.Timer(_GRACE_SECONDS, os._exit, [1]).start()
