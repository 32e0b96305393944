"""The runner of a run, with Beam's options. No runner, `local` and `DirectRunner` all mean the local runner.

That is Beam's FnApiRunner with threads: Beam's own `DirectRunner` first tries to download another runner (Prism) and
then ignores the number of workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import re
from typing import Any

import apache_beam as beam
from apache_beam.options import pipeline_options

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.pipeline.run import beam_parts, encoder_process, worker_process
from layerbeam.pipeline.run.build import build
from layerbeam.pipeline.run.signals import run_in_thread
from layerbeam.transforms.hardware import Hardware, cores, load_tensorflow

DATAFLOW = "DataflowRunner"
_LOCAL = ("local", "directrunner", "fnapirunner")
_REMOTE = (DATAFLOW, "FlinkRunner", "SparkRunner", "PrismRunner", "PortableRunner")
_REFUSED = {
    "dask": "Beam's runner for Dask loses what a bundle's end emits (it wrote 595 of 600 rows and reported DONE)",
    "ray": "Beam 2.77 has no runner for Ray",
}


class _Options(pipeline_options.PipelineOptions):
    """Options that make each of their views once. Beam's build a parser for each: a fifth of a small run's time."""

    def view_as(self, cls: type[Any]) -> Any:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


@dataclasses.dataclass(frozen=True)
class LocalRunner:
    """Beam's local runner with its options. `threads`: per process; `processes`: None for threads only."""

    options: pipeline_options.PipelineOptions
    runner: Any
    threads: int
    processes: int | None = None

    @property
    def workers(self) -> int:
        """Blocks processed in parallel."""
        return self.processes or self.threads

    def load(self, job: Job) -> None:
        """Import TensorFlow, and begin to load the encoder if this process encodes. UsageError as `load_tensorflow`."""
        if self.processes:
            load_tensorflow(Hardware(device="cpu"))  # for the estimate
            job.check_int8()
        else:
            job.load_tensorflow(self.threads)
            job.begin_to_load_encoder()

    def execute(self, job: Job, run_number: int, *, spread: bool) -> Any:
        """Do what the work list of an attempt says; returns Beam's result. WorkerDiedError as `run_in_thread`.

        `spread`: as in `make_stages`.
        """
        settings: dict[str, Any] = {"num_threads": self.threads, "num_readers": self.workers, "spread": spread}
        with contextlib.ExitStack() as stack:
            if self.processes and encoder_process.is_needed(job.config.encoder.device):
                settings["encoder_process"] = stack.enter_context(encoder_process.start(verbose=_is_verbose()))
                settings["encoder_threads"] = self.threads * self.processes
            pipeline = beam.Pipeline(runner=self.runner, options=self.options)
            os.rmdir(pipeline.local_tempdir)  # for transforms in Java, and a run that is killed would leave it
            build(pipeline, job, run_number=run_number, **settings)
            return run_in_thread(pipeline.run)


@dataclasses.dataclass(frozen=True)
class RemoteRunner:
    """A runner with workers of its own. `threads`: per worker process; None: one per core."""

    name: str
    options: pipeline_options.PipelineOptions
    threads: int | None

    @property
    def is_dataflow(self) -> bool:
        return self.name == DATAFLOW

    @property
    def waits(self) -> bool:
        """Whether the command waits for the job: not for a template, and not if Beam's option forbids it."""
        no_wait = self.options.view_as(pipeline_options.StandardOptions).no_wait_until_finish
        return not (no_wait or self.options.view_as(pipeline_options.GoogleCloudOptions).template_location)

    @property
    def job_name(self) -> str:
        return str(self.options.view_as(pipeline_options.GoogleCloudOptions).job_name)

    @property
    def has_own_workers(self) -> bool:
        """Whether a job goes on without this program: not if that is its worker or its job server."""
        portable = self.options.view_as(pipeline_options.PortableOptions)
        is_worker = self.name == "PrismRunner" or str(portable.environment_type).upper() == "LOOPBACK"
        return self.is_dataflow or not (is_worker or portable.job_endpoint in (None, "embed"))


def choose_runner(
    arguments: list[str], name: str | None, output_path: str, *, workers: int | None, processes: int | None
) -> LocalRunner | RemoteRunner:
    """The runner of this name with Beam's options. Raises UsageError for an unknown one, or one that loses data."""
    given = "local" if name is None else str(name)
    for refused, why in _REFUSED.items():
        if refused in given.lower():
            raise UsageError(f"runner: {given} cannot be used: {why}")
    if given.lower() in _LOCAL:
        return local_runner(arguments, workers=workers, processes=processes)
    known = {remote.lower(): remote for remote in _REMOTE}
    remote = known.get(given.lower()) or known.get(f"{given.lower()}runner")
    if remote is None:
        allowed = ["local", *_REMOTE]
        raise UsageError(
            f"runner: {given}: is not a known runner{did_you_mean(given, allowed)}; allowed: {', '.join(allowed)}"
        )
    if workers is not None or processes is not None:
        given_option = "--workers" if workers is not None else "--processes"
        instead = "--num_workers and --max_num_workers" if remote == DATAFLOW else "--parallelism"
        raise UsageError(f"{given_option} applies to the local runner only; use {instead} with {remote}")
    return _remote_runner(arguments, remote, output_path)


def local_runner(arguments: list[str], *, workers: int | None = None, processes: int | None = None) -> LocalRunner:
    """The local runner with `workers` threads (None: one per core), or with processes that share the threads."""
    threads = workers or cores()
    options = _Options(arguments)
    options.view_as(pipeline_options.StandardOptions).runner = "FnApiRunner"
    if processes is None:
        # Threads as in direct_running_mode multi_threading, with one difference: Beam flushes its buffer once a second,
        # also in the middle of an element (tools/beam_torn_elements.py shows it). -1: flush only when the buffer is
        # full or the bundle ends.
        with beam_parts.private_parts():
            environment = beam_parts.EmbeddedPythonGrpcEnvironment(data_buffer_time_limit_ms=-1)
    else:
        threads = max(threads // processes, 1)
        command = worker_process.worker_command(verbose=_is_verbose())
        with beam_parts.private_parts():
            environment = beam_parts.SubprocessSDKEnvironment.from_command_string(command)
    # Beam advises to set its running mode, but the threads are set up differently here.
    log = logging.getLogger(beam_parts.FnApiRunner.__module__)
    log.addFilter(lambda record: "direct_running_mode" not in record.getMessage())
    direct = options.view_as(pipeline_options.DirectOptions)
    direct.direct_running_mode = "in_memory"  # with any other value Beam replaces the environment
    direct.direct_num_workers = processes or threads
    # As in Beam's own DirectRunner, so that workers see the options.
    with beam_parts.private_parts():
        encoded = beam_parts.encode_options(options.get_all_options())
        provision = beam_parts.ExtendedProvisionInfo(beam_parts.ProvisionInfo(pipeline_options=encoded))
        made = beam_parts.FnApiRunner(default_environment=environment, provision_info=provision)
    return LocalRunner(options, made, threads, processes)


def _is_verbose() -> bool:
    return logging.getLogger().isEnabledFor(logging.INFO)


def _remote_runner(arguments: list[str], name: str, output_path: str) -> RemoteRunner:
    options = pipeline_options.PipelineOptions(arguments)
    options.view_as(pipeline_options.StandardOptions).runner = name
    # All code is in the package; the session would only add what the launcher's own script holds.
    options.view_as(pipeline_options.SetupOptions).save_main_session = False
    debug = options.view_as(pipeline_options.DebugOptions)
    # Else Beam lists this environment's packages by `python -m pip`, which imports modules from the current folder.
    debug.add_experiment("disable_logging_submission_environment")
    threads = debug.number_of_worker_harness_threads
    cloud = options.view_as(pipeline_options.GoogleCloudOptions)  # other engines show the name, too
    cloud.job_name = cloud.job_name or job_name(output_path)
    if name == DATAFLOW and "no_use_multiple_sdk_containers" not in debug.experiments and threads is None:
        # Dataflow starts one process per core and, in batch, one thread per process. If one thread were requested,
        # the whole machine might get one: its API says "per worker harness".
        threads = 1
    return RemoteRunner(name, options, threads)


def job_name(output_path: str) -> str:
    """The job name of an output folder: Dataflow refuses a second active job of the same name.

    >>> job_name("gs://bucket/Nightly run/dt=2026-01-01")
    'layerbeam-nightly-run-dt-2026-01-01-cb4b32b2'
    """
    _, _, path = output_path.rstrip("/").rpartition("://")
    words = re.sub(r"[^a-z0-9]+", "-", path.partition("/")[2].lower()).strip("-")
    key = hashlib.sha256(output_path.rstrip("/").encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return "-".join(filter(None, ("layerbeam", words[-40:].strip("-"), key)))
