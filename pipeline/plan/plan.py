"""The plan of a run: what it will read, write and take, from a sample of the corpus."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.console import echo_timed
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.forecast.estimate import (
    ENCODED,
    ENCODED_TEXTS,
    PADDED,
    PART_ROWS,
    SEQUENCE_TOKENS,
    TEXT_BYTES,
    TEXTS,
    Estimate,
    Statistic,
    estimate,
    files_note,
    free_bytes,
    notes_of,
    num_changed,
)
from layerbeam.pipeline.forecast.memory import MemoryNeed, memory_need
from layerbeam.pipeline.forecast.sampling import Budget, bytes_left
from layerbeam.pipeline.output.access import check_output, starts_over
from layerbeam.pipeline.output.finish import MISSING, find_problems
from layerbeam.pipeline.output.inputs import find_inputs
from layerbeam.pipeline.output.rejects import frequent_remedies
from layerbeam.pipeline.output.work import PendingWork, find_work
from layerbeam.pipeline.plan.measure import Measurement, measure
from layerbeam.pipeline.run.detect_format import find_format, refuse_other_format
from layerbeam.pipeline.run.fields import check_fields
from layerbeam.pipeline.run.hard_wrap import wrapping_hint
from layerbeam.transforms import storage
from layerbeam.transforms.encoders import vocabulary_note
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Int64Array
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.hardware import cores, memory_left, slow_bfloat16
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.slice.slices import FileToRead

BUDGET = Budget(16 << 20, 1024, seconds=2.0)
# Planning takes a quarter of the run's time, but may take so many seconds; and the program no more than so many.
_PLAN_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.25, 3.0, 14.0
MAX_SEQ_LENGTHS = (64, 128, 256, 512)
_BINS = 12
_HOUR = 3600

# A local run's time in addition to its blocks: Beam builds, starts and ends a pipeline, hands on each block, and reads
# its commit at the end. Measured with runs of 1, 300, 1,500 and 4,500 files of three lines, with a very small encoder.
_RUNNER_SECONDS = 2.0
_RUNNER_SECONDS_PER_BLOCK = 0.001

# With fewer blocks for each vCPU, a few end long after the others.
_BLOCKS_PER_VCPU = 20

_STATISTICS = {
    "records": metrics.RECORDS,
    "texts": TEXTS,
    "tokens": metrics.TOKENS,
    "encoded_tokens": SEQUENCE_TOKENS,
    "blank": metrics.BLANK,
    "filtered": metrics.FILTERED,
    "rejected": metrics.REJECTED,
    "truncated_texts": metrics.TRUNCATED_TEXTS,
    "dropped_tokens": metrics.DROPPED_TOKENS,
}


@dataclasses.dataclass(frozen=True)
class Machines:
    """Dataflow's workers: how many, and the vCPUs of one."""

    count: int
    vcpus: int


@dataclasses.dataclass(frozen=True)
class SampleSize:
    """What was read. `places`: draws. `beginnings_only`: of compressed and CSV files only the start was read."""

    files: int
    places: int
    text_bytes: int
    is_whole: bool
    beginnings_only: bool


@dataclasses.dataclass(frozen=True)
class InputSummary:
    """The input files. `bytes_to_do`: without blocks that are done. `compressed`: of the files to do."""

    files: int
    bytes: int
    files_to_do: int
    bytes_to_do: int
    compressed: int
    sample: SampleSize


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens of a text, or context, with special tokens. `bins`: {"from", "to", "texts"}, whose ends double."""

    bins: list[dict[str, int]]
    median: int = 0
    percentile_95: int = 0
    longest_seen: int = 0
    of: Literal["text", "context"] = "text"


@dataclasses.dataclass(frozen=True)
class Truncation:
    """The fractions of texts longer than a `max_seq_length`, and of tokens that truncation would lose."""

    max_seq_length: int
    longer: float
    tokens_lost: float


@dataclasses.dataclass(frozen=True)
class ViewSize:
    """A view's rows, twice their standard error, and the bytes of its vectors and of its files.

    `sums_bytes`: of the sums from which later runs make the table of a word-type view again.
    """

    level: str
    rows: int
    margin: int
    vector_bytes: int
    bytes: int
    sums_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Duration:
    """A local run's time. `burst`: the tokens and seconds of what was encoded for the plan."""

    workers: int
    seconds: float
    parts: dict[str, float]
    tokens_per_second: int
    padding: float
    core_hours: float
    burst: dict[str, float] | None


@dataclasses.dataclass(frozen=True)
class DataflowTime:
    """A run on Dataflow. `vcpus_at_work`: those that have a block to work on. `start_with`: machines."""

    machines: int
    vcpus: int
    vcpus_at_work: int
    start_with: int
    hours: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `layerbeam plan` prints; the names of all these fields are the keys of `--json`."""

    path: str
    encoder: dict[str, Any]
    seed: int
    input: InputSummary
    kept: dict[str, int]  # texts and tokens of earlier runs that stay
    new_views: list[str]  # those that are written: the folder has the others of all texts left to do
    changed: int  # files whose rows are copied as far as the folder has rows of their bytes or texts
    hints: list[str]
    estimates: dict[str, Statistic]
    lengths: Lengths
    max_seq_lengths: list[Truncation]
    long_text: str
    duplicates: dict[str, float]
    rejects_seen: dict[str, int]
    remedies: list[str]
    blocks: int
    views: dict[str, ViewSize]
    free_bytes: int | None
    memory: MemoryNeed | None  # of the longest text; None on other machines, and where it is not known
    time: Duration
    dataflow: DataflowTime | None
    is_refused: bool  # a run would refuse the output folder, or a text that needs more memory than there is
    problems: list[str]  # why the run will not be complete

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def make_plan(
    job: Job, *, workers: int | None, seed: int, machines: Machines | None = None, began: float | None = None
) -> Plan:
    """Plan a run from a sample of the input. Writes into a temporary folder only.

    `began`: when the program started, by `time.monotonic`. Raises UsageError if a run would refuse its input.
    """
    began = time.monotonic() if began is None else began
    workers = workers or cores()
    left = memory_left() if machines is None else None
    job.load_tensorflow(workers)
    startup_seconds = time.monotonic() - began
    given = job.config.input
    found = find_inputs(given.files, job.output.path)
    job = find_format(job, found)
    work, note = _find_work(job, found)
    check_fields(job, work)
    began_to_read = time.monotonic()
    echo_timed("reading slices of the input ...")
    sample = estimate(job, work, BUDGET, seed)

    def time_left(encode_seconds: float) -> float:
        run_seconds = startup_seconds + _RUNNER_SECONDS + sample.read_seconds / workers + encode_seconds
        until = began_to_read + max(_PLAN_SHARE * run_seconds, _LEAST_SECONDS)
        return min(until, began + _MOST_SECONDS) - time.monotonic()

    echo_timed("encoding some of their texts ...")
    measured = measure(job, sample, workers, time_left)
    duration = _duration(sample, measured, workers, startup_seconds)
    lengths, weights = sample.lengths()
    rejects = (reject.kind for block in sample.blocks for reject in block.records.rejected)
    reasons = dict(collections.Counter(rejects).most_common())
    encoder = job.encoder.describe()
    slow = slow_bfloat16(job.config.encoder.compute_dtype) if machines is None else None
    memory = memory_need(job, sample, left, workers) if machines is None else None
    too_large = None if memory is None else memory.problem
    hints = (note, vocabulary_note(encoder), slow, wrapping_hint(job, work), *job.notes, *notes_of(sample, job))
    hints += (files_note(sample, job, work),)
    return Plan(
        path=job.output.path,
        encoder=encoder,
        seed=seed,
        input=_summarize_input(work, sample, job.records),
        kept={"texts": work.texts_done, "tokens": work.tokens_done},
        new_views=[view.name for view in work.new_views(job.views)],
        changed=num_changed(work),
        hints=[hint for hint in hints if hint is not None],
        estimates={name: sample.statistic(statistic).rounded() for name, statistic in _STATISTICS.items()},
        lengths=dataclasses.replace(
            _summarize_lengths(lengths, weights), of="text" if job.config.encoder.context == "text" else "context"
        ),
        max_seq_lengths=_truncations(job, lengths, weights),
        long_text=job.sequences.long_text,
        duplicates=_duplicates(sample),
        rejects_seen=reasons,
        remedies=frequent_remedies(reasons, int(sample.in_sample(metrics.RECORDS)), given.text_field),
        blocks=sample.num_blocks,
        views=_view_sizes(sample, measured),
        free_bytes=free_bytes(job.output.path),
        memory=memory,
        time=duration,
        dataflow=None if machines is None else _dataflow(machines, duration.core_hours, sample.num_blocks),
        is_refused=note is not None or too_large is not None,
        problems=[*_problems(job, work, sample, reasons), *([too_large] if too_large else [])],
    )


def _problems(job: Job, work: PendingWork, sample: Estimate, reasons: Mapping[str, int]) -> list[str]:
    """Why the run will not be complete, as far as the sample shows it. `reasons`: of its rejects."""
    left_out = {file.path: file.problem for file in (*work.skipped, *sample.skipped)}
    left_out |= {path: MISSING for path in work.missing if path not in left_out}
    names = (metrics.RECORDS, *metrics.OF_SENTENCES, metrics.MORE_LINES, metrics.REJECTED_LINES)
    counts = {name: round(sample.sum(name)) for name in names}
    counts |= {name: counts[name] + work.texts_done for name in (metrics.RECORDS, metrics.EMBEDDED)}
    # Slices without a text say nothing about the rest.
    known = counts if sample.is_whole or counts[metrics.EMBEDDED] else {metrics.EMBEDDED: 1}
    given = (job.config.input.max_reject_rate, job.config.input.text_field)
    return find_problems(left_out, known, reasons, *given, has_input=bool(work.files))


def _find_work(job: Job, found: Sequence[InputFile]) -> tuple[PendingWork, str | None]:
    """What a run would do now; all of the input, with a note, if a run would refuse the output folder."""
    work = find_work(job, found=found)
    refuse_other_format(job, work)
    note = None
    try:
        check_output(job.output.path, job.views, job.run_identity)
        if not starts_over(job.output.path, job.run_identity):
            return work, None
    except UsageError as error:
        note = f"run would refuse: {str(error).splitlines()[0]}"
    all_files = PendingWork(
        to_read=[FileToRead(file, max_records=work.limited.get(file.path)) for file in work.files],
        files=work.files,
        skipped=work.skipped,
    )
    return all_files, note


def _summarize_input(work: PendingWork, sample: Estimate, records: RecordFormat) -> InputSummary:
    files = work.files
    return InputSummary(
        files=len(files),
        bytes=sum(file.size for file in files),
        files_to_do=len(work.to_read),
        bytes_to_do=sum(bytes_left(file) for file in work.to_read if file.file.size),
        compressed=sum(storage.is_compressed(file.file.path) for file in work.to_read),
        sample=SampleSize(
            files=len(sample.files),
            places=sample.num_draws,
            text_bytes=int(sample.in_sample(TEXT_BYTES)),
            is_whole=sample.is_whole,
            beginnings_only=not sample.is_whole
            and (records.is_delimited or any(map(storage.is_compressed, sample.files))),
        ),
    )


def _summarize_lengths(lengths: Int64Array, weights: npt.NDArray[np.float64]) -> Lengths:
    if not len(lengths):
        return Lengths([])
    order = np.argsort(lengths, kind="stable")
    texts_up_to = np.cumsum(weights[order])
    median, percentile_95 = lengths[order][np.searchsorted(texts_up_to, np.array([0.5, 0.95]) * texts_up_to[-1])]
    longest = int(lengths.max())
    last = min(max(math.ceil(math.log2(longest)), 3), _BINS + 2)
    edges = [0, *(2**power for power in range(3, last)), max(longest, 2**last)]
    texts, _ = np.histogram(lengths, np.array(edges) + 0.5, weights=weights)
    bins = [
        {"from": before + 1, "to": end, "texts": round(count)}
        for before, end, count in zip(edges[:-1], edges[1:], texts.tolist(), strict=True)
    ]
    return Lengths(bins, int(median), int(percentile_95), longest)


def _truncations(job: Job, lengths: Int64Array, weights: npt.NDArray[np.float64]) -> list[Truncation]:
    most = job.encoder.max_position_embeddings or MAX_SEQ_LENGTHS[-1]
    limits = sorted({*(limit for limit in MAX_SEQ_LENGTHS if limit <= most), job.sequences.max_seq_length})
    texts, tokens = weights.sum() or 1, ((lengths - job.encoder.special.around_text) * weights).sum() or 1
    return [
        Truncation(
            limit,
            longer=round(float(weights[lengths > limit].sum() / texts), 6),
            tokens_lost=round(float((np.maximum(lengths - limit, 0) * weights).sum() / tokens), 6),
        )
        for limit in limits
    ]


def _duplicates(sample: Estimate) -> dict[str, float]:
    """The shares of texts and tokens that are not encoded again, and the number of blocks in which they were found."""
    texts, tokens = sample.sum(TEXTS), sample.sum(SEQUENCE_TOKENS)
    return {
        "texts": round(1 - sample.sum(ENCODED_TEXTS) / texts, 4) if texts else 0.0,
        "tokens": round(1 - sample.sum(ENCODED) / tokens, 4) if tokens else 0.0,
        "blocks": sum(block[TEXTS] > 0 for block in sample.blocks),
    }


def _view_sizes(sample: Estimate, measured: Measurement) -> dict[str, ViewSize]:
    sizes = {}
    for view in sample.views:
        name, rows, per_row = view.name, sample.rows(view), measured.sizes[view.name]
        of_parts = sample.sum(PART_ROWS.format(name)) * per_row.row_bytes
        table = rows.value * per_row.table_bytes
        size, sums = (table, of_parts) if view.aggregates else (of_parts, 0.0)
        vectors = sample.view_bytes[name]
        sizes[name] = ViewSize(view.level, round(rows.value), round(rows.margin), vectors, round(size), round(sums))
    return sizes


def _duration(sample: Estimate, measured: Measurement, workers: int, startup_seconds: float) -> Duration:
    """The time of a local run with this number of workers."""
    busy = min(workers, cores())
    tables = ((sample.sum(PART_ROWS.format(name)), size.table_seconds) for name, size in measured.sizes.items())
    parts = {
        "start": startup_seconds + _RUNNER_SECONDS + measured.load_seconds,
        "read": sample.read_seconds / busy,
        "blocks": sample.num_blocks * _RUNNER_SECONDS_PER_BLOCK,
        "encode": sample.sum(PADDED) * measured.per_token,
        "write": sample.sum(ENCODED) * measured.write_seconds / busy,
        "tables": sum(rows * row_seconds for rows, row_seconds in tables) / busy,
    }
    seconds, tokens = sum(parts.values()), measured.tokens
    return Duration(
        workers=workers,
        seconds=round(seconds, 1),
        parts={name: round(part, 1) for name, part in parts.items()},
        tokens_per_second=round(tokens / measured.seconds) if tokens else 0,
        padding=round(1 - sample.sum(ENCODED) / (sample.sum(PADDED) or 1), 4) if tokens else 0.0,
        core_hours=round((seconds - parts["start"]) * busy / _HOUR, 4),
        burst={"tokens": tokens, "seconds": round(measured.seconds, 2)} if tokens else None,
    )


def _dataflow(machines: Machines, core_hours: float, num_blocks: int) -> DataflowTime:
    """The hours, assuming a vCPU is as fast as a local core and each works on one block at a time."""
    at_work = min(machines.count * machines.vcpus, max(num_blocks, 1))
    start_with = min(max(round(num_blocks / _BLOCKS_PER_VCPU / machines.vcpus), 1), machines.count)
    return DataflowTime(machines.count, machines.vcpus, at_work, start_with, round(core_hours / at_work, 4))
