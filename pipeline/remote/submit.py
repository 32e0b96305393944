"""A run on remote workers: checked, submitted, waited for."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from layerbeam.pipeline.console import echo_timed, echo_warning, quiet, underlying
from layerbeam.pipeline.errors import BusyError, UsageError, root_cause
from layerbeam.pipeline.output.inputs import find_inputs
from layerbeam.pipeline.output.jobs import DataflowJob, endpoint_of
from layerbeam.pipeline.output.run_log import load_runs
from layerbeam.pipeline.output.work import PendingWork
from layerbeam.pipeline.progress import JobProgress, show_progress
from layerbeam.pipeline.remote import preflight
from layerbeam.pipeline.run.build import build
from layerbeam.pipeline.run.engines import RemoteRunner
from layerbeam.pipeline.run.run import NOTHING_TO_DO, Ended, RunJob
from layerbeam.pipeline.run.signals import interrupting_signal
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.slice.slices import FileToRead
from layerbeam.transforms.storage.errors import reason_of_service

# Input files that the program that submits a job lists.
_FILES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteRun(RunJob):
    """A job submitted to a remote runner.

    The job itself looks at the input and the output folder. The program that submits it looks at the records of
    earlier runs, and at the first input files if there is none: a launcher has little memory and little time.

    `cancel_on_interrupt`: Ctrl-C cancels the job. It does so anyway if the job cannot continue without this program.
    """

    remote: RemoteRunner
    cancel_on_interrupt: bool = False

    @property
    def beam_options(self) -> PipelineOptions:
        return self.remote.options

    def run(self) -> Ended:
        preflight.check(self.job.config, self.remote)
        return super().run()

    def _find_inputs(self) -> list[InputFile]:
        return find_inputs(self.job.config.input.files, self.job.output.path, at_most=_FILES)

    def _run(self, found: Sequence[InputFile]) -> Ended:
        path, fingerprint = self.job.output.path, self.job.output.fingerprint
        runs = load_runs(path)
        if not runs:
            files = [file for file in found if not file.problem]
            self._check(PendingWork(to_read=[FileToRead(file) for file in files], files=files))
            note = preflight.parallelism_note(self.job, files, self.remote) if len(files) < _FILES else None
            if note is not None:
                echo_warning(f"input: {note}")
        was_done = bool(runs) and runs[-1]["fingerprint"] == fingerprint
        was_done = was_done and storage.exists(storage.join(path, layout.SUCCESS))
        log = self._begin_log({}, runner=self.remote.name, workers=None, processes=None)
        terminal = underlying(sys.stderr)
        result = None
        try:
            with quiet(self.verbose):
                pipeline = beam.Pipeline(options=self.remote.options)
                build(
                    pipeline,
                    self.job,
                    run_number=log.number,
                    num_threads=self.remote.threads,
                    prune_missing=self.prune_missing,
                    reread=self.reread,
                )
                handler = signal.getsignal(signal.SIGINT)
                result = pipeline.run()
                signal.signal(signal.SIGINT, handler)  # Beam's own would stop a job server that it has started
            log.submit(**self._place(result))
            self._print_location(result)
            if not self.remote.waits:
                return Ended.COMPLETE
            progress = JobProgress(path, result)
            with show_progress(progress, stream=terminal, plain=self.verbose), quiet(self.verbose):
                result.wait_until_finish()
        except BaseException as error:
            interrupted = interrupting_signal(error) is not None
            if not self._continues(result, error, interrupted):  # else the job or the next run records its end
                with contextlib.suppress(OSError):
                    log.end("interrupted" if interrupted else "failed", error=root_cause(error))
            if not interrupted:
                raise _service_error(error) or error from error
            raise KeyboardInterrupt(self._detach(result)) from error
        complete = log.end_measured(result)
        counts = log.record["counts"]
        if complete and was_done and not (counts.get(metrics.BLOCKS_WRITTEN) or counts.get(metrics.BLOCKS_COPIED)):
            echo_timed(NOTHING_TO_DO)
            return Ended.NOTHING_TO_DO
        echo_timed(f"{log.times()} on {self.remote.name}")
        return Ended(complete)

    def _continues(self, result: Any, error: BaseException, interrupted: bool) -> bool:
        """Whether the job may continue after the wait for it has ended with this error."""
        if result is None:
            return False
        if self.remote.is_dataflow and not (interrupted and self._cancels):
            return self._job(result) is not None and type(error).__name__ != "DataflowRuntimeException"  # the job's own
        if interrupted:
            return not self._cancels or self.remote.name == "FlinkRunner"  # whose job server does not pass it on
        return isinstance(error, grpc.RpcError)  # the job server has died

    @property
    def _cancels(self) -> bool:
        return self.cancel_on_interrupt or not self.remote.has_own_workers

    def _job(self, result: Any) -> DataflowJob | None:
        """Dataflow's job; None before there is one, and for a template. Other engines show theirs on a page."""
        if not self.remote.is_dataflow or result is None or not result.has_job:
            return None
        cloud = self.remote.options.view_as(GoogleCloudOptions)
        return DataflowJob(result.job_id(), cloud.project, cloud.region)

    def _place(self, result: Any) -> dict[str, str | None]:
        """What its record needs for finding the job."""
        cloud, job = self.remote.options.view_as(GoogleCloudOptions), self._job(result)
        if not self.remote.is_dataflow:
            return {"job": getattr(result, "_job_id", None), "endpoint": endpoint_of(self.remote.options)}
        # The service names the template's file after the job that it has made for the launch.
        launch = re.search(r"/template_launches/([^/]+)/", cloud.template_location or "")
        id_ = job.id if job is not None else launch and launch[1]
        return {"job": id_, "project": cloud.project, "region": cloud.region}

    def _print_location(self, result: Any) -> None:
        job = self._job(result)
        if job is None:
            echo_timed(f"submitted to {self.remote.name} as {self.remote.job_name}")
        else:
            echo_timed(f"submitted to Dataflow as {self.remote.job_name}, job {job.id}")
            echo_timed(job.page)

    def _detach(self, result: Any) -> str:
        """After an interrupt: let the job continue, or ask it to cancel; returns what to tell."""
        again = "run the same command again"
        if result is not None and not self._cancels:
            job = self._job(result)
            how = f"cancel {self.remote.job_name} on the engine's page" if job is None else job.cancel_command
            return f"interrupted; the job continues. To stop it: {how}"
        if result is not None:
            with contextlib.suppress(Exception):  # the engine may have died
                result.cancel()
            if self.remote.name == "FlinkRunner":  # its job server does not pass it on
                again = f"check on its page that the job has ended, then {again}"
        return f"interrupted; completed blocks are kept: {again} to resume"


def _service_error(error: BaseException) -> Exception | None:
    """The error of Google's service, in its own words, or of a job server; None for any other error."""
    if isinstance(error, grpc.RpcError):
        return RuntimeError(
            "the job server does not answer, and its job may continue: look at the engine's page before you resume"
        )
    status = getattr(error, "code", None)
    if type(error).__name__ == "DataflowJobAlreadyExistsError" or status == 409:
        return BusyError(f"{reason_of_service(str(error))}; wait for that job, or stop it")
    if not isinstance(status, int):
        return None
    # A wrong job or a missing permission stays wrong; anything else may succeed on another try.
    kind = UsageError if status in (400, 401, 403, 404) else RuntimeError
    return kind(f"Dataflow refused the job: {reason_of_service(str(error))}")
