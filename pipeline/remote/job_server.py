"""A Beam job server, asked before a job is submitted: a mistake would show after minutes, or as a run that waits."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_api
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_service

from layerbeam.pipeline.errors import UsageError

_CONNECT_SECONDS = 2
# A server that has just started answers its first request slowly.
_ANSWER_SECONDS = 20
_AT_WORK = (job_api.JobState.STARTING, job_api.JobState.RUNNING, job_api.JobState.CANCELLING)
_LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104 - compared with, not listened to
_ENVIRONMENTS = (
    'EXTERNAL with environment_config=HOST:PORT, a worker pool; PROCESS with {"command": "/path/start"}; DOCKER with '
    "an image; LOOPBACK: the workers are this program, for trying it"
)


def options_of(endpoint: str) -> Sequence[Any]:
    """The options that the job server knows: `name`, `type`, `description`, `default_value` of each.

    UsageError if what listens at `endpoint` (host:port) is not a Beam job server, or nothing does.
    """
    with _service(endpoint) as service:
        request = job_api.DescribePipelineOptionsRequest()
        options: Sequence[Any] = service.DescribePipelineOptions(request, timeout=_ANSWER_SECONDS).options
        return options


def mistakes_in(options: PipelineOptions) -> Iterator[str]:
    """What keeps a job from running on the server that the options name, as one sentence each."""
    portable = options.view_as(PortableOptions)
    endpoint = portable.job_endpoint
    try:
        with _service(endpoint) as service:
            # Only a job says where its files are staged. This one is empty and never runs.
            prepared = service.Prepare(job_api.PrepareJobRequest(job_name="layerbeam-check"), timeout=_ANSWER_SECONDS)
            staging = prepared.artifact_staging_endpoint.url
    except UsageError as error:
        yield str(error)
        return
    if not portable.artifact_endpoint and _is_loopback(staging) and not _is_loopback(endpoint):
        host = endpoint.rpartition(":")[0]
        yield (
            f"beam.job_endpoint: {endpoint}: the job server wants files at {staging}, which is this machine and not "
            f"the server's; start it with --job-host={host} and an --artifact-port that is not 0, or give its address: "
            f"--artifact_endpoint={host}:PORT"
        )
    else:
        staging = portable.artifact_endpoint or staging
        problem = _connect(staging) if staging else None
        if problem is not None:
            yield f"beam.artifact_endpoint: {staging}: files cannot be staged there ({problem}); open the port"
    yield from _workers(portable, endpoint)


def active_job(endpoint: str) -> str | None:
    """The name of a job that the server is running; None if it is idle."""
    with _service(endpoint) as service:
        jobs = service.GetJobs(job_api.GetJobsRequest(), timeout=_ANSWER_SECONDS).job_info
    return next((str(job.job_name) for job in jobs if job.state in _AT_WORK), None)


def _workers(portable: Any, endpoint: str) -> Iterator[str]:
    kind, config = portable.environment_type, portable.environment_config
    if not kind:
        # Beam would take Docker on the workers' machines, or do all the work in this program.
        yield f"beam.environment_type: is missing; it says where workers come from: {_ENVIRONMENTS} (docs/runners.md)"
        return
    if kind.upper() == "LOOPBACK" and not _is_loopback(endpoint):
        yield (
            f"beam.environment_type: LOOPBACK: the workers are this program, and the engine behind {endpoint} looks "
            f"for it on its own machine; give {_ENVIRONMENTS.rpartition(';')[0]}"
        )
    if kind.upper() in ("EXTERNAL", "PROCESS") and not config:
        yield f"beam.environment_config: is missing; environment_type is one of: {_ENVIRONMENTS} (docs/runners.md)"
    elif kind.upper() == "PROCESS" and not _names_program(config):
        yield (
            f"beam.environment_config: {config}: PROCESS wants a JSON object with the program that starts a worker: "
            '{"command": "/path/start"} (docs/worker_image.md)'
        )
    elif kind.upper() == "EXTERNAL" and not _is_loopback(_pool(config)) and _connect(_pool(config)) == _REFUSED:
        # A host that only the engine's machines can reach gives another problem, and may be right.
        yield f"beam.environment_config: {config}: no worker pool answers there ({_REFUSED}); start it"


def pool_note(options: PipelineOptions) -> str | None:
    """That this machine has no worker pool, where each of the engine's machines needs one; None if it has."""
    portable = options.view_as(PortableOptions)
    if str(portable.environment_type).upper() != "EXTERNAL":
        return None
    address = _pool(portable.environment_config)
    if not (_is_loopback(address) and _is_loopback(portable.job_endpoint)) or _connect(address) != _REFUSED:
        return None
    return f"beam.environment_config: no worker pool at {address} here; each machine of the engine needs one there"


def _names_program(config: str) -> bool:
    try:
        return bool(json.loads(config)["command"])
    except (ValueError, LookupError, TypeError):
        return False


def _pool(config: str) -> str:
    """The host:port of a worker pool, which may be in a JSON object."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(config)["url"])
    return config


@contextlib.contextmanager
def _service(endpoint: str) -> Iterator[Any]:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"beam.job_endpoint: {endpoint}: is not of the form host:port")
    problem = _connect(endpoint)
    if problem is None:
        try:
            with grpc.insecure_channel(endpoint) as channel:
                grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
                yield job_service.JobServiceStub(channel)
            return
        except grpc.FutureTimeoutError:
            problem = "what listens there does not speak gRPC"
        except grpc.RpcError as error:
            # Such as the ports for artifacts and for expansion, which are the next ones.
            problem = f"what listens there is not Beam's job service: {error.code().name}"
    raise UsageError(
        f"beam.job_endpoint: {endpoint}: no job server answers there ({problem}); start it, or give its host:port "
        "(docs/runners.md)"
    )


_REFUSED = "Connection refused"


def _connect(address: str) -> str | None:
    """Why no connection to host:port can be made; None if one can."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        is_refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
        return _REFUSED if is_refused else str(getattr(error, "strerror", None) or error)
    return None


def _is_loopback(address: str) -> bool:
    return address.strip("[").startswith(_LOOPBACK)
