"""A scratch database in a temporary file, for what is larger than memory."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any


class Scratch:
    """Base of what asks an SQLite database without a name. OSError if the disk of temporary files is full."""

    def __init__(self, tables: str) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)
        self._db.executescript(tables)

    def _run_script(self, statements: str) -> None:
        with _as_os_error():
            self._db.executescript(statements)

    def _run(self, query: str, *values: Any) -> Iterator[Any]:
        with _as_os_error():
            yield from self._db.execute(query, *values)

    def _change(self, query: str, rows: Iterable[Any] = ((),)) -> None:
        with _as_os_error():
            self._db.executemany(query, rows)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(errno.ENOSPC, f"the disk of temporary files cannot hold the list of blocks ({error})") from error
