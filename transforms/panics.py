"""Panics of libraries written in Rust (sentencex, tokenizers) as exceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class PanicError(ValueError):
    """A library panicked, for example at a regular expression that backtracks too often."""


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raises PanicError for pyo3's PanicException, a BaseException that cannot be imported. Also a decorator."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(str(error)) from None
