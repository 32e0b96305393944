"""Python imports this when it starts with the folder on PYTHONPATH: it notes each time a worker opens the corpus.

Where lines are records a worker opens a file once for each range that it scans and, when all are scanned, once for each
block that it begins. What is noted is on the disk also when the process is killed at once.
"""

from __future__ import annotations

import os
import sys
from typing import Any


class _Note:
    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[0] == os.path.join("corpus", "a.txt"):
            os.write(self._log, f"{os.getpid()}\n".encode())


if "layerbeam.pipeline.run.worker_process" in " ".join(sys.orig_argv) and "BLOCKS_BEGUN" in os.environ:
    sys.addaudithook(_Note(os.environ["BLOCKS_BEGUN"]))
