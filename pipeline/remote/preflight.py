"""Checks before a job is submitted to a remote runner: a mistake costs seconds here, minutes and money there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    WorkerOptions,
)
from apache_beam.transforms.resources import parse_resource_hints

from layerbeam.pipeline.cli.console import echo
from layerbeam.pipeline.config.schema import Config
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.run.engines import RemoteRunner
from layerbeam.transforms import storage

_ACCELERATOR = "worker_accelerator="
_CONNECT_SECONDS = 5


def check_hints(config: Config) -> None:
    """Raises UsageError for resource hints that Beam does not know."""
    for name, value in config.encoder.resource_hints.items():
        try:
            parse_resource_hints({name: value})
        except (ValueError, TypeError) as error:
            raise UsageError(f"encoder.resource_hints.{name}: {value}: {error}") from error


def check(config: Config, remote: RemoteRunner) -> None:
    """Raises UsageError, naming every mistake found, if the job cannot succeed."""
    mistakes = [*_paths(config, remote), *_device(config, remote)]
    mistakes += _dataflow(remote.options) if remote.is_dataflow else _job_server(remote)
    if mistakes:
        raise UsageError("\n".join(mistakes))
    if remote.name == "FlinkRunner" and remote.options.view_as(FlinkRunnerOptions).parallelism < 1:
        echo("beam.parallelism: not given; without it Flink uses one worker for everything: give --parallelism=N")


def _paths(config: Config, remote: RemoteRunner) -> Iterator[str]:
    """Mistakes in paths that workers cannot read, or would read as another file."""
    settings = [("input.files", path) for path in config.input.files] + [("output.path", config.output.path)]
    for setting, path in settings:
        if not storage.is_local(path):
            continue
        if remote.is_dataflow:
            yield f"{setting}: {path}: Dataflow's workers cannot read files of this machine; give gs://..."
        elif not os.path.isabs(path):
            yield (
                f"{setting}: {path}: is relative to this program's current folder, and workers have another; give the "
                f"absolute path ({os.path.abspath(path)}), on a disk that all workers share"
            )
    handle = config.encoder.handle
    if os.path.exists(handle):
        image = remote.options.view_as(WorkerOptions).sdk_container_image
        if not os.path.isabs(handle):
            yield (
                f"encoder.handle: {handle}: is relative, and workers have other current folders; give the absolute path"
            )
        elif remote.is_dataflow and not image:
            yield f"encoder.handle: {handle}: Dataflow's workers cannot read it; copy it to gs://... and give that"


def _device(config: Config, remote: RemoteRunner) -> Iterator[str]:
    device, hinted = config.encoder.device, "accelerator" in config.encoder.resource_hints
    services = remote.options.view_as(GoogleCloudOptions).dataflow_service_options or []
    pooled = [option for option in services if option.startswith(_ACCELERATOR)]
    if hinted and pooled:
        yield (
            f"encoder.resource_hints.accelerator: Dataflow takes either it or {pooled[0]} among "
            "beam.dataflow_service_options, never both; remove one"
        )
    if remote.is_dataflow and device in ("gpu", "tpu") and not hinted and not pooled:
        example = "type:nvidia-l4;count:1;install-nvidia-driver" if device == "gpu" else "type:tpu-v5-lite-podslice;..."
        yield (
            f"encoder.device: is {device}, but no accelerator is requested for the workers: give "
            f"beam.dataflow_service_options: ['{_ACCELERATOR}{example}'] or encoder.resource_hints.accelerator"
        )


def _dataflow(options: PipelineOptions) -> Iterator[str]:
    if not storage.is_installed("apache_beam.runners.dataflow.internal.apiclient"):
        yield "runner: DataflowRunner needs packages that are not installed; run: pip install 'layerbeam[gcp]'"
    cloud = options.view_as(GoogleCloudOptions)
    if not cloud.project:
        yield "beam.project: is missing; give the Google Cloud project that the job runs in: --project=..."
    if not cloud.region:
        yield "beam.region: is missing; give the region to run in, best the bucket's: --region=us-central1"
    for name, path in (("temp_location", cloud.temp_location), ("staging_location", cloud.staging_location)):
        if path is None and name == "temp_location":
            yield "beam.temp_location: is missing; give a folder for the job's temporary files: --temp_location=gs://..."
        elif path is not None and not path.startswith("gs://"):
            yield f"beam.{name}: {path}: Dataflow needs a folder that begins with gs://"
        elif path is not None and storage.unsupported_reason(path) is None:
            try:
                storage.check_bucket(path)
            except OSError as error:  # Beam would retry for ten minutes
                yield f"beam.{name}: {path}: {storage.reason_of(error)}"
    if not options.view_as(WorkerOptions).sdk_container_image and not _brings_packages(options):
        yield (
            "beam.sdk_container_image: is missing, and Dataflow's own image lacks layerbeam: build one from the "
            "Dockerfile (docs/worker_image.md) and give its name: --sdk_container_image=..."
        )


def _brings_packages(options: PipelineOptions) -> bool:
    """Whether workers install packages when they start."""
    setup = options.view_as(SetupOptions)
    return bool(setup.extra_packages or setup.requirements_file or setup.setup_file)


def _job_server(remote: RemoteRunner) -> Iterator[str]:
    """A job server that does not answer: Beam would wait for it for a minute, and then show a traceback."""
    portable = remote.options.view_as(PortableOptions)
    endpoint = portable.job_endpoint
    if endpoint in (None, "", "embed"):
        if remote.name == "PortableRunner" and not endpoint:
            yield "beam.job_endpoint: is missing; PortableRunner needs a job server's host:port: --job_endpoint=..."
        return
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        yield f"beam.job_endpoint: {endpoint}: is not of the form host:port"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        yield (
            f"beam.job_endpoint: {endpoint}: no job server answers there ({error.strerror or error}); start it, or "
            "give its host:port (docs/runners.md)"
        )
