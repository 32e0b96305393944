"""One run, from the folder it may write to the record of what it did; on this machine (`LocalRun`)."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO, cast

import apache_beam as beam

from layerbeam.pipeline.build import build
from layerbeam.pipeline.cli.console import count_noun, echo, echo_error, size_text
from layerbeam.pipeline.cli.progress import Progress, shown
from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.errors import UsageError, root_cause
from layerbeam.pipeline.output.find import PendingWork, check_output, find_run_work, is_finished
from layerbeam.pipeline.output.lock import only_writer
from layerbeam.pipeline.output.manifest import describe_views
from layerbeam.pipeline.output.run_log import RunLog
from layerbeam.pipeline.plan.estimate import ENCODED, Estimate, Tokenizer, describe, estimate, free_bytes
from layerbeam.pipeline.plan.hard_wrap import wrapping_hint
from layerbeam.pipeline.run.engines import LocalRunner
from layerbeam.pipeline.run.signals import MainThreadStream, SignalGuard, WorkerCrashWatcher
from layerbeam.pipeline.run.speed import measure
from layerbeam.transforms import storage
from layerbeam.transforms.layout import SUCCESS


@dataclasses.dataclass(frozen=True)
class Run:
    """A job and how it is run: what is the same here and elsewhere.

    `extra_bytes_ratio`: what is made from each byte of the parts afterwards, on the same disk. The rest as
    `layerbeam run --help` has it.
    """

    job: Job
    force: bool = False
    prune_missing: bool = False
    verbose: bool = False
    extra_bytes_ratio: float = 0

    def __call__(self) -> bool:
        """Do what is left to do; whether all of the input is embedded now. UsageError, BusyError before it starts."""
        with only_writer(self.job.output.path):
            check_output(self.job.output.path, self.job.views, self.job.head)
            work = find_run_work(self.job.config.input.files, self.job.output.path, prune_missing=self.prune_missing)
            if work.is_empty and is_finished(self.job.output.path, self.job.config.input.max_rejected):
                echo("nothing to do: all of the input is embedded already")
                return True
            return self._run(work)

    def _run(self, work: PendingWork) -> bool:
        raise NotImplementedError

    def _announce(self, work: PendingWork) -> Estimate:
        """Say how much will be written. UsageError where the disk has less, unless `force`."""
        encoder = self.job.encoder
        if encoder.kind == "savedmodel":  # of the others there is but one engine
            echo(f"encoder: engine {encoder.engine}: {encoder.engine_because}")
        hint = wrapping_hint(self.job, work)
        if hint is not None:
            echo(f"input: {hint}")
        expected = estimate(Tokenizer(self.job), work)
        done = work.texts_done
        if done:
            echo(f"going on: {count_noun(done, 'text')} done before; what follows is the rest")
        echo("to write: " + "; ".join(describe(expected, view) for view in self.job.views))
        path, free = self.job.output.path, free_bytes(self.job.output.path)
        total_bytes = expected.total_bytes * (1 + self.extra_bytes_ratio)
        if free is not None and total_bytes > free and not self.force:
            raise UsageError(
                f"output.path: {path} has {size_text(free)} free, and this run writes about "
                f"{size_text(total_bytes)}; take fewer layers, level text, dims, float16 or another disk; "
                "--force starts all the same"
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
        """Note what came of it, and how fast, by Beam's metrics; whether all of the input is embedded."""
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
        result = self._run_pipeline(log, Progress(path, expected.figure(ENCODED).value))
        complete = self._end_log(log, result.metrics().query(), started=started, began=began)
        seconds = log.record["seconds"]
        echo(f"{seconds:.1f} s with {count_noun(self.local.workers, 'worker')}")
        return complete

    def _run_pipeline(self, log: RunLog, progress: Progress) -> Any:
        stop = SignalGuard()
        death = WorkerCrashWatcher(stop)
        try:
            with stop, death, shown(progress, plain=self.verbose), quiet(self.verbose):
                pipeline = beam.Pipeline(runner=self.local.runner, options=self.local.options)
                build(pipeline, self.job, num_threads=self.local.threads, prune_missing=self.prune_missing)
                result = pipeline.run()
                result.wait_until_finish()
        except BaseException as error:
            why = death.message or ("interrupted" if stop.number is not None else None)
            state = "interrupted" if why == "interrupted" else "failed"
            with contextlib.suppress(OSError):  # a full disk, say, must not hide the cause
                log.end(state, error=death.message or root_cause(error))
            # The runner makes a RuntimeError of an interrupt that comes while it works.
            if why is None:
                raise
            echo_error(f"{why}; what is committed stays: run the same command again to go on")
            # The runner's threads may still hold a block, or wait for a worker that is no more, and nothing ends them
            # but the end of the process. What they left unfinished lies under a name of its own, and goes with the
            # next run.
            os._exit(1 if stop.number is None or death.message else 128 + stop.number)
        if isinstance(sys.stderr, MainThreadStream):
            sys.stderr = sys.stderr.stream
        return result


@contextlib.contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Beam prints the traceback of a worker's error before it raises it, and those of other workers even later, so
    after the end of this, too: one message is enough. Nothing is kept back where `verbose`.
    """
    if verbose:
        yield
        return
    sys.stderr = cast(TextIO, MainThreadStream(sys.stderr))
    with contextlib.redirect_stderr(io.StringIO()):
        yield
