"""The jobs of runs elsewhere: on Dataflow, or on an engine such as Flink or Spark. Who has a job says its state."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.transforms import storage
from layerbeam.transforms.storage.errors import reason_of_service

RUNNER = "DataflowRunner"
_TIMEOUT_SECONDS = 30
# A server that has just started answers its first request slowly.
_ANSWER_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class DataflowJob:
    """A job on Dataflow. `id`, `project` and `region` as in its URL."""

    id: str
    project: str
    region: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> DataflowJob | None:
        """The job of an attempt, from its record; None if the attempt has none, or it is not known."""
        values = [record.get(name) for name in ("job", "project", "region")]
        # Anybody may have written the record, and these become part of a URL.
        known = all(isinstance(value, str) and re.fullmatch(r"[\w.:-]+", value) for value in values)
        return cls(*map(str, values)) if known and record.get("runner") == RUNNER else None

    @property
    def name(self) -> str:
        return f"Dataflow job {self.id}"

    @property
    def page(self) -> str:
        return f"https://console.cloud.google.com/dataflow/jobs/{self.region}/{self.id}?project={self.project}"

    @property
    def cancel_command(self) -> str:
        return f"gcloud dataflow jobs cancel {self.id} --region={self.region} --project={self.project}"

    @property
    def advice(self) -> str:
        return f": {self.page}\nwait for it, or stop it: {self.cancel_command}"

    def state(self, options: Any = None) -> str:
        """Its state as Dataflow names it.

        `options`: Beam's, with credentials and endpoint. BusyError if Dataflow does not know the job; UsageError if
        this program cannot ask; RuntimeError if the service does not answer.
        """
        from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

        try:
            from apache_beam.internal.gcp.auth import get_service_credentials
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import dataflow
        except ImportError as error:
            raise UsageError(f"packages are missing; run: {storage.install_command('gcp')}") from error
        cloud = (PipelineOptions([]) if options is None else options).view_as(GoogleCloudOptions)
        try:
            client = dataflow.JobsV1Beta3Client(
                credentials=get_service_credentials(cloud) or AnonymousCredentials(),
                client_options={"api_endpoint": cloud.dataflow_endpoint},
                transport="rest",
            )
            asked = dataflow.GetJobRequest(project_id=self.project, location=self.region, job_id=self.id)
            return str(dataflow.JobState(client.get_job(asked, timeout=_TIMEOUT_SECONDS).current_state).name)
        except Exception as error:  # of the client, of its transport, of the credentials
            status = getattr(error, "code", None)
            kind = BusyError if status == 404 else UsageError if status in (400, 401, 403) else RuntimeError
            raise kind(reason_of_service(str(error))) from error


@dataclasses.dataclass(frozen=True)
class EngineJob:
    """A job on an engine. `id`: the job server's. `endpoint`: host:port of that server. None: not known."""

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
