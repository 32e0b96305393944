"""What Dataflow received: the job, the pipeline and the files that the stand-in of `google_cloud` stored."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as beam_proto
from google.cloud import dataflow
from google_cloud import GoogleCloud


@dataclasses.dataclass(frozen=True)
class Submission:
    """`files`: the files uploaded to the job's staging folder, by name."""

    job: dataflow.Job
    pipeline: beam_proto.Pipeline
    files: dict[str, bytes]

    @classmethod
    def last(cls, cloud: GoogleCloud) -> Submission:
        """The last job, with Beam's own information about where it put the pipeline."""
        job = cloud.jobs[-1]
        place = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        folder = place.rpartition("/")[0]
        return cls(
            dataflow.Job.from_json(json.dumps(job), ignore_unknown_fields=True),
            beam_proto.Pipeline.FromString(cloud.get(place)),
            cloud.tree(folder),
        )

    @property
    def pool(self) -> dataflow.WorkerPool:
        (pool,) = self.job.environment.worker_pools
        return pool

    @property
    def experiments(self) -> set[str]:
        return set(self.job.environment.experiments)

    @property
    def images(self) -> set[str]:
        return {image.container_image for image in self.pool.sdk_harness_container_images}

    @property
    def stages(self) -> list[str]:
        """Names of the transforms that run code, as the job's page shows them."""
        transforms = self.pipeline.components.transforms.values()
        return sorted(transform.unique_name for transform in transforms if transform.environment_id)

    @property
    def staged(self) -> set[str]:
        """Names under which workers find the files that they install or load."""
        payloads = [
            beam_proto.ArtifactStagingToRolePayload.FromString(dependency.role_payload)
            for environment in self.pipeline.components.environments.values()
            for dependency in environment.dependencies
        ]
        return {payload.staged_name for payload in payloads}

    def environment(self, stage: str) -> str:
        """The environment of a transform."""
        transforms = self.pipeline.components.transforms.values()
        (transform,) = [one for one in transforms if one.unique_name == stage and one.environment_id]
        return str(transform.environment_id)

    def hints(self, stage: str) -> dict[str, Any]:
        """Resource hints of a transform, by the last part of their names."""
        hints = self.pipeline.components.environments[self.environment(stage)].resource_hints
        return {urn.split(":")[-2]: value.decode() for urn, value in hints.items()}
