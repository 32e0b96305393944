"""A job on an engine such as Flink or Spark: its state, from the Beam job server that it was submitted to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.errors import BusyError

# A server that has just started answers its first request slowly.
_ANSWER_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class EngineJob:
    """`id`: the job server's. `endpoint`: host:port of that server. None: not known."""

    id: str | None
    runner: str
    endpoint: str | None

    page = "the engine's page"
    advice = "; wait for it, or stop it on the engine's page"

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> EngineJob:
        """The job of an attempt, from its record."""
        id_, runner = record.get("job"), record.get("runner", "some engine")
        return cls(None if id_ is None else str(id_), runner, _checked(record.get("endpoint")))

    @property
    def name(self) -> str:
        return f"{'a job' if self.id is None else f'job {self.id}'} on {self.runner}"

    def state(self, options: Any = None) -> str:
        """Its state as the job server names it.

        `options`: Beam's; the job server that they name is asked, too: it may be the same one at another address.
        BusyError if nobody knows: a job server that was started again has forgotten its jobs.
        """
        import grpc
        from apache_beam.portability.api import beam_job_api_pb2 as job_api
        from apache_beam.portability.api import beam_job_api_pb2_grpc as job_service

        answers = []
        endpoints = [] if self.id is None else filter(None, (endpoint_of(options), self.endpoint))
        for endpoint in dict.fromkeys(endpoints):
            try:
                with grpc.insecure_channel(endpoint) as channel:
                    service, asked = job_service.JobServiceStub(channel), job_api.GetJobStateRequest(job_id=self.id)
                    state = service.GetState(asked, timeout=_ANSWER_SECONDS).state
            except grpc.RpcError as error:
                # Beam's job server in Python has no code for an unknown job.
                is_unknown = error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN)
                answers.append(f"{endpoint} {'does not know it' if is_unknown else 'does not answer'}")
            else:
                if state != job_api.JobState.UNSPECIFIED:
                    return str(job_api.JobState.Enum.Name(state))
                answers.append(f"{endpoint} does not know its state")
        raise BusyError(f"the job server at {' and that at '.join(answers)}" if answers else "nobody can be asked")


def endpoint_of(options: Any) -> str | None:
    """The host:port of the job server that Beam's options name; None if they name none."""
    from apache_beam.options.pipeline_options import PortableOptions

    return None if options is None else _checked(options.view_as(PortableOptions).job_endpoint)


def _checked(endpoint: Any) -> str | None:
    """None if it is no host:port. Anybody may have written the record, and Beam's options may say `embed`."""
    return endpoint if isinstance(endpoint, str) and re.fullmatch(r"[\w.:\[\]-]+:[0-9]+", endpoint) else None
