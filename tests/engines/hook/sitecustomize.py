"""Imported by Python at start if its folder is on PYTHONPATH: logs who commits what, and kills on request.

In the folder COMMITS_NOTED, `commits` gets a line `node process name` for each commit, just before the commit is
linked or renamed into place. A file `kill-process` or `kill-node` contains a number n: the process that reaches its
n-th commit kills itself, or the TaskManager or executor that started it, and removes the file, unless `always` follows
the number.

With HOLD_GRPC_LOCKS, threads hold the locks of gRPC's streams nearly all the time, until the end of the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any


class _Notes:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._node = os.getppid()
        self._lock = threading.Lock()
        self._commits = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("os.rename", "os.link") or not isinstance(arguments[1], str):
            return
        folder, name = os.path.split(arguments[1])
        if os.path.basename(folder) != "_commits":
            return
        with self._lock:
            self._commits += 1
            line = f"{self._node} {os.getpid()} {name}\n"
            notes = os.open(os.path.join(self._folder, "commits"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(notes, line.encode())
            os.close(notes)
            for what, pid in (("process", os.getpid()), ("node", self._node)):
                self._kill(os.path.join(self._folder, f"kill-{what}"), pid)

    def _kill(self, order: str, pid: int) -> None:
        try:
            with open(order) as file:
                number, *always = file.read().split()
            if self._commits < int(number):
                return
            if not always:
                os.remove(order)  # if two processes get here at once, one gets an error
        except FileNotFoundError:
            return
        os.kill(pid, signal.SIGKILL)


def _hold_grpc_locks() -> None:
    from grpc import _channel

    create = _channel._MultiThreadedRendezvous.__init__

    def create_and_hold(self: Any, state: Any, *others: Any) -> None:
        def hold() -> None:
            while True:
                with state.condition:
                    time.sleep(0.05)
                time.sleep(0.002)

        create(self, state, *others)
        threading.Thread(target=hold, daemon=True).start()

    _channel._MultiThreadedRendezvous.__init__ = create_and_hold


if "COMMITS_NOTED" in os.environ:
    sys.addaudithook(_Notes(os.environ["COMMITS_NOTED"]))
if "HOLD_GRPC_LOCKS" in os.environ:
    _hold_grpc_locks()
