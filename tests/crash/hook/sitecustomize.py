"""Imported by Python at start if its folder is on PYTHONPATH: kills the process at the step that KILL_AT names.

KILL_AT is `phase number program`: SIGKILL just before the number-th step (from 1) of a phase, in processes whose
command line contains the program.

block: steps of a block that has a part in place but no commit
finish: steps of a run's end: renaming parts.jsonl and the manifest, deleting files, _SUCCESS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

_OUT = os.sep + "out" + os.sep
_EVENTS = ("open", "os.rename", "os.link", "os.remove", "shutil.rmtree")


class _Killer:
    def __init__(self, phase: str, number: int, log: str) -> None:
        self._phase, self._left, self._log = phase, number, log
        self._lock = threading.Lock()
        self._block = threading.local()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        path = arguments[1] if event in ("os.rename", "os.link") else arguments[0]
        if not isinstance(path, str):
            return
        phase = self._phase_of(event, path, arguments)
        if phase == self._phase:
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    with open(self._log, "a") as log:
                        log.write(f"{phase}: {event} {path}\n")
                    os.kill(os.getpid(), signal.SIGKILL)

    def _phase_of(self, event: str, path: str, arguments: tuple[Any, ...]) -> str | None:
        name, folder = os.path.basename(path), os.path.basename(os.path.dirname(path))
        inside = _OUT in os.path.abspath(path)
        if event == "os.remove" and name.startswith("_unfinished-"):
            return None  # left by an interrupted attempt
        if event in ("os.remove", "shutil.rmtree"):
            within_tree = len(arguments) > 1 and arguments[1] != -1 and name.endswith(".json")
            return "finish" if inside or within_tree else None
        if not inside or folder == "_runs":
            return None
        if name in ("parts.jsonl", "manifest.json", "_SUCCESS") or name.startswith("word_types"):
            return "finish" if event in ("os.rename", "os.link") or "w" in str(arguments[1]) else None
        begun = getattr(self._block, "begun", False)
        if event in ("os.rename", "os.link"):
            self._block.begun = folder != "_commits"
            return "block" if begun else None
        return "block" if begun and name.startswith("_unfinished-") else None


_phase, _number, _program = [*os.environ.get("KILL_AT", "").split(maxsplit=2), "", "", ""][:3]
if _phase and _program in " ".join(sys.orig_argv):
    sys.addaudithook(_Killer(_phase, int(_number), os.environ["KILL_LOG"]))
