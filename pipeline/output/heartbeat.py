"""Signs of life of a program: the file `_runs/<n>.alive`, written again and again while it works for the attempt."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from layerbeam.transforms import storage

_INTERVAL_SECONDS = 30


@contextlib.contextmanager
def beating(path: str) -> Iterator[None]:
    """Write this file at intervals within the block."""
    ended = threading.Event()
    # It ends with the process, whatever it waits for.
    thread = threading.Thread(target=_beat_until, args=(ended, path), name="alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # so that it writes nothing from now on


def _beat_until(ended: threading.Event, path: str) -> None:
    while not ended.wait(_INTERVAL_SECONDS):
        with contextlib.suppress(Exception):  # the next beat may succeed
            beat(path)


def beat(path: str) -> None:
    """Write the file, whose time is then that of its disk or store."""
    with storage.write_atomically(path):
        pass
