"""Errors that are printed as one sentence with the fix, without a traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class UsageError(Exception):
    """Wrong configuration or usage: exit status 2. The message names the setting, its value and what is allowed."""


class OutputError(UsageError, ValueError):
    """An output folder holds no finished run, or a damaged one. A ValueError, too, for `open_run`."""


class NoRunError(UsageError, FileNotFoundError):
    """A folder holds no run. A FileNotFoundError, too, for `open_run`."""


class BusyError(Exception):
    """Another run is active in the output folder: exit status 4."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` if a known name is close, else an empty string.

    >>> did_you_mean("max_seq_lenght", ["max_seq_length", "handle"])
    '; did you mean `max_seq_length`?'
    """
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def root_cause(error: BaseException) -> str:
    """The worker's own error: Beam passes on a traceback as text.

    >>> root_cause(RuntimeError("Traceback:\\n  File x\\nOSError: No space left [while running 'write']"))
    'OSError: No space left'
    """
    lines = [line for line in str(error).splitlines() if re.match(r"^(\w+\.)*\w*(Error|Exception|Interrupt)\b", line)]
    last = lines[-1] if lines else f"{type(error).__name__}: {error}".removesuffix(": ")
    last = re.sub(r"^(\w+\.)+(?=\w+\b)", "", last)  # names of modules
    return last.removeprefix("RuntimeError: ").split(" [while running")[0].strip()
