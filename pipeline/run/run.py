"""One run, from locking its output folder to the record of what it did; on this machine (`LocalRun`)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.build import build
from layerbeam.pipeline.cli.console import count_noun, echo, echo_error, size_text
from layerbeam.pipeline.cli.progress import Progress, show_progress
from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.errors import UsageError, root_cause
from layerbeam.pipeline.output.find import PendingWork, check_output, find_run_work, is_finished
from layerbeam.pipeline.output.lock import only_writer
from layerbeam.pipeline.output.manifest import describe_views
from layerbeam.pipeline.output.run_log import RunLog
from layerbeam.pipeline.plan.estimate import ENCODED, Estimate, Tokenizer, describe, estimate, free_bytes
from layerbeam.pipeline.plan.hard_wrap import wrapping_hint
from layerbeam.pipeline.run.engines import LocalRunner
from layerbeam.pipeline.run.signals import SignalGuard, WorkerCrashWatcher, quiet, underlying
from layerbeam.pipeline.run.speed import measure
from layerbeam.transforms import storage
from layerbeam.transforms.layout import SUCCESS


@dataclasses.dataclass(frozen=True)
class Run:
    """A job and how to run it: what local and remote runs share.

    `extra_bytes_ratio`: bytes written afterwards on the same disk, per byte of the parts. The other fields are options
    of `layerbeam run`.
    """

    job: Job
    force: bool = False
    prune_missing: bool = False
    verbose: bool = False
    extra_bytes_ratio: float = 0

    def run(self) -> bool:
        """Do what is left; True if all of the input is embedded. Raises UsageError or BusyError before it starts."""
        with only_writer(self.job.output.path):
            check_output(self.job.output.path, self.job.views, self.job.head)
            work = find_run_work(self.job.config.input.files, self.job.output.path, prune_missing=self.prune_missing)
            if work.is_empty and is_finished(self.job.output.path, self.job.config.input.max_reject_rate):
                echo("nothing to do: all of the input is embedded already")
                return True
            return self._run(work)

    def _run(self, work: PendingWork) -> bool:
        raise NotImplementedError

    def _announce(self, work: PendingWork) -> Estimate:
        """Print how much will be written. Raises UsageError if the disk has less space, unless `force`."""
        encoder = self.job.encoder
        if encoder.kind == "savedmodel":  # the other kinds have one engine only
            echo(f"encoder: engine {encoder.engine}: {encoder.engine_because}")
        hint = wrapping_hint(self.job, work)
        if hint is not None:
            echo(f"input: {hint}")
        expected = estimate(Tokenizer(self.job), work)
        done = work.texts_done
        if done:
            echo(f"resuming: {count_noun(done, 'text')} already embedded; the estimates below cover the rest")
        echo("to write: " + "; ".join(describe(expected, view) for view in self.job.views))
        path, free = self.job.output.path, free_bytes(self.job.output.path)
        total_bytes = expected.total_bytes * (1 + self.extra_bytes_ratio)
        if free is not None and total_bytes > free and not self.force:
            raise UsageError(
                f"output.path: {path} has {size_text(free)} free, and this run writes about "
                f"{size_text(total_bytes)}; take fewer layers, level text, truncate_dim, float16 or another disk; "
                "--force starts anyway"
            )
        return expected

    def _begin_log(self, work: PendingWork, **facts: Any) -> RunLog:
        inputs = {
            "files": len(work.files),
            "bytes": sum(file.size for file in work.files),
            "compressed": any(storage.is_compressed(file.path) for file in work.files),
        }
        path, views = self.job.output.path, describe_views(self.job.views)
        try:
            return RunLog.begin(path, self.job.head.to_json(), inputs=inputs, views=views, **facts)
        except OSError as error:
            raise UsageError(f"output.path: cannot write to {path}: {storage.reason_of(error)}") from error

    def _end_log(self, log: RunLog, found: Mapping[str, Any], *, started: float, began: float) -> bool:
        """Record how the run ended and how fast it was, by Beam's metrics; True if all of the input is embedded."""
        complete = storage.exists(storage.join(self.job.output.path, SUCCESS))
        performance = measure(found, seconds=time.monotonic() - started, began=began)
        log.end("done" if complete else "incomplete", **performance)
        return complete


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRun(Run):
    """A job run on this machine."""

    local: LocalRunner

    def _run(self, work: PendingWork) -> bool:
        path = self.job.output.path
        if not self.local.processes:
            self.job.load_tensorflow(self.local.threads)
        expected = self._announce(work)
        log = self._begin_log(work, workers=self.local.workers, processes=self.local.processes)
        started, began = time.monotonic(), time.time()
        result = self._run_pipeline(log, Progress(path, expected.statistic(ENCODED).value))
        complete = self._end_log(log, result.metrics().query(), started=started, began=began)
        seconds = log.record["seconds"]
        echo(f"{seconds:.1f} s with {count_noun(self.local.workers, 'worker')}")
        return complete

    def _run_pipeline(self, log: RunLog, progress: Progress) -> Any:
        guard = SignalGuard()
        watcher = WorkerCrashWatcher(guard)
        terminal = underlying(sys.stderr)
        try:
            with guard, watcher, show_progress(progress, stream=terminal, plain=self.verbose), quiet(self.verbose):
                pipeline = beam.Pipeline(runner=self.local.runner, options=self.local.options)
                build(pipeline, self.job, num_threads=self.local.threads, prune_missing=self.prune_missing)
                result = pipeline.run()
                result.wait_until_finish()
                return result
        except BaseException as error:
            reason = watcher.message or ("interrupted" if guard.number is not None else None)
            state = "interrupted" if reason == "interrupted" else "failed"
            with contextlib.suppress(OSError):  # such as a full disk, which must not hide the cause
                log.end(state, error=watcher.message or root_cause(error))
            # The runner turns an interrupt during its work into a RuntimeError.
            if reason is None:
                raise
            echo_error(f"{reason}; completed blocks are kept: run the same command again to resume")
            # The runner's threads may still process a block, or wait for a worker that died; only the end of the
            # process ends them. Their unfinished files have names of their own, and the next run deletes them.
            os._exit(1 if guard.number is None or watcher.message else 128 + guard.number)
