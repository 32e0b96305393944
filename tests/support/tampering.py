"""Edits and damages files, and makes them unreadable."""

from __future__ import annotations

import errno
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest


def edit(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file; None removes a field."""
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def age(path: Path, seconds: float) -> None:
    """Make the file so old."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def flip(path: Path, place: int) -> None:
    """Flip one bit of a byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def deny(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Make reading this file fail; removing its permissions would not stop root."""
    real = io.open

    def open_other(file: Any, *arguments: Any, **named: Any) -> Any:
        if str(file) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(file, *arguments, **named)

    monkeypatch.setattr("io.open", open_other)
    monkeypatch.setattr("builtins.open", open_other)
