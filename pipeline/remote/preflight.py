"""Checks before a job is submitted to a remote runner: a mistake costs seconds here, minutes and money there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from apache_beam.options import pipeline_options
from apache_beam.transforms.resources import parse_resource_hints

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.config.schema import Config
from layerbeam.pipeline.console import count_noun, echo_warning
from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.remote.job_server import active_job, mistakes_in, pool_note
from layerbeam.pipeline.run.engines import RemoteRunner
from layerbeam.pipeline.versions import tpu_mistake
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.slice.slices import FileToRead, join_small_files
from layerbeam.transforms.storage.errors import LOG_IN

_ACCELERATOR = "worker_accelerator="
# One process for all vCPUs of a worker; processes that share a GPU.
_ONE_PROCESS, _SHARED = "no_use_multiple_sdk_containers", "use_nvidia_mps"
# The option with the program of a job server that Beam starts itself. Without it Beam would download one.
_OWN_JOB_SERVER = {
    "FlinkRunner": "flink_job_server_jar",
    "SparkRunner": "spark_job_server_jar",
    "PrismRunner": "prism_location",
}


def check_hints(config: Config) -> None:
    """Raises UsageError for resource hints that Beam does not know."""
    for name, value in config.encoder.resource_hints.items():
        try:
            parse_resource_hints({name: value})
        except (ValueError, TypeError) as error:
            raise UsageError(f"encoder.resource_hints.{name}: {value}: {error}") from error


def check(config: Config, remote: RemoteRunner) -> None:
    """Raises UsageError, naming every mistake found, if the job cannot succeed; BusyError if it cannot now."""
    mistakes = [*_paths(config, remote), *_device(config, remote)]
    mistakes += _dataflow(remote.options) if remote.is_dataflow else _job_server(remote)
    if mistakes:
        raise UsageError("\n".join(mistakes))
    endpoint = remote.options.view_as(pipeline_options.PortableOptions).job_endpoint
    job = active_job(endpoint) if remote.name == "SparkRunner" and endpoint not in (None, "embed") else None
    if job is not None:
        raise BusyError(
            f"beam.job_endpoint: {endpoint}: Spark's job server runs one job at a time, now {job}; wait for its "
            "end, or start another job server"
        )
    if remote.name == "FlinkRunner" and remote.options.view_as(pipeline_options.FlinkRunnerOptions).parallelism < 1:
        echo_warning(
            "beam.parallelism: not given; without it Flink uses one worker for everything: give --parallelism=N"
        )
    note = None if remote.is_dataflow else pool_note(remote.options)
    if note is not None:
        echo_warning(note)


def parallelism_note(job: Job, files: Sequence[InputFile], remote: RemoteRunner) -> str | None:
    """What limits the number of active threads, from the files' sizes; None if there is work for all of them."""
    worker = remote.options.view_as(pipeline_options.WorkerOptions)
    engines = remote.options.view_as(pipeline_options.FlinkRunnerOptions)
    is_one_process = _ONE_PROCESS in _experiments(remote)
    of_machine = remote.threads if is_one_process and remote.threads else vcpus_of(worker.machine_type)
    threads = (worker.max_num_workers or 0) * of_machine if remote.is_dataflow else engines.parallelism
    compressed = sum(storage.is_compressed(file.path) for file in files)
    works = join_small_files(map(FileToRead, files), job.limits, job.records)
    blocks = sum(1 if work.others else -(-work.file.size // job.limits.text_bytes) for work in works)
    if compressed == len(files) and 0 < compressed < threads:
        return f"{count_noun(compressed, 'compressed file')}: as many of {threads:,} threads read; all encode"
    if compressed or blocks >= threads:
        return None
    return (
        f"about {count_noun(blocks, 'block')} for {threads:,} threads: a smaller input.slice_bytes or "
        "output.target_part_bytes makes more, or use fewer workers"
    )


def _experiments(remote: RemoteRunner) -> list[str]:
    return remote.options.view_as(pipeline_options.DebugOptions).experiments or []


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
    image = remote.options.view_as(pipeline_options.WorkerOptions).sdk_container_image
    for setting in ("handle", "adapter"):
        handle = getattr(config.encoder, setting) or ""
        if not os.path.exists(handle):
            continue
        where = f"encoder.{setting}: {handle}"
        if not os.path.isabs(handle):
            yield f"{where}: is relative, and workers have other current folders; give the absolute path"
        elif remote.is_dataflow and not image:
            yield f"{where}: Dataflow's workers cannot read it; copy it to gs://... and give that"


def _device(config: Config, remote: RemoteRunner) -> Iterator[str]:
    device, hinted = config.encoder.device, "accelerator" in config.encoder.resource_hints
    other_tensorflow = tpu_mistake() if device == "tpu" else None
    if other_tensorflow is not None:
        yield other_tensorflow
    services = remote.options.view_as(pipeline_options.GoogleCloudOptions).dataflow_service_options or []
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
    accelerator = config.encoder.resource_hints.get("accelerator", "".join(pooled))
    if remote.is_dataflow and accelerator and _ONE_PROCESS not in _experiments(remote) and _SHARED not in accelerator:
        yield (
            "beam.experiments: Dataflow starts a process per vCPU, and each would load the encoder onto the same "
            f"accelerator: give experiments: [{_ONE_PROCESS}], or share a GPU by adding ;{_SHARED} to {accelerator}"
        )


def _dataflow(options: pipeline_options.PipelineOptions) -> Iterator[str]:
    if not storage.is_installed("apache_beam.runners.dataflow.internal.apiclient"):
        command = storage.install_command("gcp")
        yield f"runner: DataflowRunner needs packages that are not installed; run: {command}"
    cloud = options.view_as(pipeline_options.GoogleCloudOptions)
    credentials = None if cloud.no_auth else _missing_credentials()
    if credentials is not None:
        yield credentials
    if not cloud.project:
        yield "beam.project: is missing; give the Google Cloud project that the job runs in: --project=..."
    if not cloud.region:
        yield "beam.region: is missing; give the region to run in, best the bucket's: --region=us-central1"
    if cloud.temp_location is None:
        yield "beam.temp_location: is missing; give a folder for the job's temporary files: --temp_location=gs://..."
    for name, path in (("temp_location", cloud.temp_location), ("staging_location", cloud.staging_location)):
        if path is not None and not path.startswith("gs://"):
            yield f"beam.{name}: {path}: Dataflow needs a folder that begins with gs://"
        elif path is not None and credentials is None and storage.unsupported_reason(path) is None:
            try:
                storage.check_bucket(path)
            except OSError as error:  # Beam would retry for ten minutes
                yield f"beam.{name}: {path}: {storage.reason_of(error)}"
    setup = options.view_as(pipeline_options.SetupOptions)
    installs = setup.extra_packages or setup.requirements_file or setup.setup_file  # when a worker starts
    if not installs and not options.view_as(pipeline_options.WorkerOptions).sdk_container_image:
        yield (
            "beam.sdk_container_image: is missing, and Dataflow's own image lacks layerbeam: build one from the "
            "Dockerfile (docs/worker_image.md) and give its name: --sdk_container_image=..."
        )


def _missing_credentials() -> str | None:
    """That there are no credentials for Google Cloud, whose clients would retry for two minutes; None if there are."""
    os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")  # seconds; the server of a cloud's machine is near
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
    except ImportError:  # named by another mistake
        return None
    try:
        google.auth.default()
    except DefaultCredentialsError as error:
        return f"runner: DataflowRunner: {LOG_IN} ({str(error).partition('. ')[0].rstrip('.')})"
    return None


def _job_server(remote: RemoteRunner) -> Iterator[str]:
    """A job server that was not given: Beam would download one; or what `mistakes_in` it."""
    given = remote.options.get_all_options()
    endpoint = given["job_endpoint"]
    if endpoint == "embed":
        return
    if not endpoint:
        own = _OWN_JOB_SERVER.get(remote.name)
        if own is None or not given[own]:
            instead = f", or the path of its program: --{own}=..." if own else ""
            yield (
                f"beam.job_endpoint: is missing; {remote.name} needs a job server's host:port: --job_endpoint=..."
                f"{instead} (docs/runners.md)"
            )
        return
    yield from mistakes_in(remote.options)


def vcpus_of(machine_type: str | None) -> int:
    """The vCPUs of a Google machine type, from its name; 1 if there is none, so that prices are per vCPU.

    >>> vcpus_of("n2-standard-8"), vcpus_of(None), vcpus_of("e2-medium")
    (8, 1, 1)
    """
    found = re.search(r"-(\d+)\b", machine_type or "")
    return int(found.group(1)) if found else 1
