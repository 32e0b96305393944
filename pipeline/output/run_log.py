"""What one start of the program did: `_runs/<n>.json`. Times, hosts and workers stand here, never in the manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from layerbeam.transforms import storage
from layerbeam.transforms.write.block import TEMPORARY

RUNS = "_runs"
# States of a start that has not ended, or died.
AT_WORK = ("started", "submitted")


def load_runs(output_path: str) -> list[dict[str, Any]]:
    """The records of all starts, oldest first; one that is damaged is passed over."""
    folder = storage.join(output_path, RUNS)
    numbers = sorted(int(name[:-5]) for name in storage.list_folder(folder) if name[:-5].isdigit())
    records = (storage.read_json(storage.join(folder, f"{number}.json")) for number in numbers)
    needed = {"run", "state", "fingerprint", "identity", "views", "encoder", "inputs"}
    return [record for record in records if record is not None and needed <= record.keys()]


@dataclasses.dataclass
class RunLog:
    """The record of this start: written when it begins, and again with what came of it."""

    output_path: str
    record: dict[str, Any]

    @staticmethod
    def begin(output_path: str, head: dict[str, Any], **facts: Any) -> RunLog:
        """Write the first record. OSError where the folder cannot be written."""
        number = 1 + max((run["run"] for run in load_runs(output_path)), default=0)
        record = {"run": number, "state": "started", "started": _now(), "host": platform.node(), **facts, **head}
        log = RunLog(output_path, record)
        log.write()
        return log

    def end(self, state: str, **facts: Any) -> None:
        """Write it again with the state (`done`, `incomplete`, `failed`, `interrupted`) and what is known now."""
        peak = _peak_memory_bytes() + (self.record.get("processes") or 0) * _peak_of_a_child()
        self.record |= {"state": state, "ended": _now(), "peak_memory_bytes": peak, **facts}
        self.write()

    def submit(self, job: str | None) -> None:
        """Note that a runner has the job, unless that has ended already."""
        now = storage.read_json(storage.join(self.output_path, RUNS, f"{self.number}.json")) or self.record
        self.record = now | {"job": job, "state": "submitted" if now["state"] == "started" else now["state"]}
        self.write()

    @property
    def number(self) -> int:
        """Which start of those in this folder."""
        return int(self.record["run"])

    def write(self) -> None:
        """Write the record as it is."""
        folder = storage.join(self.output_path, RUNS)
        path = storage.join(folder, f"{self.record['run']}.json")
        temporary = storage.join(self.output_path, TEMPORARY)
        with storage.write_whole(path, temporary=temporary) as file:
            file.write(json.dumps(self.record, indent=1).encode("ascii") + b"\n")
        storage.delete_empty_folder(temporary)


def _peak_memory_bytes() -> int:
    """The most that this process has held; ru_maxrss counts what its parent held when it started it, too."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return _max_rss(resource.RUSAGE_SELF)


def _peak_of_a_child() -> int:
    """The most that any one process started by this one has held."""
    return _max_rss(resource.RUSAGE_CHILDREN)


def _max_rss(whose: int) -> int:
    return resource.getrusage(whose).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class RefuseIfSuperseded(beam.DoFn):
    """Passes on what comes, unless a newer start is at work in the folder: who ends a run clears away what lies about.

    A job whose launcher was interrupted may go on, and holds no lock. RuntimeError then: the newer one makes the end.
    """

    def __init__(self, output_path: str, number: int) -> None:
        self._output_path = output_path
        self._number = number

    def process(self, element: Any) -> Iterator[Any]:
        for run in load_runs(self._output_path):
            if run["run"] > self._number and run["state"] in AT_WORK:
                raise RuntimeError(f"start {run['run']} is at work in {self._output_path}, and is newer; it goes on")
        yield element


class RecordRunEnd(beam.DoFn):
    """Manifest -> manifest, noted as the end of a start: by the pipeline itself, as who submitted it may have left.

    Who has waited writes the record once more, with what only it knows.
    """

    def __init__(self, output_path: str, number: int) -> None:
        self._output_path = output_path
        self._number = number

    def process(self, manifest: str) -> Iterator[str]:
        record = storage.read_json(storage.join(self._output_path, RUNS, f"{self._number}.json"))
        if record is not None and record["state"] in AT_WORK:
            state = "done" if json.loads(manifest)["complete"] else "incomplete"
            RunLog(self._output_path, record | {"state": state, "ended": _now()}).write()
        yield manifest
