"""A run on remote workers: checked, submitted, waited for."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import GoogleCloudOptions

from layerbeam.pipeline.build import build
from layerbeam.pipeline.cli.console import echo, echo_error
from layerbeam.pipeline.errors import BusyError, InterruptedRunError, UsageError, root_cause
from layerbeam.pipeline.output.find import PendingWork
from layerbeam.pipeline.remote import preflight
from layerbeam.pipeline.run.engines import RemoteRunner
from layerbeam.pipeline.run.run import Ended, Run
from layerbeam.pipeline.run.signals import SignalGuard, quiet
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.storage.errors import reason_of_service


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteRun(Run):
    """A job submitted to a remote runner."""

    remote: RemoteRunner

    def run(self) -> Ended:
        preflight.check(self.job.config, self.remote)
        return super().run()

    def _run(self, work: PendingWork) -> bool:
        load_tensorflow(Hardware())  # for the estimate
        self._announce(work)
        log = self._begin_log(work, runner=self.remote.name, workers=None, processes=None)
        guard = SignalGuard()
        result = None
        try:
            with guard, quiet(self.verbose):
                pipeline, threads = beam.Pipeline(options=self.remote.options), self.remote.threads
                build(pipeline, self.job, num_threads=threads, prune_missing=self.prune_missing, run_number=log.number)
                result = pipeline.run()
            log.submit(self._job_id(result))
            self._print_location(result)
            if not self.remote.waits:
                return True
            with guard, quiet(self.verbose):
                result.wait_until_finish()
        except BaseException as error:
            continues = guard.number is not None and self._job_id(result) is not None
            if not continues:  # else the job itself will record its end
                with contextlib.suppress(OSError):
                    log.end("failed" if guard.number is None else "interrupted", error=root_cause(error))
            if guard.number is None:
                raise _service_error(error) or error from error
            self._detach(result)
            raise InterruptedRunError(guard.number) from error
        complete = log.end_measured(result)
        echo(f"{log.times()} on {self.remote.name}")
        return complete

    def _job_id(self, result: Any) -> str | None:
        """Dataflow's job id; None before there is a job, and for a template. Other engines show theirs on a page."""
        return result.job_id() if self.remote.is_dataflow and result is not None and result.has_job else None

    def _print_location(self, result: Any) -> None:
        job, cloud = self._job_id(result), self.remote.options.view_as(GoogleCloudOptions)
        if job is None:
            echo(f"submitted to {self.remote.name}")
        else:
            echo(f"submitted to Dataflow as {cloud.job_name}, job {job}")
            echo(f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job}?project={cloud.project}")

    def _detach(self, result: Any) -> None:
        """After an interrupt: a Dataflow job continues; other engines are asked to cancel, which Flink may not do."""
        job, cloud = self._job_id(result), self.remote.options.view_as(GoogleCloudOptions)
        if job is not None:
            stop = f"gcloud dataflow jobs cancel {job} --region={cloud.region} --project={cloud.project}"
            echo_error(f"interrupted; the job continues. To stop it: {stop}")
            return
        if result is not None:
            with contextlib.suppress(Exception):  # the engine may have died
                result.cancel()
        first = "check on its page that the job has ended, then " if self.remote.name == "FlinkRunner" else ""
        echo_error(f"interrupted; completed blocks are kept: {first}run the same command again to resume")


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
