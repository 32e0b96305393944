"""A Dataflow job: its state, its page, and how to cancel it."""

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


@dataclasses.dataclass(frozen=True)
class DataflowJob:
    """`id`, `project` and `region` as in its URL."""

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
