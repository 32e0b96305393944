"""One run, from locking its output folder to the record of what it did; on this machine (`LocalRun`)."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from apache_beam.options import pipeline_options

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.console import count_noun, echo_error, echo_timed, echo_warning, quiet, size_text, underlying
from layerbeam.pipeline.errors import UsageError, root_cause
from layerbeam.pipeline.forecast.estimate import (
    ENCODED,
    Estimate,
    changed_text,
    describe,
    estimate,
    files_note,
    free_bytes,
    notes_of,
    num_changed,
)
from layerbeam.pipeline.forecast.memory import memory_need
from layerbeam.pipeline.output.access import check_output, discard_other_settings
from layerbeam.pipeline.output.inputs import find_inputs
from layerbeam.pipeline.output.lock import only_writer
from layerbeam.pipeline.output.manifest import describe_views
from layerbeam.pipeline.output.normalizer import keep_normalizer
from layerbeam.pipeline.output.run_log import RunLog
from layerbeam.pipeline.output.work import PendingWork, begin_work, find_work, is_finished
from layerbeam.pipeline.progress import Progress, show_progress
from layerbeam.pipeline.run.detect_format import find_format, refuse_other_format
from layerbeam.pipeline.run.engines import LocalRunner
from layerbeam.pipeline.run.fields import check_fields
from layerbeam.pipeline.run.hard_wrap import wrapping_hint
from layerbeam.pipeline.run.signals import WorkerDiedError, interrupting_signal
from layerbeam.transforms import storage
from layerbeam.transforms.encoders import vocabulary_note
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.hardware import memory_left, slow_bfloat16

# An input that one worker scans while Beam would still start others.
_SMALL_BYTES = 64 << 20

NOTHING_TO_DO = "nothing to do: all of the input is embedded already"


class Ended(enum.IntEnum):
    """The outcome of a run; falsy if it is incomplete."""

    INCOMPLETE = 0
    COMPLETE = 1
    NOTHING_TO_DO = 2

    @property
    def did_work(self) -> bool:
        return self is not Ended.NOTHING_TO_DO


@dataclasses.dataclass(frozen=True)
class RunJob:
    """A job and how to run it: what local and remote runs share.

    `began`: when the program started, by `time.monotonic`; None: when the run began.
    `extra_bytes_ratio`: bytes written afterwards on the same disk, per byte of the parts. `claim`: the number of the
    attempt, and who works for it, while it has the folder. The other fields are options of `layerbeam run`.
    """

    job: Job
    force: bool = False
    prune_missing: bool = False
    reread: bool = False
    verbose: bool = False
    began: float | None = None
    extra_bytes_ratio: float = 0
    claim: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def beam_options(self) -> pipeline_options.PipelineOptions:
        raise NotImplementedError

    def run(self) -> Ended:
        """Do what is left. Raises UsageError or BusyError before it starts."""
        path = self.job.output.path
        with only_writer(path, force=self.force, beam_options=self.beam_options) as claim:
            found = self._find_inputs()
            run = dataclasses.replace(self, job=find_format(self.job, found), claim=claim)
            check_output(path, run.job.views, run.job.run_identity, claim["run"])
            discard_other_settings(path, run.job.run_identity)
            try:
                keep_normalizer(path, run.job.encoder)
            except OSError as error:
                raise _unwritable(path, error) from error
            return run._run(found)

    def _find_inputs(self) -> list[InputFile]:
        """The input files, or the first ones."""
        return find_inputs(self.job.config.input.files, self.job.output.path)

    def _run(self, found: Sequence[InputFile]) -> Ended:
        """Do what is left of the input; `found`: what `_find_inputs` gave."""
        raise NotImplementedError

    def _check(self, work: PendingWork) -> None:
        """UsageError for input that is not what the configuration says."""
        refuse_other_format(self.job, work)
        if not self.force:
            check_fields(self.job, work)

    def _announce(self, work: PendingWork) -> Estimate:
        """Print how much will be written. UsageError if the disk has less, and no rows are copied, but with `force`."""
        encoder = self.job.encoder
        if encoder.kind == "savedmodel":  # the other kinds have one engine only
            echo_timed(f"encoder: engine {encoder.engine}: {encoder.engine_because}")
        note = vocabulary_note(encoder.describe())
        if note is not None:
            echo_warning(f"encoder: {note}")
        hint = wrapping_hint(self.job, work)
        if hint is not None:
            echo_warning(f"input: {hint}")
        expected = estimate(self.job, work)
        for line in (*self.job.notes, *notes_of(expected, self.job), files_note(expected, self.job, work)):
            if line is not None:
                echo_timed(line)
        if work.texts_done:
            done = f"{count_noun(work.texts_done, 'text')} already embedded"
            echo_timed(f"resuming: {done}; the estimates below cover the rest")
        changed = num_changed(work)
        if changed:
            echo_timed(changed_text(changed))
        views = work.new_views(self.job.views)
        sampled = "" if expected.is_whole else " (estimated from a sample)"
        most = " at most" if changed else ""
        echo_timed(f"to write{most}{sampled}: " + "; ".join(describe(expected, view) for view in views))
        path, free = self.job.output.path, free_bytes(self.job.output.path)
        sizes = (expected.view_bytes[view.name] + expected.sums_bytes.get(view.name, 0) for view in views)
        total_bytes = sum(sizes) * (1 + self.extra_bytes_ratio)
        if free is not None and total_bytes > free and not self.force:
            writes = f"output.path: {path} has {size_text(free)} free, and this run writes"
            if not changed:
                raise UsageError(
                    f"{writes} about {size_text(total_bytes)}; take fewer layers, level text, truncate_dim, int8, "
                    "float16 or another disk; --force starts anyway"
                )
            echo_warning(f"{writes} up to {size_text(total_bytes)}, less if little has changed")
        return expected

    def _begin_log(self, inputs: Mapping[str, Any], **facts: Any) -> RunLog:
        startup = 0.0 if self.began is None else time.monotonic() - self.began
        facts["startup_seconds"] = round(startup, 2)
        facts |= {"model_notes": list(self.job.notes)} if self.job.notes else {}
        path, views = self.job.output.path, describe_views(self.job.views)
        try:
            return RunLog.begin(path, self.job.run_identity, inputs=inputs, views=views, **self.claim, **facts)
        except OSError as error:
            raise _unwritable(path, error) from error


def _unwritable(path: str, error: OSError) -> UsageError:
    return UsageError(f"output.path: cannot write to {path}: {storage.reason_of(error)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRun(RunJob):
    """A job run on this machine."""

    local: LocalRunner

    @property
    def beam_options(self) -> pipeline_options.PipelineOptions:
        return self.local.options

    def _announce(self, work: PendingWork) -> Estimate:
        slow = slow_bfloat16(self.job.config.encoder.compute_dtype)
        if slow is not None:
            echo_warning(f"encoder: {slow}")
        return super()._announce(work)

    def _run(self, found: Sequence[InputFile]) -> Ended:
        work = find_work(self.job, prune_missing=self.prune_missing, reread=self.reread, found=found)
        if is_finished(self.job.output.path, self.job.config.input.max_reject_rate, work):
            echo_timed(NOTHING_TO_DO)
            return Ended.NOTHING_TO_DO
        self._check(work)
        return Ended(self._embed(work))

    def _check_memory(self, expected: Estimate, left: int | None) -> None:
        """Print what a long text takes. UsageError if it is more than is `left`, but with `force`."""
        need = memory_need(self.job, expected, left, self.local.threads, self.local.processes)
        if need is None:
            return
        if need.problem is not None and not self.force:
            raise UsageError(f"{need.problem}; --force starts anyway")
        if need.is_notable:
            echo_timed(f"memory: {need.text}")

    def _embed(self, work: PendingWork) -> bool:
        """Do this work; True if all of the input is embedded then."""
        local = self.local
        left = memory_left()
        local.load(self.job)
        expected = self._announce(work)
        self._check_memory(expected, left)
        progress = Progress(self.job.output.path, expected.statistic(ENCODED).value)
        inputs = {
            "files": len(work.files),
            "bytes": sum(file.size for file in work.files),
            "compressed": any(storage.is_compressed(file.path) for file in work.files),
        }
        log = self._begin_log(inputs, workers=local.workers, processes=local.processes)
        terminal = underlying(sys.stderr)
        try:
            begin_work(self.job, log.number, work)
            with show_progress(progress, stream=terminal, plain=self.verbose), quiet(self.verbose):
                left = sum(item.file.size for item in work.to_read)
                result = local.execute(self.job, log.number, spread=left > _SMALL_BYTES)
        except BaseException as error:
            number, died = interrupting_signal(error), isinstance(error, WorkerDiedError)
            reason = "interrupted" if number else str(error) if died else root_cause(error)
            with contextlib.suppress(OSError):  # such as a full disk, which must not hide the cause
                log.end("interrupted" if number else "failed", error=reason)
            if not (number or died):
                raise
            echo_error(f"{reason}; completed blocks are kept: run the same command again to resume")
            # The runner's threads may still process a block, or wait for a worker that died; only the end of the
            # process ends them. Their unfinished files have names of their own, and the next run deletes them.
            os._exit(128 + number if number else 1)
        complete = log.end_measured(result)
        echo_timed(f"{log.times()} with {count_noun(local.workers, 'worker')}")
        return complete
