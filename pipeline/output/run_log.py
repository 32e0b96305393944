"""What each run did: `_runs/<n>.json`. Times, hosts and workers are recorded here, never in the manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import resource
import sys
import time
from typing import Any

from typing_extensions import TypedDict

from layerbeam.transforms import storage
from layerbeam.transforms.commits import adapter
from layerbeam.transforms.layout import RUNS, TEMPORARY, run_path

# States of a run that is active, or died.
ACTIVE = ("started", "submitted")


class RunRecord(TypedDict):
    """What readers of a record rely on. It holds more: all of `RunIdentity`, and what is known of time and workers."""

    run: int
    state: str
    fingerprint: str
    identity: dict[str, Any]
    views: dict[str, dict[str, Any]]
    encoder: dict[str, Any]
    inputs: dict[str, Any]


def load_run(output_path: str, number: int) -> RunRecord | None:
    """The record of one run; None if it is missing or damaged."""
    record: Any = storage.read_json(storage.join(output_path, run_path(number)))
    try:
        adapter(RunRecord).validate_python(record, strict=True)
    except ValueError:
        return None
    return record  # type: ignore[no-any-return] # validated


def load_runs(output_path: str) -> list[RunRecord]:
    """The records of all runs in the folder, oldest first; damaged ones are skipped."""
    names = storage.list_folder(storage.join(output_path, RUNS))
    numbers = sorted(int(name[:-5]) for name in names if name[:-5].isdigit())
    return [record for number in numbers if (record := load_run(output_path, number))]


@dataclasses.dataclass
class RunLog:
    """The record of this run: written when it begins, and again with its result."""

    output_path: str
    record: dict[str, Any]

    @staticmethod
    def begin(output_path: str, head: dict[str, Any], **facts: Any) -> RunLog:
        """Write the first record. OSError if the folder cannot be written."""
        number = 1 + max((run["run"] for run in load_runs(output_path)), default=0)
        record = {"run": number, "state": "started", "started": _now(), "host": platform.node(), **facts, **head}
        log = RunLog(output_path, record)
        log.write()
        return log

    def end(self, state: str, **facts: Any) -> None:
        """Write it again with the state (`done`, `incomplete`, `failed`, `interrupted`) and further facts."""
        peak = _peak_memory_bytes() + (self.record.get("processes") or 0) * _max_rss(resource.RUSAGE_CHILDREN)
        self.record |= {"state": state, "ended": _now(), "peak_memory_bytes": peak, **facts}
        self.write()

    @staticmethod
    def end_unattended(output_path: str, number: int, *, complete: bool) -> None:
        """End the record of a run from inside its pipeline, unless the program that submitted it did so already."""
        record = load_run(output_path, number)
        if record is not None and record["state"] in ACTIVE:
            state = "done" if complete else "incomplete"
            RunLog(output_path, {**record, "state": state, "ended": _now()}).write()

    def submit(self, job: str | None) -> None:
        """Record that a runner has the job, unless the job has ended already."""
        now = load_run(self.output_path, self.number) or self.record
        self.record = {**now, "job": job, "state": "submitted" if now["state"] == "started" else now["state"]}
        self.write()

    @property
    def number(self) -> int:
        """The number of this run in its folder, from 1."""
        return int(self.record["run"])

    def write(self) -> None:
        """Write the record as it is."""
        path = storage.join(self.output_path, run_path(self.number))
        temporary = storage.join(self.output_path, TEMPORARY)
        with storage.write_whole(path, temporary=temporary) as file:
            file.write(json.dumps(self.record, indent=1).encode("ascii") + b"\n")
        storage.delete_empty_folder(temporary)


def _peak_memory_bytes() -> int:
    """The peak of this process. Its ru_maxrss would include what its parent held when it started it."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return _max_rss(resource.RUSAGE_SELF)


def _max_rss(whose: int) -> int:
    """Bytes; for children that of the largest one."""
    return resource.getrusage(whose).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
