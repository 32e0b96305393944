"""What each run did and how fast: `_runs/<n>.json`. Times, hosts and workers are here, never in the manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator
from typing_extensions import TypedDict

from layerbeam.pipeline.config.identity import RunIdentity
from layerbeam.pipeline.errors import BusyError
from layerbeam.pipeline.output.manifest import DescribedView, check_columns, load_manifest
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.settings import adapter

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


class _Inputs(TypedDict):
    files: int
    bytes: int
    compressed: bool


class _Pruned(TypedDict):
    files: int
    first: list[str]


class ShownRecord(RunIdentity):
    """What those rely on who show a record."""

    run: int
    state: str
    views: dict[str, Annotated[DescribedView, AfterValidator(check_columns)]]
    inputs: _Inputs | None
    job: NotRequired[str | None]
    runner: NotRequired[str]
    startup_seconds: NotRequired[float]
    pruned: NotRequired[_Pruned]
    counts: NotRequired[dict[str, int]]
    model_notes: NotRequired[list[str]]


class MeasuredRecord(ShownRecord):
    """The same of an attempt whose speed is known."""

    workers: int | None
    peak_memory_bytes: int
    seconds: float
    seconds_to_first_block: float | None
    tokens_per_second: float
    padding_share: float
    stage_shares: dict[str, float]


def load_run(output_path: str, number: int) -> RunRecord | None:
    """The record of one run; None if it is missing or damaged."""
    record: Any = storage.read_json(storage.join(output_path, layout.run_path(number)))
    try:
        adapter(RunRecord).validate_python(record, strict=True)
    except ValueError:
        return None
    return record  # type: ignore[no-any-return] # validated


def run_numbers(output_path: str) -> list[int]:
    """The numbers that attempts in the folder have taken, in order."""
    names = storage.file_names(storage.join(output_path, layout.RUNS))
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"([0-9]+)\.json", name)))


def load_runs(output_path: str) -> list[RunRecord]:
    """The records of all runs in the folder, oldest first; those that are damaged, or have not begun, are skipped."""
    return [record for number in run_numbers(output_path) if (record := load_run(output_path, number))]


def last_run(output_path: str) -> RunRecord | None:
    """The record of the last run in the folder; None if it holds no run.

    Without `_runs`, which people do not copy with their results, it is what the manifest tells.
    """
    runs = load_runs(output_path)
    manifest = None if runs else load_manifest(output_path)
    if manifest is None:
        return runs[-1] if runs else None
    # If it is complete and `_SUCCESS` is missing, a later run has begun.
    state = "started" if manifest["complete"] else "incomplete"
    record: Any = {**manifest, "run": 0, "state": state, "inputs": {}, "counts": {}}
    return record  # type: ignore[no-any-return] # a manifest has all that is in a record when a run begins


@dataclasses.dataclass
class RunLog:
    """The record of this run: written when it begins, and again with its result."""

    output_path: str
    record: dict[str, Any]
    _began: float = dataclasses.field(default_factory=time.time)
    _started: float = dataclasses.field(default_factory=time.monotonic)

    @staticmethod
    def begin(output_path: str, run_identity: Mapping[str, Any], *, run: int, **facts: Any) -> RunLog:
        """Write the first record of a run that has taken its number. OSError if the folder cannot be written."""
        record = {"run": run, "state": "started", "started": _now(), "host": platform.node(), **facts, **run_identity}
        log = RunLog(output_path, record)
        log.write()
        return log

    def end(self, state: str, **facts: Any) -> None:
        """Write it again with the state, such as `done` or `failed`, and further facts."""
        peak = _peak_memory_bytes() + (self.record.get("processes") or 0) * _max_rss(resource.RUSAGE_CHILDREN)
        self._end(state, peak_memory_bytes=peak, **facts)

    def end_measured(self, result: Any) -> bool:
        """Write it again with how fast the run was, by Beam's metrics; True if all of the input is embedded.

        BusyError if the run has left the folder to a newer one.
        """
        now = load_run(self.output_path, self.number)
        if now is not None and now["state"] == "superseded":
            raise BusyError(f"{self.output_path}: a newer run is active in this folder, and completes it")
        pruned = None if now is None else now.get("pruned")
        if pruned is not None:
            self.record["pruned"] = pruned
        try:
            found = result.metrics().query()
        except Exception:  # some runners have no metrics
            found = {"counters": [], "distributions": []}
        complete = storage.exists(storage.join(self.output_path, layout.SUCCESS))
        performance = _measure(found, seconds=time.monotonic() - self._started, began=self._began)
        self.end("done" if complete else "incomplete", **performance)
        return complete

    @staticmethod
    def end_unattended(output_path: str, number: int, state: str, **facts: Any) -> None:
        """End the record of a run for the program that submitted it, unless that did so already.

        `state`: as for `end`; `done` becomes `incomplete` if the folder lacks its marker. `facts`: that only the end
        knows.
        """
        record = load_run(output_path, number)
        if record is not None and record["state"] in ACTIVE:
            if state == "done" and not storage.exists(storage.join(output_path, layout.SUCCESS)):
                state = "incomplete"
            RunLog(output_path, dict(record))._end(state, **facts)

    def _end(self, state: str, **facts: Any) -> None:
        self.record |= {"state": state, "ended": _now(), **facts}
        self.write()
        storage.delete_files(self.output_path, [layout.alive_path(self.number)])

    def submit(self, **job: str | None) -> None:
        """Record that a runner has the job, unless the job has ended already."""
        now = load_run(self.output_path, self.number) or self.record
        self.record = {**now, **job, "state": "submitted" if now["state"] == "started" else now["state"]}
        self.write()

    def times(self) -> str:
        """`11.4 s (9.3 s of start-up)`."""
        startup = self.record["startup_seconds"]
        return f"{startup + self.record['seconds']:.1f} s ({startup:.1f} s of start-up)"

    @property
    def number(self) -> int:
        return int(self.record["run"])

    def write(self) -> None:
        path = storage.join(self.output_path, layout.run_path(self.number))
        with storage.write_atomically(path) as file:
            file.write(json.dumps(self.record, indent=1).encode("ascii") + b"\n")


def _measure(found: Mapping[str, Any], *, seconds: float, began: float) -> dict[str, Any]:
    """The entries of a record for wall time, tokens per second, padding and shares of the stages.

    `found`: Beam's metrics; `began`: seconds since the epoch. `seconds_to_first_block`: until the encoder was loaded
    and had its first block. `stage_shares`: of the busy time of all threads; waiting does not count.
    """
    # `result` is the attempted value if the engine, such as Spark, does not report the committed one. Several steps may
    # have a counter of the same name.
    values = Counter[str]()
    for counter in found["counters"]:
        if counter.key.metric.namespace == metrics.NAMESPACE:
            values[counter.key.metric.name] += counter.result or 0
    # Without a block to encode there is no distribution, or one without a minimum.
    began_at = (m.result for m in found["distributions"] if m.key.metric.name == metrics.ENCODING_BEGAN)
    first = getattr(next(began_at, None), "min", None)
    busy = {stage: values.get(name, 0) for stage, name in metrics.STAGES.items()}
    encoded, padded = values.get(metrics.ENCODED_TOKENS, 0), values.get(metrics.PADDED_TOKENS, 0)
    return {
        "seconds": round(seconds, 2),
        "seconds_to_first_block": None if first is None else round(max(first / 1000 - began, 0.0), 2),
        "tokens_per_second": round(encoded / seconds, 1) if seconds else 0.0,
        "padding_share": round(1 - encoded / padded, 4) if padded else 0.0,
        "stage_shares": {stage: round(spent / (sum(busy.values()) or 1), 4) for stage, spent in busy.items()},
        "counts": dict(values),
    }


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
