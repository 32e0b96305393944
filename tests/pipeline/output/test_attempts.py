"""Which attempts are active, and what becomes of the records of those that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tampering import age

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.output.attempts import newer_attempt
from layerbeam.pipeline.output.dataflow_jobs import DataflowJob
from layerbeam.pipeline.output.lock import only_writer
from layerbeam.pipeline.output.run_log import RunLog, load_runs

HEAD = {"fingerprint": "f", "identity": {}, "encoder": {}}
ON_DATAFLOW = {"runner": "DataflowRunner", "job": "2026-01-01_00_00_00-7", "project": "proj", "region": "r1"}


@pytest.fixture
def out(tmp_path) -> str:
    return str(tmp_path)


def attempt(out: str, number: int, state: str, *, silent: float = 0, **facts: Any) -> Path:
    """The record of an attempt without a sign of life for so many seconds."""
    RunLog.begin(out, HEAD, run=number, views={}, inputs={}, **facts)
    path = Path(out, f"_runs/{number}.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state": state}))
    age(path, silent)
    return path


def states(out: str) -> list[str]:
    return [run["state"] for run in load_runs(out)]


def answers(monkeypatch: pytest.MonkeyPatch, state: str | Exception | None) -> None:
    """Dataflow gives this state of any job."""

    def ask(self: DataflowJob, options: Any = None) -> str | None:
        if isinstance(state, Exception):
            raise state
        return state

    monkeypatch.setattr(DataflowJob, "state", ask)


@pytest.mark.parametrize("state", ["done", "incomplete", "failed", "interrupted", "cancelled", "lost", "superseded"])
def test_an_attempt_that_has_ended_is_no_obstacle(out, state):
    attempt(out, 3, state, runner="FlinkRunner")
    with only_writer(out) as claim:
        assert claim["run"] == 4
    assert states(out) == [state]


def test_a_killed_local_run_is_no_obstacle_for_who_holds_the_file_lock(out):
    attempt(out, 1, "started", owner={"host": "elsewhere", "pid": 1})
    with only_writer(out):
        pass
    assert states(out) == ["started"]


def test_only_the_last_attempt_that_began_counts_and_those_with_a_number_after_it(out):
    """When it began, none before it was active."""
    attempt(out, 1, "submitted", runner="FlinkRunner")
    attempt(out, 2, "failed", runner="FlinkRunner")
    dead = attempt(out, 3, "claimed")
    with only_writer(out) as claim:
        assert claim["run"] == 4
    attempt(out, 2, "submitted", runner="FlinkRunner")
    with pytest.raises(BusyError, match="run 2 is active"), only_writer(out):
        pass
    assert dead.exists()


def test_a_job_of_an_engine_is_at_work_while_its_record_is_young(out):
    attempt(out, 1, "submitted", runner="FlinkRunner", silent=590)
    with pytest.raises(BusyError) as refused, only_writer(out):
        pass
    assert str(refused.value) == (
        f"{out}: run 1 is active in this folder, on FlinkRunner; wait for it or stop it (a job without a sign of life "
        "is forgotten after 600 s; if you know that it has ended, --force starts)"
    )
    assert states(out) == ["submitted"]
    with only_writer(out, force=True):
        assert states(out) == ["lost"]


def test_a_job_of_an_engine_is_at_work_while_its_workers_beat(out):
    attempt(out, 1, "submitted", runner="FlinkRunner", silent=9000)
    alive = Path(out, "_runs/1.alive")
    alive.touch()
    age(alive, 590)
    with pytest.raises(BusyError, match="run 1 is active in this folder, on FlinkRunner"), only_writer(out):
        pass
    age(alive, 610)
    with only_writer(out):
        assert states(out) == ["lost"]
    assert not alive.exists()


@pytest.mark.parametrize(
    "state",
    ["JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_DRAINING", "JOB_STATE_CANCELLING"],
)
def test_a_dataflow_job_at_work_is_named_with_its_page_and_how_to_cancel_it(out, monkeypatch, state):
    attempt(out, 2, "submitted", silent=90_000, **ON_DATAFLOW)
    answers(monkeypatch, state)
    for force in (False, True):
        with pytest.raises(BusyError) as refused, only_writer(out, force=force):
            pass
    assert str(refused.value) == (
        f"{out}: run 2 is active in this folder, as Dataflow job 2026-01-01_00_00_00-7 ({state}): "
        "https://console.cloud.google.com/dataflow/jobs/r1/2026-01-01_00_00_00-7?project=proj\n"
        "wait for it, or stop it: gcloud dataflow jobs cancel 2026-01-01_00_00_00-7 --region=r1 --project=proj"
    )


@pytest.mark.parametrize(
    ("state", "marker", "recorded"),
    [
        ("JOB_STATE_CANCELLED", False, "cancelled"),
        ("JOB_STATE_DRAINED", False, "cancelled"),
        ("JOB_STATE_FAILED", False, "failed"),
        ("JOB_STATE_DONE", False, "incomplete"),
        ("JOB_STATE_DONE", True, "done"),
    ],
)
def test_the_end_of_a_dataflow_job_is_recorded(out, monkeypatch, state, marker, recorded):
    attempt(out, 1, "submitted", **ON_DATAFLOW)
    if marker:
        Path(out, "_SUCCESS").touch()
    answers(monkeypatch, state)
    with only_writer(out) as claim:
        assert claim["run"] == 2
        assert states(out) == [recorded]


def test_a_job_that_dataflow_does_not_know_is_judged_by_its_signs_of_life(out, monkeypatch):
    record = attempt(out, 1, "submitted", **ON_DATAFLOW)
    answers(monkeypatch, None)
    with pytest.raises(BusyError, match="a job without a sign of life is forgotten after 600 s"), only_writer(out):
        pass
    age(record, 601)
    with only_writer(out):
        assert states(out) == ["lost"]


@pytest.mark.parametrize("kind", [UsageError, RuntimeError])
def test_a_job_that_nobody_can_ask_for_is_an_error_unless_forced(out, monkeypatch, kind):
    attempt(out, 1, "submitted", **ON_DATAFLOW)
    answers(monkeypatch, kind("no permission"))
    with pytest.raises(kind) as refused, only_writer(out):
        pass
    assert str(refused.value) == (
        f"{out}: run 1 was submitted as Dataflow job 2026-01-01_00_00_00-7, whose state is unknown: no permission; "
        "look at https://console.cloud.google.com/dataflow/jobs/r1/2026-01-01_00_00_00-7?project=proj: if the job has "
        "ended, --force starts"
    )
    with only_writer(out, force=True):
        assert states(out) == ["lost"]


def test_a_record_cannot_send_the_question_elsewhere(out):
    for name in ("job", "project", "region"):
        assert DataflowJob.of(ON_DATAFLOW | {name: "a/../b?c"}) is None
        assert DataflowJob.of(ON_DATAFLOW | {name: None}) is None
    assert DataflowJob.of(ON_DATAFLOW | {"project": "example.org:p"}) is not None
    assert DataflowJob.of(ON_DATAFLOW | {"runner": "FlinkRunner"}) is None


@pytest.mark.parametrize(
    ("states", "newer"),
    [(["done", "incomplete"], 2), (["failed", "interrupted", "cancelled", "lost", "superseded", "claimed"], None)],
)
def test_only_a_newer_attempt_that_has_finalized_the_folder_supersedes(out, states, newer):
    attempt(out, 1, "submitted")
    for state in states:
        attempt(out, 2, state, silent=9000 if newer else 0)
        assert newer_attempt(out, 1) == newer
        assert newer_attempt(out, 2) is None


def test_a_newer_attempt_supersedes_while_it_gives_signs_of_life(out):
    attempt(out, 1, "submitted")
    program = attempt(out, 2, "started", silent=149)
    assert newer_attempt(out, 1) == 2
    age(program, 151)
    assert newer_attempt(out, 1) is None
    job = attempt(out, 3, "submitted", silent=599, runner="FlinkRunner")
    assert newer_attempt(out, 1) == 3
    age(job, 601)
    assert newer_attempt(out, 1) is None


@pytest.mark.parametrize(
    ("state", "newer"),
    [
        ("JOB_STATE_RUNNING", 2),
        ("JOB_STATE_CANCELLED", None),
        ("JOB_STATE_FAILED", None),
        (RuntimeError("no permission"), 2),  # its record is young
    ],
)
def test_a_newer_dataflow_job_supersedes_while_it_is_at_work(out, monkeypatch, state, newer):
    """A cancelled one stays `submitted` in its record: nobody waits for it."""
    attempt(out, 1, "submitted")
    attempt(out, 2, "submitted", **ON_DATAFLOW)
    answers(monkeypatch, state)
    assert newer_attempt(out, 1) == newer
