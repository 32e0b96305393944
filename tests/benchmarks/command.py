"""Runs the `layerbeam` command and other programs in their own processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml


def layerbeam(folder: Path, *arguments: str, statuses: Collection[int] = (0,)) -> str:
    """What the command printed, run in `folder`."""
    return run_program([sys.executable, "-m", "layerbeam", *arguments], folder, statuses)


def run_settings(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Run `layerbeam run` with these settings in `folder`; returns the run's record."""
    (folder / "c.yaml").write_text(yaml.safe_dump(settings))
    layerbeam(folder, "run", "c.yaml")
    return run_record(folder / settings["output"]["path"])


def run_record(output: Path) -> dict[str, Any]:
    """The record of the first run in an output folder: times, memory, counts."""
    return json.loads((output / "_runs" / "1.json").read_text())


def run_json(*command: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object in the last line that another program printed. `environment`: additional variables."""
    return json.loads(run_program(command, environment=environment).splitlines()[-1])


def run_program(
    command: Sequence[str],
    folder: Path | None = None,
    statuses: Collection[int] = (0,),
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a program printed. `environment`: additional variables. The benchmark exits if the status is another."""
    variables = os.environ | (environment or {})
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode not in statuses:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def layerbeam_run(folder: Path, *options: str) -> tuple[str, int, list[int]]:
    """`layerbeam run c.yaml` in `folder`: standard error, and the peak bytes of its process and of its workers."""
    command = [sys.executable, "-m", "layerbeam", "run", "c.yaml", *options]
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with watch_memory(child.pid) as peaks:
        _, errors = child.communicate()
    if child.returncode:
        sys.exit(errors[-3000:])
    return errors, peaks.pop(child.pid), list(peaks.values())


@contextlib.contextmanager
def watch_memory(pid: int) -> Iterator[dict[int, int]]:
    """{process: its peak in bytes} of a process and its children, filled while this is entered."""
    peaks: dict[int, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            for one in [pid, *_children(pid)]:
                peaks[one] = max(peak_of(one), peaks.get(one, 0))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _children(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def peak_of(pid: int) -> int:
    """Bytes; 0 where they are not known."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
