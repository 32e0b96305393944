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
from apache_beam.io.filesystem import BeamIOError

from pipeline.build import build
from pipeline.errors import UsageError, cause, complain, say
from pipeline.interrupts import OfMainThread, Stop, WorkerDeath
from pipeline.output.check_files import missing_tables
from pipeline.output.commits import PARTS, load_commits, load_damaged
from pipeline.output.lock import LOCK, WRITER, only_writer
from pipeline.output.manifest import MANIFEST, SUCCESS, describe_views, differences, load_manifest
from pipeline.output.resume import Work, find_work
from pipeline.output.runlog import RUNS, RunLog, load_runs
from pipeline.performance import measure
from pipeline.plan.estimate import ENCODED, Estimate, Tokenizer, describe, estimate, free_bytes
from pipeline.plan.wrapped import wrapping_hint
from pipeline.progress import Progress, shown
from pipeline.report import REPORT
from pipeline.resolve import Job
from pipeline.runners import LocalRunner
from pipeline.terminal import count_noun, size_text
from transforms import filesystem
from transforms.hardware import DeviceError, Hardware, load_tensorflow
from transforms.parts import part_folder
from transforms.records import InputFile
from transforms.write import COMMITS, REJECTS, TEMPORARY


@dataclasses.dataclass(frozen=True)
class Run:
    """A job and how it is run: what is the same here and elsewhere.

    `bytes_beside`: what is made from each byte of the parts afterwards, on the same disk. The rest as
    `layerbeam run --help` has it.
    """

    job: Job
    force: bool = False
    remove_gone: bool = False
    verbose: bool = False
    bytes_beside: float = 0

    def __call__(self) -> bool:
        """Do what is left to do; whether all of the input is embedded now. UsageError, BusyError before it starts."""
        with only_writer(self.job.output.path):
            check_output(self.job)
            work = find_run_work(self.job.config.input.files, self.job.output.path, remove_gone=self.remove_gone)
            if work.is_nothing and _is_finished(self.job):
                say("nothing to do: all of the input is embedded already")
                return True
            return self._run(work)

    def _run(self, work: Work) -> bool:
        raise NotImplementedError

    def _announce(self, work: Work) -> Estimate:
        """Say how much will be written. UsageError where the disk has less, unless `force`."""
        encoder = self.job.encoder
        if encoder.kind == "savedmodel":  # of the others there is but one engine
            say(f"encoder: engine {encoder.engine}: {encoder.engine_because}")
        hint = wrapping_hint(self.job, work)
        if hint is not None:
            say(f"input: {hint}")
        expected = estimate(Tokenizer(self.job), work)
        say("to write: " + "; ".join(describe(expected, view) for view in self.job.views))
        path, free = self.job.output.path, free_bytes(self.job.output.path)
        total_bytes = expected.total_bytes * (1 + self.bytes_beside)
        if free is not None and total_bytes > free and not self.force:
            raise UsageError(
                f"output.path: {path} has {size_text(free)} free, and this run writes about "
                f"{size_text(total_bytes)}; take fewer layers, level text, dims, float16 or another disk; "
                "--force starts all the same"
            )
        return expected

    def _begin_log(self, work: Work, **facts: Any) -> RunLog:
        files = [report for report in work.known if isinstance(report, InputFile)]
        inputs = {
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "compressed": any(filesystem.is_compressed(file.path) for file in files),
        }
        path, views = self.job.output.path, describe_views(self.job.views)
        try:
            return RunLog.begin(path, self.job.head.to_json(), inputs=inputs, views=views, **facts)
        except OSError as error:
            raise UsageError(f"output.path: cannot write to {path}: {filesystem.reason_of(error)}") from error

    def _end_log(self, log: RunLog, found: Mapping[str, Any], *, started: float, began: float) -> bool:
        """Note what came of it, and how fast, by Beam's metrics; whether all of the input is embedded."""
        complete = filesystem.exists(filesystem.join(self.job.output.path, SUCCESS))
        performance = measure(found, seconds=time.monotonic() - started, began=began)
        log.end("done" if complete else "incomplete", **performance)
        return complete


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRun(Run):
    """A job run on this machine."""

    local: LocalRunner

    def _run(self, work: Work) -> bool:
        path = self.job.output.path
        if not self.local.processes:
            self._load_tensorflow()
        expected = self._announce(work)
        log = self._begin_log(work, workers=self.local.workers, processes=self.local.processes)
        started, began = time.monotonic(), time.time()
        result = self._run_pipeline(log, Progress(path, expected.figure(ENCODED).value))
        complete = self._end_log(log, result.metrics().query(), started=started, began=began)
        seconds = log.record["seconds"]
        say(f"{seconds:.1f} s with {count_noun(self.local.workers, 'worker')}")
        return complete

    def _load_tensorflow(self) -> None:
        try:
            load_tensorflow(Hardware(self.local.threads, self.job.config.encoder.device))
        except DeviceError as error:
            raise UsageError(str(error)) from error

    def _run_pipeline(self, log: RunLog, progress: Progress) -> Any:
        stop = Stop()
        death = WorkerDeath(stop)
        try:
            with stop, death, shown(progress, plain=self.verbose), quiet(self.verbose):
                pipeline = beam.Pipeline(runner=self.local.runner, options=self.local.options)
                build(pipeline, self.job, num_threads=self.local.threads, remove_gone=self.remove_gone)
                result = pipeline.run()
                result.wait_until_finish()
        except BaseException as error:
            why = death.message or ("interrupted" if stop.number is not None else None)
            state = "interrupted" if why == "interrupted" else "failed"
            with contextlib.suppress(OSError):  # a full disk, say, must not hide the cause
                log.end(state, error=death.message or cause(error))
            # The runner makes a RuntimeError of an interrupt that comes while it works.
            if why is None:
                raise
            complain(f"{why}; what is committed stays: run the same command again to go on")
            # The runner's threads may still hold a block, or wait for a worker that is no more, and nothing ends them
            # but the end of the process. What they left unfinished lies under a name of its own, and goes with the
            # next run.
            os._exit(1 if stop.number is None or death.message else 128 + stop.number)
        if isinstance(sys.stderr, OfMainThread):
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
    sys.stderr = cast(TextIO, OfMainThread(sys.stderr))
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def find_run_work(patterns: list[str], output_path: str, *, remove_gone: bool = False) -> Work:
    """What is left to do. UsageError where no file matches, or a pattern cannot be matched."""
    try:
        work = find_work(patterns, output_path, remove_gone=remove_gone)
    except BeamIOError as error:
        raise UsageError(f"input.files: {error}") from error
    if not work.known and not work.to_read:
        relative = any(filesystem.is_local(pattern) and not os.path.isabs(pattern) for pattern in patterns)
        here = f" (from {os.getcwd()})" if relative else ""
        raise UsageError(f"input.files: no file matches {', '.join(patterns)}{here}")
    return work


def check_output(job: Job) -> None:
    """UsageError where the folder holds something else, or a run with other settings."""
    path = job.output.path
    runs = load_runs(path)
    before = runs[-1] if runs else load_manifest(path)
    if before is None:
        # A first start may have died, on a full disk, say, before or while it said what it was.
        names = set(os.listdir(path)) if filesystem.is_local(path) and os.path.isdir(path) else set()
        ours = {LOCK, WRITER, TEMPORARY, RUNS}
        if RUNS in names and all(commit.fingerprint == job.head.fingerprint for commit in load_commits(path)):
            # Its record is lost: what is committed has these settings all the same.
            ours |= {
                COMMITS,
                REJECTS,
                PARTS,
                MANIFEST,
                REPORT,
                *(part_folder(view).split("/")[0] for view in job.views),
            }
            ours |= {view.name for view in job.views}
        foreign = sorted(names - ours)
        if foreign:
            raise UsageError(
                f"output.path: {path} is not empty and holds no layerbeam run ({', '.join(foreign[:3])}); "
                "give a new folder"
            )
        return
    if before["fingerprint"] != job.head.fingerprint:
        changed = differences(before["identity"], job.head.identity)
        raise UsageError(
            f"output.path: {path} holds a run with other settings, and rows of both do not belong together; "
            "give a new folder, or take the settings back:\n" + "\n".join(f"  {line}" for line in changed)
        )


def _is_finished(job: Job) -> bool:
    """Whether an earlier run ended well, also by what this one allows to be rejected, and all it wrote is there."""
    path = job.output.path
    manifest = load_manifest(path)
    if (
        manifest is None
        or not manifest["complete"]
        or not filesystem.exists(filesystem.join(path, SUCCESS))
        or load_damaged(path)
    ):
        return False
    try:
        same = manifest["settings"]["input"]["max_rejected"] == job.config.input.max_rejected
        return same and not missing_tables(path, manifest)
    except (KeyError, TypeError):
        return False  # somebody's changes: it is written anew
