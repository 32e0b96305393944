"""Which attempts are active, and what becomes of the records of those that are not."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_api
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_service
from ports import free_port
from tampering import age

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.output.attempts import newer_attempt, owner_of_this_process, seems_active
from layerbeam.pipeline.output.jobs import DataflowJob
from layerbeam.pipeline.output.lock import only_writer
from layerbeam.pipeline.output.run_log import RunLog, load_runs

HEAD = {"fingerprint": "f", "identity": {}, "encoder": {}}
ON_DATAFLOW = {"runner": "DataflowRunner", "job": "2026-01-01_00_00_00-7", "project": "proj", "region": "r1"}


@dataclasses.dataclass
class JobServer(job_service.JobServiceServicer):
    """A job server that answers for its jobs. `unknown`: what it answers for others."""

    jobs: dict[str, str] = dataclasses.field(default_factory=dict)
    unknown: grpc.StatusCode = grpc.StatusCode.NOT_FOUND
    asked: list[str] = dataclasses.field(default_factory=list)

    def GetState(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request.job_id)
        if request.job_id not in self.jobs:
            context.abort(self.unknown, "")
        return job_api.JobStateEvent(state=self.jobs[request.job_id])


@contextlib.contextmanager
def serve(servicer: JobServer) -> Iterator[str]:
    """Gives its host:port."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    job_service.add_JobServiceServicer_to_server(servicer, server)
    endpoint = f"localhost:{free_port()}"
    server.add_insecure_port(endpoint)
    server.start()
    try:
        yield endpoint
    finally:
        server.stop(None).wait()


def on_flink(endpoint: str | None, job: str | None = "job-7") -> dict[str, Any]:
    return {"runner": "FlinkRunner", "job": job, "endpoint": endpoint}


def options(endpoint: str) -> PipelineOptions:
    return PipelineOptions([f"--job_endpoint={endpoint}"])


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


def refusal(out: str, **given: Any) -> str:
    """Why no attempt can start."""
    with pytest.raises(BusyError) as refused, only_writer(out, **given):
        pass
    return str(refused.value)


def answers(monkeypatch: pytest.MonkeyPatch, state: str | Exception) -> None:
    """Dataflow gives this state of any job."""

    def ask(self: DataflowJob, options: Any = None) -> str:
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
    with pytest.raises(BusyError, match="run 2 was submitted as a job on FlinkRunner"), only_writer(out):
        pass
    assert dead.exists()


@pytest.mark.parametrize("state", ["STOPPED", "STARTING", "RUNNING", "UPDATING", "DRAINING", "CANCELLING"])
def test_a_job_that_is_at_work_by_its_job_server_is_named(out, state):
    """`STOPPED` is that of a job that has not yet started."""
    with serve(JobServer({"job-7": state})) as endpoint:
        attempt(out, 1, "submitted", silent=90_000, **on_flink(endpoint))
        assert refusal(out) == refusal(out, force=True)
        assert refusal(out) == (
            f"{out}: run 1 is active in this folder, as job job-7 on FlinkRunner ({state}); wait for it, or stop it on "
            "the engine's page"
        )
    assert states(out) == ["submitted"]


@pytest.mark.parametrize(
    ("state", "marker", "recorded"),
    [
        ("CANCELLED", False, "cancelled"),
        ("DRAINED", False, "cancelled"),
        ("UPDATED", False, "cancelled"),
        ("FAILED", False, "failed"),
        ("DONE", False, "incomplete"),
        ("DONE", True, "done"),
    ],
)
def test_the_end_of_a_job_on_an_engine_is_recorded(out, state, marker, recorded):
    if marker:
        Path(out, "_SUCCESS").touch()
    with serve(JobServer({"job-7": state})) as endpoint:
        attempt(out, 1, "submitted", **on_flink(endpoint))
        with only_writer(out) as claim:
            assert claim["run"] == 2
            assert states(out) == [recorded]


@pytest.mark.parametrize(
    ("servicer", "reason"),
    [
        (JobServer(), "does not know it"),
        (JobServer(unknown=grpc.StatusCode.UNKNOWN), "does not know it"),  # as Beam's in Python
        (JobServer(unknown=grpc.StatusCode.UNIMPLEMENTED), "does not answer"),  # another server
        (JobServer({"job-7": "UNSPECIFIED"}), "does not know its state"),
    ],
)
def test_a_job_that_its_job_server_does_not_know_needs_force(out, servicer, reason):
    with serve(servicer) as endpoint:
        attempt(out, 1, "submitted", silent=90_000, **on_flink(endpoint))
        assert refusal(out) == (
            f"{out}: run 1 was submitted as job job-7 on FlinkRunner, whose state is unknown: the job server at "
            f"{endpoint} {reason}; look at the engine's page: if the job has ended, --force starts"
        )
        with only_writer(out, force=True):
            assert states(out) == ["lost"]


@pytest.mark.parametrize("endpoint", [None, "here", "unix:/tmp/socket"])
def test_a_job_without_a_job_server_needs_force(out, endpoint):
    attempt(out, 1, "submitted", silent=90_000, **on_flink(endpoint))
    assert "job-7 on FlinkRunner, whose state is unknown: nobody can be asked; look at" in refusal(out)
    with only_writer(out, force=True):
        assert states(out) == ["lost"]


def test_a_job_server_that_does_not_answer_and_the_one_of_the_new_command(out):
    closed = f"localhost:{free_port()}"
    attempt(out, 1, "submitted", **on_flink(closed))
    assert f": the job server at {closed} does not answer; look at" in refusal(out)
    with serve(JobServer()) as other:
        why = refusal(out, beam_options=options(other))
    assert f": the job server at {other} does not know it and that at {closed} does not answer; look at" in why
    with serve(JobServer({"job-7": "RUNNING"})) as moved:
        assert "(RUNNING)" in refusal(out, beam_options=options(moved), force=True)
    assert states(out) == ["submitted"]


def test_the_job_server_of_the_new_command_is_not_asked_for_a_job_without_id(out):
    servicer = JobServer()
    attempt(out, 1, "submitted", **on_flink(None, job=None))
    with serve(servicer) as endpoint:
        why = refusal(out, beam_options=options(endpoint))
    assert "was submitted as a job on FlinkRunner, whose state is unknown: nobody can be asked" in why
    assert servicer.asked == []


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


@pytest.mark.parametrize("kind", [BusyError, UsageError, RuntimeError])
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


def test_a_newer_program_supersedes_while_it_gives_signs_of_life(out):
    attempt(out, 1, "submitted")
    program = attempt(out, 2, "started", silent=149)
    assert newer_attempt(out, 1) == 2
    age(program, 151)
    assert newer_attempt(out, 1) is None


@pytest.mark.parametrize(("state", "newer"), [("RUNNING", 2), ("CANCELLED", None), ("FAILED", None), ("DONE", None)])
def test_a_newer_job_on_an_engine_supersedes_until_its_job_server_says_that_it_has_ended(out, state, newer):
    attempt(out, 1, "submitted")
    with serve(JobServer({"job-7": state})) as endpoint:
        attempt(out, 2, "submitted", silent=90_000, **on_flink(endpoint))
        assert newer_attempt(out, 1) == newer
    assert newer_attempt(out, 1) == 2  # nobody answers


@pytest.mark.parametrize(
    ("state", "newer"),
    [
        ("JOB_STATE_RUNNING", 2),
        ("JOB_STATE_CANCELLED", None),
        ("JOB_STATE_FAILED", None),
        (RuntimeError("no permission"), 2),
        (BusyError("Dataflow does not know it"), 2),
    ],
)
def test_a_newer_dataflow_job_supersedes_while_it_is_at_work(out, monkeypatch, state, newer):
    """A cancelled one stays `submitted` in its record: nobody waits for it."""
    attempt(out, 1, "submitted")
    attempt(out, 2, "submitted", **ON_DATAFLOW)
    answers(monkeypatch, state)
    assert newer_attempt(out, 1) == newer


def owner(**other: Any) -> dict[str, Any]:
    return owner_of_this_process("a token") | other


def test_what_a_monitor_is_told(out):
    """Nothing is written."""
    assert not seems_active(out)
    for number, (state, facts, is_active) in enumerate(
        [
            ("done", {"owner": owner()}, False),
            ("started", {"owner": owner()}, False),  # it has let go
            ("started", {"owner": owner(pid=os.getppid())}, True),
            ("started", {"owner": owner(host="another one")}, False),  # without a beat
            ("submitted", on_flink("localhost:1"), True),  # nobody says that it has ended
        ],
        start=1,
    ):
        attempt(out, number, state, **facts)
        assert seems_active(out) == is_active, number
    for seconds, is_active in ((0, True), (1000, False)):
        path = attempt(out, 9, "started", owner=owner(host="another one"))
        beat = path.parent / "9.alive"
        beat.touch()
        age(beat, seconds)
        assert seems_active(out) == is_active
    assert sorted(path.name for path in path.parent.iterdir() if path.suffix != ".json") == ["9.alive"]
