"""What a person did wrong, in one sentence that says how to mend it: printed without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Wrong configuration or usage: exit status 2. The message names the setting, what was given, what is allowed."""


class BusyError(Exception):
    """Another run is at work in the output folder: exit status 4."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` where one of the known names is near, else nothing.

    >>> did_you_mean("max_seq_lenght", ["max_seq_length", "handle"])
    '; did you mean `max_seq_length`?'
    """
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
