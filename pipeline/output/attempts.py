"""Which attempts are active in an output folder, by their records in `_runs`.

Who runs an attempt is asked: this machine for its processes, Dataflow or a job server for a submitted job. A program on
another machine beats (`heartbeat`). All times that are compared are those of files in the folder, so that no clock but
its own counts.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.output.heartbeat import beat
from layerbeam.pipeline.output.jobs import DataflowJob, EngineJob
from layerbeam.pipeline.output.run_log import ACTIVE, RunLog, run_numbers
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout

# The state of an attempt that has a number and has not begun.
CLAIMED = "claimed"
# A program without a sign of life for so long is dead: on a slow store a few beats may be late.
_DEAD_AFTER_SECONDS = 150
# Of a job and of its record. In all other states the job is active, will be, or is about to end.
_ENDS = {"DONE": "done", "FAILED": "failed", "CANCELLED": "cancelled", "DRAINED": "cancelled", "UPDATED": "cancelled"}

# Of the attempts of this process.
held_tokens: set[str] = set()


def refuse_if_busy(
    output_path: str, number: int, *, locked: bool, force: bool = False, beam_options: Any = None
) -> None:
    """BusyError if an attempt before this one is active. Records how submitted jobs have ended.

    `locked`: whether this process holds the file lock, so that no other program is active on this disk. `force`: start
    although an earlier attempt may be active, if nobody knows. `beam_options`: for asking for a job. UsageError if this
    program cannot ask Dataflow; RuntimeError if that does not answer.
    """
    for record in _records(output_path, range(number - 1, 0, -1)):
        if record["state"] not in (CLAIMED, *ACTIVE):
            return
        if record["state"] == "submitted":
            end = _end_of_job(output_path, record, force=force, beam_options=beam_options)
            RunLog.end_unattended(output_path, record["run"], end)
        elif not (
            (locked and "runner" not in record)
            or (force and not _is_process_here(record.get("owner")))
            or _is_silent(output_path, record, number, locked=locked)
        ):
            raise BusyError(_busy(output_path, record))
        if record["state"] != CLAIMED:
            return  # as it began, none before it was active


def newer_attempt(output_path: str, number: int) -> int | None:
    """The number of a newer attempt that is active or has finalized the folder; None if there is none."""
    for record in _records(output_path, range(number + 1, sys.maxsize)):
        ended = record["state"] in ("done", "incomplete")
        if ended or (record["state"] in ACTIVE and _is_active(output_path, record, number)):
            return int(record["run"])
    return None


def seems_active(output_path: str) -> bool:
    """Whether the last attempt is active, as far as can be told without writing: by the clocks of both machines."""
    record = next(_records(output_path, range(sys.maxsize, 0, -1)), None)
    if record is None or record["state"] not in ACTIVE:
        return False
    if record["state"] == "submitted":
        return _is_active(output_path, record, record["run"])
    if _is_process_here(record.get("owner")):
        return not owner_is_dead(record["owner"])
    beaten = _modified(storage.join(output_path, layout.alive_path(record["run"])))
    return beaten is not None and time.time() - beaten < _DEAD_AFTER_SECONDS


def _is_active(output_path: str, record: Mapping[str, Any], number: int) -> bool:
    if record["state"] != "submitted":
        return not _is_silent(output_path, record, number)
    try:
        return _end_in(_job_of(record).state()) is None
    except (BusyError, UsageError, RuntimeError):  # nobody says that it has ended
        return True


def _records(output_path: str, numbers: range) -> Iterator[dict[str, Any]]:
    """The records of attempts with these numbers, in this order, also of those that have not begun.

    Those that are deleted meanwhile are skipped. A damaged one may be a claim that is being written, on a disk without
    links. One that cannot be read is an OSError: its attempt may be active.
    """
    found = filter(numbers.__contains__, run_numbers(output_path))
    for number in sorted(found, reverse=numbers.step < 0):
        path = storage.join(output_path, layout.run_path(number))
        try:
            record = storage.parse_json(storage.read_bytes(path))
        except OSError as error:
            if isinstance(error, FileNotFoundError) or not storage.exists(path):
                continue
            raise
        except ValueError:
            record = None
        is_record = isinstance(record, dict) and record.get("run") == number and "state" in record
        yield record if is_record else {"run": number, "state": CLAIMED}


def _job_of(record: Mapping[str, Any]) -> DataflowJob | EngineJob:
    return DataflowJob.of(record) or EngineJob.of(record)


def _end_in(state: str) -> str | None:
    """How a job in this state has ended, in the words of a run's record; None if it has not.

    >>> _end_in("JOB_STATE_DRAINED"), _end_in("DONE"), _end_in("CANCELLING")
    ('cancelled', 'done', None)
    """
    return _ENDS.get(state.removeprefix("JOB_STATE_"))


def _end_of_job(output_path: str, record: Mapping[str, Any], *, force: bool, beam_options: Any) -> str:
    """How the attempt's job has ended; `lost` if nobody knows, and `force`. BusyError if it has not ended."""
    job = _job_of(record)
    try:
        state = job.state(beam_options)
    except (BusyError, UsageError, RuntimeError) as error:
        if force:
            return "lost"
        raise type(error)(
            f"{output_path}: run {record['run']} was submitted as {job.name}, whose state is unknown: "
            f"{str(error).rstrip('.')}; look at {job.page}: if the job has ended, --force starts"
        ) from error
    end = _end_in(state)
    if end is None:
        raise BusyError(
            f"{output_path}: run {record['run']} is active in this folder, as {job.name} ({state}){job.advice}"
        )
    return end


def _is_silent(output_path: str, record: Mapping[str, Any], number: int, *, locked: bool = False) -> bool:
    """Whether the attempt's program shows no sign of life. `number`: of the attempt that asks."""
    if owner_is_dead(record.get("owner")):
        return True
    signs = [layout.alive_path(record["run"])]
    if not locked:  # else the program that wrote the record has ended
        signs.append(layout.run_path(record["run"]))
    times = [_modified(storage.join(output_path, path)) for path in signs]
    if times == [None] * len(times):
        return True
    own = storage.join(output_path, layout.alive_path(number))
    beat(own)
    now = _modified(own)
    # A time in the future is no sign of life either: it would hold the folder until then.
    return now is not None and all(time is None or abs(now - time) >= _DEAD_AFTER_SECONDS for time in times)


def _modified(path: str) -> float | None:
    """The time of a file; None if there is none. OSError if nobody knows."""
    file = storage.stat_if_exists(path)
    return None if file is None else file.modified


def _busy(output_path: str, record: Mapping[str, Any]) -> str:
    owner = record.get("owner")
    host = owner.get("host") if isinstance(owner, dict) else None
    # This machine's process ids tell if the attempt is active.
    forced = "" if _is_process_here(owner) else "; if you know that it has ended, --force starts"
    return (
        f"{output_path}: another run is active in this folder, on {host or 'some machine'}; wait for it or stop it (a "
        f"killed run is forgotten after {_DEAD_AFTER_SECONDS} s{forced})"
    )


def owner_of_this_process(token: str) -> dict[str, Any]:
    """Who works for an attempt."""
    return {"host": host_id(), "pid": os.getpid(), "token": token}


def host_id() -> str:
    """The machine, since it was started, or the container within which process ids are unique."""
    try:
        # The namespace has the same name on all machines, and so may the machines.
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{platform.node()} {boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _is_process_here(owner: Any) -> bool:
    return isinstance(owner, dict) and owner.get("host") == host_id() and isinstance(owner.get("pid"), int)


def owner_is_dead(owner: Any) -> bool:
    """Whether the owner was a process of this machine that has ended, or has let go in this process."""
    if not _is_process_here(owner):
        return False
    if owner["pid"] == os.getpid():
        return owner.get("token") not in held_tokens
    with contextlib.suppress(PermissionError, OverflowError):
        try:
            os.kill(owner["pid"], 0)
        except ProcessLookupError:
            return True
    return False
