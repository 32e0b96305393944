"""What ends a run from outside: signals, worker processes that die; and what other threads print meanwhile."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
from typing import Any, TextIO

_GRACE_SECONDS = 10


class MainThreadStream(io.TextIOBase):
    """A stream that takes what the main thread writes, and drops what others do."""

    def __init__(self, stream: TextIO) -> None:
        self.stream: TextIO = stream.stream if isinstance(stream, MainThreadStream) else stream

    def write(self, text: str) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        return self.stream.write(text) if is_main else len(text)

    def flush(self) -> None:
        self.stream.flush()


class SignalGuard:
    """While it is entered, SIGINT and SIGTERM raise KeyboardInterrupt in the main thread, and `number` says which."""

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
    """While it is entered, a worker process that dies raises KeyboardInterrupt in the main thread; `message` says why.

    Beam's local runner would wait for it for ever: the thread that minds the process ends with an error, no more.
    """

    def __init__(self, stop: SignalGuard) -> None:
        self.message: str | None = None
        self._stop = stop
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
        if self._stop.number is not None:
            return  # whoever interrupted this process meant the workers, too
        number = max(-int(code[1]), 0)
        how = f"was killed by {signal.Signals(number).name}" if number else f"ended with status {code[1]}"
        hint = " (out of memory? give fewer --processes)" if number == signal.SIGKILL else ""
        self.message = self.message or f"a worker process {how}{hint}"
        os.kill(os.getpid(), signal.SIGINT)
        # If the main thread is in code that never looks: what is committed is whole whenever the process ends.
        threading.Timer(_GRACE_SECONDS, os._exit, [1]).start()
