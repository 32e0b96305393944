"""Signs of life of an attempt: the file `_runs/<n>.alive`, written again and again while a process works for it."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterator

from layerbeam.transforms import storage

_INTERVAL_SECONDS = 30
# The check lists a folder, and hundreds of processes run it.
_BEATS_PER_QUESTION = 4
_lock = threading.Lock()
_threads: dict[str, _Beats] = {}


class Holder:
    """Keeps the heartbeat file of an attempt fresh, until it is released or collected.

    `is_over`: asked now and then whether the attempt has been given up.
    """

    def __init__(self, path: str, is_over: Callable[[], bool] | None = None) -> None:
        with _lock:
            self._thread = _threads.setdefault(path, _Beats(path))
            self._thread.holders.add(self)
            self._thread.is_over = is_over or self._thread.is_over
            if not self._thread.is_alive():
                self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the attempt has been given up."""
        return self._thread.over

    def let_go(self) -> None:
        """Stop beating, unless another part of this process works for the attempt."""
        with _lock:
            self._thread.holders.discard(self)
            _end_if_unused(self._thread)
        if self._thread.ended.is_set():
            self._thread.join()  # so that it writes nothing from now on


@contextlib.contextmanager
def beating(path: str) -> Iterator[None]:
    """Write this file at intervals within the block."""
    holder = Holder(path)
    try:
        yield
    finally:
        holder.let_go()


class _Beats(threading.Thread):
    """One thread for each file and process. It ends with the process, whatever it waits for."""

    def __init__(self, path: str) -> None:
        super().__init__(name="alive", daemon=True)
        self.path = path
        self.ended = threading.Event()
        # Beam does not always tear a DoFn down: then it is garbage-collected.
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.is_over: Callable[[], bool] | None = None
        self.over = False

    def run(self) -> None:
        seen, beats = None, itertools.count()
        while not self.ended.wait(_INTERVAL_SECONDS * random.uniform(0.5, 1)):  # noqa: S311 - so that workers take turns
            with _lock:
                _end_if_unused(self)
            if self.ended.is_set():
                return
            with contextlib.suppress(Exception):  # the next beat may succeed
                if self.is_over is not None and next(beats) % _BEATS_PER_QUESTION == 0:
                    self.over = self.over or self.is_over()
                # Another process that has written it meanwhile spares this one the write: stores allow about one
                # write per second of one file, and a job may have hundreds of processes.
                if seen == (seen := _modified(self.path)):
                    beat(self.path)
                    seen = _modified(self.path)


def _end_if_unused(thread: _Beats) -> None:
    if not thread.holders:
        thread.ended.set()
        if _threads.get(thread.path) is thread:
            del _threads[thread.path]


def _modified(path: str) -> float | None:
    file = storage.stat_file(path)
    return None if file.problem else file.modified


def beat(path: str) -> None:
    """Write the file, whose time is then that of its disk or store."""
    with storage.write_atomically(path):
        pass
