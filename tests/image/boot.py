#!/usr/bin/env python
"""What `boot`, the entry point of Beam's images, does for one worker, without Docker.

It fetches the staged files, installs the packages among them and starts the worker. A worker pool starts it:
`worker_pool_main --container_executable=boot.py`.

Beam's own program creates a virtual environment for these packages; here they go into a folder at the front of Python's
path.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
from apache_beam.portability.api import (
    beam_artifact_api_pb2,
    beam_artifact_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    beam_runner_api_pb2,
    endpoints_pb2,
)
from google.protobuf import json_format, text_format

EXTRA_PACKAGES = "extra_packages.txt"  # Beam's list of the packages given by --extra_package


def fetch(endpoint: str, worker: str, dependencies: list, folder: Path) -> None:
    """Download the staged files under their staged names."""
    with grpc.insecure_channel(endpoint) as channel:
        service = beam_artifact_api_pb2_grpc.ArtifactRetrievalServiceStub(channel)
        metadata = [("worker_id", worker)]
        request = beam_artifact_api_pb2.ResolveArtifactsRequest(artifacts=dependencies)
        for artifact in service.ResolveArtifacts(request, metadata=metadata).replacements:
            name = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(artifact.role_payload).staged_name
            request = beam_artifact_api_pb2.GetArtifactRequest(artifact=artifact)
            with open(folder / name, "wb") as file:
                file.writelines(chunk.data for chunk in service.GetArtifact(request, metadata=metadata))


def install(staged: Path, site: Path) -> None:
    listed = staged / EXTRA_PACKAGES
    packages = [str(staged / name) for name in listed.read_text().split()] if listed.exists() else []
    if packages:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*pip, *packages], check=True)


def descriptor(url: str) -> str:
    return text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("id", "logging_endpoint", "artifact_endpoint", "provision_endpoint", "control_endpoint"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="boot-"))
    staged, site = folder / "staged", folder / "site"
    staged.mkdir()
    with grpc.insecure_channel(given.provision_endpoint) as channel:
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        info = service.GetProvisionInfo(request, metadata=[("worker_id", given.id)]).info
    fetch(given.artifact_endpoint, given.id, info.dependencies, staged)
    install(staged, site)

    options = folder / "pipeline_options.json"
    options.write_text(json_format.MessageToJson(info.pipeline_options))
    os.environ.update(
        WORKER_ID=given.id,
        PIPELINE_OPTIONS_FILE=str(options),
        SEMI_PERSISTENT_DIRECTORY=str(folder),
        LOGGING_API_SERVICE_DESCRIPTOR=descriptor(given.logging_endpoint),
        CONTROL_API_SERVICE_DESCRIPTOR=descriptor(given.control_endpoint),
        RUNNER_CAPABILITIES=" ".join(info.runner_capabilities),
        PYTHONPATH=str(site),
    )
    os.chdir(folder)
    os.execv(sys.executable, [sys.executable, "-m", "apache_beam.runners.worker.sdk_worker_main"])


if __name__ == "__main__":
    main()
