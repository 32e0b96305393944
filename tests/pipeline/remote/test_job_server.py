"""What a job server is asked before a job is submitted to it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_api
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_service
from apache_beam.portability.api import endpoints_pb2
from ports import free_port
from workplace import Workplace

from layerbeam.pipeline.commands.beam_options import as_arguments, check_arguments
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.remote.job_server import active_job, mistakes_in, pool_note

# Not loopback by its name, and this machine all the same.
HOST = socket.gethostname()
OPTIONS = {
    "execution_mode_for_batch": job_api.PipelineOptionType.STRING,
    "object_reuse": job_api.PipelineOptionType.BOOLEAN,
    "number_of_execution_retries": job_api.PipelineOptionType.INTEGER,
    "runner": job_api.PipelineOptionType.STRING,  # Beam's Python has it, too
}


@dataclasses.dataclass
class JobServer(job_service.JobServiceServicer):
    """A job server of an engine, as far as it is asked."""

    staging: str
    submitted: list[str] = dataclasses.field(default_factory=list)
    jobs: list[job_api.JobInfo] = dataclasses.field(default_factory=list)

    def DescribePipelineOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = [job_api.PipelineOptionDescriptor(name=name, type=type_) for name, type_ in OPTIONS.items()]
        return job_api.DescribePipelineOptionsResponse(options=found)

    def Prepare(self, request: Any, context: Any) -> Any:  # noqa: N802
        staging = endpoints_pb2.ApiServiceDescriptor(url=self.staging)
        return job_api.PrepareJobResponse(preparation_id="1", artifact_staging_endpoint=staging)

    def GetJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        return job_api.GetJobsResponse(job_info=self.jobs)

    def Run(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.submitted.append(request.preparation_id)


@contextlib.contextmanager
def serve(servicer: JobServer | None) -> Iterator[int]:
    """Yields the port. None: a gRPC server of something else."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    if servicer is not None:
        job_service.add_JobServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def mistakes(*arguments: str) -> list[str]:
    return list(mistakes_in(PipelineOptions([*arguments])))


LOOPBACK = "--environment_type=LOOPBACK"


def test_a_server_that_is_right_gets_no_job():
    servicer = JobServer("")
    with serve(servicer) as port:
        assert mistakes(f"--job_endpoint=localhost:{port}", LOOPBACK) == []
    assert servicer.submitted == []


def test_another_grpc_server():
    with serve(None) as port:
        (mistake,) = mistakes(f"--job_endpoint=localhost:{port}", LOOPBACK)
    assert mistake == (
        f"beam.job_endpoint: localhost:{port}: no job server answers there (what listens there is not Beam's job "
        "service: UNIMPLEMENTED); start it, or give its host:port (docs/runners.md)"
    )


def test_files_that_the_server_wants_on_this_machine():
    """Without --job-host a job server on another machine says so."""
    with serve(JobServer("localhost:8098")) as port:
        given = [f"--job_endpoint={HOST}:{port}", "--environment_type=DOCKER"]
        (mistake,) = mistakes(*given)
        staging = f"--artifact_endpoint=localhost:{port}"
        assert mistakes(*given, staging) == []
    assert mistake == (
        f"beam.job_endpoint: {HOST}:{port}: the job server wants files at localhost:8098, which is this machine and "
        f"not the server's; start it with --job-host={HOST} and an --artifact-port that is not 0, or give its address: "
        f"--artifact_endpoint={HOST}:PORT"
    )


def test_a_closed_port_for_files():
    closed = f"{HOST}:{free_port()}"
    with serve(JobServer(closed)) as port:
        (mistake,) = mistakes(f"--job_endpoint={HOST}:{port}", "--environment_type=DOCKER")
    assert mistake == (
        f"beam.artifact_endpoint: {closed}: files cannot be staged there (Connection refused); open the port"
    )


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        ([], "beam.environment_type: is missing; it says where workers come from: EXTERNAL with environment_config=HO"),
        (["--environment_type=EXTERNAL"], "beam.environment_config: is missing; environment_type is one of: EXTERNAL"),
        (["--environment_type=PROCESS"], "beam.environment_config: is missing; environment_type is one of: EXTERNAL"),
        (
            ["--environment_type=PROCESS", "--environment_config=/opt/boot"],
            "beam.environment_config: /opt/boot: PROCESS wants a JSON object with the program that starts a worker: {",
        ),
        (
            ["--environment_type=EXTERNAL", f"--environment_config={HOST}:1"],
            f"beam.environment_config: {HOST}:1: no worker pool answers there (Connection refused); start it",
        ),
        (
            ["--environment_type=EXTERNAL", f'--environment_config={{"url": "{HOST}:1"}}'],
            f'beam.environment_config: {{"url": "{HOST}:1"}}: no worker pool answers there (Connection refused); start',
        ),
        ([LOOPBACK], "beam.environment_type: LOOPBACK: the workers are this program, and the engine behind "),
    ],
)
def test_workers_that_cannot_be_there(arguments, mistake):
    with serve(JobServer("")) as port:
        (found,) = mistakes(f"--job_endpoint={HOST}:{port}", *arguments)
    assert found.startswith(mistake)


def test_worker_pool_missing_on_this_machine_is_accepted():
    """As with a forwarded port of a job server on Kubernetes."""
    with serve(JobServer("")) as port:
        given = [f"--job_endpoint=localhost:{port}", "--environment_type=EXTERNAL"]
        assert mistakes(*given, "--environment_config=localhost:1") == []
        note = pool_note(PipelineOptions([*given, "--environment_config=localhost:1"]))
        assert pool_note(PipelineOptions([*given, f"--environment_config=localhost:{port}"])) is None
        boot = ["--environment_type=PROCESS", '--environment_config={"command": "/boot"}']
        assert pool_note(PipelineOptions([*given[:1], *boot])) is None
    assert note == (
        "beam.environment_config: no worker pool at localhost:1 here; each machine of the engine needs one there"
    )


def test_job_at_work():
    ended = job_api.JobInfo(job_name="first", state=job_api.JobState.FAILED)
    runs = job_api.JobInfo(job_name="second", state=job_api.JobState.RUNNING)
    with serve(JobServer("", jobs=[ended, runs])) as port:
        assert active_job(f"localhost:{port}") == "second"
    with serve(JobServer("", jobs=[ended])) as port:
        assert active_job(f"localhost:{port}") is None


def test_options_of_the_engine():
    with serve(JobServer("")) as port:
        endpoint = f"localhost:{port}"
        given = ["--execution_mode_for_batch=BATCH_FORCED", "--object_reuse", "--number_of_execution_retries=3"]
        settings = {"execution_mode_for_batch": "BATCH_FORCED", "object_reuse": True, "number_of_execution_retries": 3}
        assert as_arguments(settings, endpoint) == given
        check_arguments(given, (), endpoint)
        with pytest.raises(UsageError, match="--object_rouse: none of layerbeam, Beam and the job server has such an"):
            check_arguments(["--object_rouse"], (), endpoint)
        with pytest.raises(UsageError, match=r"beam\.rouse: neither Beam nor the job server has such an option"):
            as_arguments({"rouse": 1}, endpoint)
    with pytest.raises(UsageError, match="--object_reuse: neither layerbeam nor Beam has such an option"):
        check_arguments(["--object_reuse"], ())


def test_options_of_an_engine_whose_server_does_not_answer(workplace: Workplace):
    workplace.configure()
    err = workplace.run("--runner=flink", "--job_endpoint=localhost:1", "--object_reuse", status=2).err
    assert "beam.job_endpoint: localhost:1: no job server answers there (Connection refused)" in err
