"""The command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def layerbeam(folder: Path, *arguments: str, statuses: Collection[int] = (0,)) -> str:
    """What it printed, started in this folder. Where it ends with another status, so does the benchmark."""
    command = [sys.executable, "-m", "layerbeam", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in statuses:
        sys.exit(f"layerbeam {' '.join(arguments)} ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
