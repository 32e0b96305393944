"""One run whose workers are elsewhere: checked, submitted, waited for."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
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
from layerbeam.pipeline.run.run import Run, quiet
from layerbeam.pipeline.run.signals import SignalGuard
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.storage.stores import reason_of_service


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteRun(Run):
    """A job given to a remote runner."""

    remote: RemoteRunner

    def __call__(self) -> bool:
        preflight.check(self.job.config, self.remote)
        return super().__call__()

    def _run(self, work: PendingWork) -> bool:
        load_tensorflow(Hardware())  # for the estimate only
        self._announce(work)
        log = self._begin_log(work, runner=self.remote.name, workers=None, processes=None)
        started, began = time.monotonic(), time.time()
        stop = SignalGuard()
        result = None
        try:
            with stop, quiet(self.verbose):
                result = self._submit(log.number)
            log.submit(self._job_id(result))
            self._say_where(result)
            if not self.remote.waits:
                return True
            with stop, quiet(self.verbose):
                result.wait_until_finish()
        except BaseException as error:
            goes_on = stop.number is not None and self._job_id(result) is not None
            if not goes_on:  # else the job itself will note its end
                with contextlib.suppress(OSError):
                    log.end("failed" if stop.number is None else "interrupted", error=root_cause(error))
            if stop.number is None:
                raise _refusal(error) or error from error
            self._let_go(result)
            raise InterruptedRunError(stop.number) from error
        complete = self._end_log(log, _metrics(result), started=started, began=began)
        echo(f"{log.record['seconds']:.1f} s on {self.remote.name}")
        return complete

    def _submit(self, number: int) -> Any:
        pipeline = beam.Pipeline(options=self.remote.options)
        threads = self.remote.threads
        build(pipeline, self.job, num_threads=threads, prune_missing=self.prune_missing, run_number=number)
        return pipeline.run()

    def _job_id(self, result: Any) -> str | None:
        """Dataflow's; None where there is no job yet, or only a template. Other engines show theirs on their pages."""
        return result.job_id() if self.remote.is_dataflow and result is not None and result.has_job else None

    def _say_where(self, result: Any) -> None:
        job = self._job_id(result)
        if job is None:
            echo(f"submitted to {self.remote.name}")
            return
        cloud = self.remote.options.view_as(GoogleCloudOptions)
        echo(f"submitted to Dataflow as {cloud.job_name}, job {job}")
        echo(f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job}?project={cloud.project}")

    def _let_go(self, result: Any) -> None:
        """After an interrupt: a job on Dataflow is its own; another engine is asked to end it, and Flink may not."""
        job = self._job_id(result)
        if job is not None:
            cloud = self.remote.options.view_as(GoogleCloudOptions)
            echo_error(
                "interrupted; the job goes on. To stop it: "
                f"gcloud dataflow jobs cancel {job} --region={cloud.region} --project={cloud.project}"
            )
            return
        if result is not None:
            with contextlib.suppress(Exception):  # the engine may be gone
                result.cancel()
        still = "see on its page that the job has ended, then " if self.remote.name == "FlinkRunner" else ""
        echo_error(f"interrupted; what is committed stays: {still}run the same command again to go on")


def _metrics(result: Any) -> Mapping[str, Any]:
    """Beam's metrics, as far as the runner has them: the run is done without."""
    try:
        found: Mapping[str, Any] = result.metrics().query()
    except Exception:
        return {"counters": [], "distributions": []}
    return found


def _refusal(error: BaseException) -> Exception | None:
    """What is wrong where a service is: Google's, in its own words, or a job server; None for anything else."""
    if isinstance(error, grpc.RpcError):
        return RuntimeError("the job server is gone, and its job may go on: look at the engine's page before you go on")
    status = getattr(error, "code", None)
    if type(error).__name__ == "DataflowJobAlreadyExistsError" or status == 409:
        return BusyError(f"{reason_of_service(str(error))}; wait for that job, or stop it")
    if not isinstance(status, int):
        return None
    # What is wrong with the job or with who may start it stays wrong; of anything else another time may be better.
    kind = UsageError if status in (400, 401, 403, 404) else RuntimeError
    return kind(f"Dataflow refuses the job: {reason_of_service(str(error))}")
