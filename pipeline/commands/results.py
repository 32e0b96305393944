"""What a command ends with: its exit status, and its result, printed for people or as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

DONE, FAILED, USAGE, INCOMPLETE, BUSY = 0, 1, 2, 3, 4


def print_result(options: argparse.Namespace, result: Any, *printers: Callable[[Any], None]) -> None:
    """Print a result with `printers`, or as JSON with --json (by its `to_json` unless it is a dict)."""
    with tolerate_closed_pipe():
        if options.json:
            values = result if isinstance(result, dict) else result.to_json()
            print(json.dumps(_without_nan(values), indent=1))
            return
        for printer in printers:
            printer(result)


def _without_nan(value: Any) -> Any:
    """The value with null for NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


@contextlib.contextmanager
def tolerate_closed_pipe() -> Iterator[None]:
    """Keeps the exit status when the reader of the output stops reading (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
