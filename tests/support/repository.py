"""Paths of the repository and of its test data."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"


def python(program: str, *arguments: str, folder: Path = ROOT, **environment: str) -> str:
    """Run a program in a Python of its own, which must end well; returns what it printed."""
    command, env = [sys.executable, "-c", program, *arguments], os.environ | environment
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked(*paths: str, untracked: bool = False) -> list[str]:
    """Git's files of the repository, or of these folders. `untracked`: also new files that are not ignored."""
    options = ["--cached", "--others", "--exclude-standard"] if untracked else []
    command = ["git", "ls-files", *options, "--", *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def systemd_unit(path: Path) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    parsed.optionxform = str  # type: ignore[method-assign, assignment]
    parsed.read_string(path.read_text().replace("\\\n", ""))
    return parsed
