#!/usr/bin/env python3
"""Runs make with each argument, such as 'test-flink FEW=few', and with those behind -- two at a time.

Runs all of them even if one fails, then prints the time and the processor time of each.
"""

from __future__ import annotations

import concurrent.futures
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import BinaryIO

Row = tuple[str, int, float, float]
printing = threading.Lock()


def main(*items: str) -> int:
    alone, pairs = (items[: items.index("--")], items[items.index("--") + 1 :]) if "--" in items else (items, ())
    rows = [run(item, None) for item in alone]
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        rows += two.map(run_aside, pairs)
    print("\nseconds  processor  make")
    for item, status, seconds, processor in rows:
        print(f"{seconds:7.0f}  {processor:9.0f}  {item}{'  FAILED' if status else ''}")
    failed = sum(status != 0 for _, status, _, _ in rows)
    print(f"{len(rows) - failed} passed, {failed} failed", flush=True)
    return int(failed > 0)


def run(item: str, output: BinaryIO | None) -> Row:
    started = time.monotonic()
    command = ["make", *shlex.split(item)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process:  # noqa: S603
        _, status, usage = os.wait4(process.pid, 0)  # with the processor time of all of its processes
        process.returncode = os.waitstatus_to_exitcode(status)
    return item, process.returncode, time.monotonic() - started, usage.ru_utime + usage.ru_stime


def run_aside(item: str) -> Row:
    """Run it, and print its output when it has ended."""
    with tempfile.TemporaryFile() as output:
        row = run(item, output)
        output.seek(0)
        with printing:
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
    return row


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
    sys.exit(main(*sys.argv[1:]))
