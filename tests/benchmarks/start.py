"""A run of ten lines compared with the imports of its libraries one after the other: medians of alternating starts.

python start.py [--rounds N]: prints the rows of the table in docs/tuning.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

IMPORTS = "import tensorflow, tensorflow_text, apache_beam, pyarrow.parquet"


def measure(command: Sequence[str]) -> tuple[float, float, float]:
    """(seconds, processor seconds, peak megabytes) of a program."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, command
    return time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ten.txt").write_text("".join(f"Line {number} of ten.\n" for number in range(10)))
        settings = {
            "input": {"files": [str(folder / "ten.txt")]},
            "encoder": {"handle": "minilm"},
            "views": {"tokens": {"level": "token", "layers": [-1, -2, -3, -4]}},
            "output": {"path": str(folder / "out")},
        }
        (folder / "c.yaml").write_text(yaml.safe_dump(settings))
        commands = {
            "imports": [sys.executable, "-c", IMPORTS],
            "layerbeam run": [sys.executable, "-m", "layerbeam", "run", str(folder / "c.yaml")],
        }
        found: dict[str, list[tuple[float, float, float]]] = {case: [] for case in commands}
        for _ in range(rounds):
            for case, command in commands.items():
                shutil.rmtree(folder / "out", ignore_errors=True)
                found[case].append(measure(command))
    for case, measured in found.items():
        wall, processor, peak = (statistics.median(values) for values in zip(*measured, strict=True))
        print(f"| {case} | {wall:.1f} s | {processor:.1f} s | {peak:,.0f} MB |")


if __name__ == "__main__":
    main()
