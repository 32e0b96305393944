"""What ends a run from outside: signals and crashed worker processes; and silence for other threads meanwhile."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import threading
from typing import Any, TextIO, cast

_GRACE_SECONDS = 10


class MainThreadStream:
    """A stream that writes what the main thread prints and drops what other threads print.

    `stream` is the stream behind it, for a thread that may print.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = underlying(stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        return self.stream.write(text) if is_main else len(text)


def underlying(stream: TextIO) -> TextIO:
    """The stream itself, or the one behind a MainThreadStream."""
    return stream.stream if isinstance(stream, MainThreadStream) else stream


def only_main_thread_prints() -> contextlib.AbstractContextManager[Any]:
    """Drops what other threads print to standard error.

    Beam's threads print tracebacks before an error is raised, and those of other workers even later; one message is
    enough.
    """
    return contextlib.redirect_stderr(cast(TextIO, MainThreadStream(sys.stderr)))


def quiet(verbose: bool) -> contextlib.AbstractContextManager[Any]:
    """Hides what Beam prints to standard error while a pipeline runs, unless `verbose`."""
    return contextlib.nullcontext() if verbose else contextlib.redirect_stderr(io.StringIO())


class SignalGuard:
    """While entered, what ends a run from outside raises KeyboardInterrupt in the main thread.

    That is SIGINT or SIGTERM, then in `number`, or the death of a worker process, whose reason is then in `crash`.
    Beam's local runner would wait for it forever: the thread that watches the process ends with an error, nothing else.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.crash: str | None = None
        self._handlers: dict[int, Any] = {}
        self._excepthook = threading.excepthook

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        threading.excepthook = self._note
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._excepthook
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: Any) -> None:
        self.number = number
        raise KeyboardInterrupt

    def _note(self, ended: threading.ExceptHookArgs) -> None:
        code = re.search(r"Worker subprocess exited with return code (-?\d+)", str(ended.exc_value))
        if code is None:
            self._excepthook(ended)
            return
        if self.number is not None:
            return  # the signal that interrupted this process reached the workers as well
        number = max(-int(code[1]), 0)
        how = f"was killed by {signal.Signals(number).name}" if number else f"ended with status {code[1]}"
        hint = " (out of memory? give fewer --processes)" if number == signal.SIGKILL else ""
        self.crash = self.crash or f"a worker process {how}{hint}"
        os.kill(os.getpid(), signal.SIGINT)
        # In case the main thread is in code that never checks for signals. Committed blocks are whole at any time.
        threading.Timer(_GRACE_SECONDS, os._exit, [1]).start()
