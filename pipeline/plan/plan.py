"""`layerbeam plan`: what a run will read, write, take and cost, from a sample of the corpus, before it starts."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.find import PendingWork, check_output, find_run_work
from layerbeam.pipeline.plan.calibrate import Blocks, Calibration, find_blocks, measure
from layerbeam.pipeline.plan.estimate import (
    ENCODED,
    TEXT_BYTES,
    TEXTS,
    Estimate,
    Figure,
    Tokenizer,
    estimate,
    expected_blocks,
    free_bytes,
)
from layerbeam.pipeline.plan.hard_wrap import wrapping_hint
from layerbeam.pipeline.plan.sampling import Budget
from layerbeam.transforms import metrics
from layerbeam.transforms.commits import printable
from layerbeam.transforms.hardware import cores
from layerbeam.transforms.slice.slices import FileToRead

# A few seconds of reading and tokenizing.
BUDGET = Budget(16 << 20, 1024)
MAX_SEQ_LENGTHS = (64, 128, 256, 512)
_BINS = 12
_HOUR = 3600

# What a local run takes beside its blocks: Beam's runner to build, begin and end a pipeline, and, for each block, what
# Beam hands on and what the end of the run reads again. By runs of 1, 300, 1,500 and 4,500 files of three lines with a
# very small encoder, on a core of some 3 GHz.
_RUNNER_SECONDS = 2.0
_RUNNER_SECONDS_PER_BLOCK = 0.001

_FIGURES = {
    "records": metrics.RECORDS,
    "texts": TEXTS,
    "tokens": metrics.TOKENS,
    "encoded_tokens": ENCODED,
    "blank": metrics.BLANK,
    "filtered": metrics.FILTERED,
    "rejected": metrics.REJECTED,
    "truncated_texts": metrics.TRUNCATED_TEXTS,
    "dropped_tokens": metrics.DROPPED_TOKENS,
}


@dataclasses.dataclass(frozen=True)
class Machines:
    """Dataflow's workers: how many, their vCPUs, what one costs in an hour (None: not known)."""

    count: int
    vcpus: int
    price_per_hour: float | None = None


def make_plan(
    job: Job,
    *,
    workers: int | None = None,
    seed: int = 0,
    machines: Machines | None = None,
    started: float | None = None,
    budget: Budget = BUDGET,
) -> dict[str, Any]:
    """What `layerbeam plan --json` prints. Reads a sample of the input; writes into a temporary folder only.

    `started`: when the program began, by `time.perf_counter`. UsageError where a run would have one for the input.
    """
    started = time.perf_counter() if started is None else started
    threads = workers or cores()
    job.load_tensorflow(threads)
    startup_seconds = time.perf_counter() - started
    work, note = _find_work(job)
    tokenize = Tokenizer(job)
    drawn = estimate(tokenize, work, budget, seed)
    blocks = find_blocks(tokenize, drawn, seed)
    burst = measure(tokenize, blocks, workers=threads, seed=seed) if blocks.blocks else None
    num_blocks = expected_blocks(drawn, job)
    duration = _time(drawn, blocks, burst, num_blocks, threads, startup_seconds)
    hints = [hint for hint in (note, wrapping_hint(job, work)) if hint is not None]
    return {
        "path": job.output.path,
        "encoder": job.encoder.describe(),
        "seed": seed,
        "input": _input(work, drawn),
        "hints": hints,
        "estimates": {name: _figure(drawn.figure(figure), drawn) for name, figure in _FIGURES.items()},
        "lengths": _lengths(drawn),
        "max_seq_lengths": [_cut_at(drawn, length) for length in _max_seq_lengths(job)],
        "long_text": job.sequences.long_text,
        "duplicates": {
            "texts": round(blocks.duplicate_texts, 4),
            "tokens": round(blocks.duplicate_tokens, 4),
            "blocks": len({block.block.sha256 for block in blocks.blocks}),
        },
        "rejects_seen": _reasons(drawn),
        "blocks": num_blocks,
        "views": _views(drawn, burst, num_blocks),
        "free_bytes": free_bytes(job.output.path),
        "time": duration,
        "dataflow": None if machines is None else _dataflow(machines, duration, num_blocks),
    }


def _find_work(job: Job) -> tuple[PendingWork, str | None]:
    """What a run would do now; all there is, with a word, where the folder is not one that it could go on with."""
    work = find_run_work(job.config.input.files, job.output.path)
    try:
        check_output(job.output.path, job.views, job.head)
    except UsageError as error:
        refused = f"run would refuse: {str(error).splitlines()[0]}"
        return PendingWork([FileToRead(file) for file in work.files], work.files, work.skipped), refused
    return work, None


def _input(work: PendingWork, drawn: Estimate) -> dict[str, Any]:
    left_out = {file.path: file.reason for file in work.skipped} | drawn.left_out
    counted = [c for _, places in drawn.strata for c in places]
    return {
        "files": len(work.files),
        "bytes": sum(file.size for file in work.files),
        "files_to_do": len(work.to_read),
        "bytes_to_do": sum(file.file.size for file in work.to_read),
        "sample": {
            "files": len({c.place.path for c in counted}),
            "places": len(counted),
            "text_bytes": int(sum(c.figures.get(TEXT_BYTES, 0) for c in counted)),
            "is_whole": drawn.is_whole,
            "beginnings_only": any(stratum.kind == "beginnings" for stratum, _ in drawn.strata) and not drawn.is_whole,
        },
        "left_out": {printable(path): reason for path, reason in sorted(left_out.items())},
    }


def _figure(figure: Figure, drawn: Estimate) -> dict[str, int]:
    return {"value": round(figure.value), "margin": 0 if drawn.is_whole else round(figure.margin)}


def _lengths(drawn: Estimate) -> dict[str, Any]:
    """Texts by their tokens, [CLS] and [SEP] included, in bins each of which ends at twice the one before."""
    values = np.concatenate([np.zeros(0, np.int64), *(c.lengths for _, places in drawn.strata for c in places)])
    if not len(values):
        return {"bins": [], "median": 0, "percentile_95": 0, "longest_seen": 0}
    weights = np.concatenate(
        [np.full(len(c.lengths), s.weight * c.place.scale) for s, places in drawn.strata for c in places]
    )
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])

    def percentile(share: float) -> int:
        return int(values[order][min(np.searchsorted(below, share * below[-1]), len(values) - 1)])

    last = min(max(math.ceil(math.log2(values.max())), 3), _BINS + 2)
    ends = [2**power for power in range(3, last)] + [max(int(values.max()), 2**last)]
    begins = [0, *ends[:-1]]
    bins = [
        {"from": begin + 1, "to": end, "texts": round(float(weights[(values > begin) & (values <= end)].sum()))}
        for begin, end in zip(begins, ends, strict=True)
    ]
    longest = int(values.max())
    return {"bins": bins, "median": percentile(0.5), "percentile_95": percentile(0.95), "longest_seen": longest}


def _max_seq_lengths(job: Job) -> list[int]:
    most = job.encoder.max_position_embeddings or MAX_SEQ_LENGTHS[-1]
    return sorted({*(n for n in MAX_SEQ_LENGTHS if n <= most), job.sequences.max_seq_length})


def _cut_at(drawn: Estimate, length: int) -> dict[str, Any]:
    """Shares of the texts that are longer, and of the tokens that would be lost by cutting them."""
    texts = drawn.weighted(len)
    pieces = drawn.weighted(lambda lengths: float((lengths - 2).sum()))
    return {
        "max_seq_length": length,
        "longer": round(drawn.weighted(lambda lengths: float((lengths > length).sum())) / (texts or 1), 6),
        "tokens_lost": round(
            drawn.weighted(lambda lengths: float(np.maximum(lengths - length, 0).sum())) / (pieces or 1), 6
        ),
    }


def _reasons(drawn: Estimate) -> dict[str, int]:
    seen: collections.Counter[str] = collections.Counter()
    for _, places in drawn.strata:
        for counted in places:
            seen.update(counted.reasons)
    return dict(seen.most_common())


def _views(drawn: Estimate, burst: Calibration | None, num_blocks: int) -> dict[str, Any]:
    views = {}
    for view in drawn.views:
        rows = drawn.rows(view)
        before = drawn.view_bytes[view.name]
        size = 0.0
        if burst is not None:
            # A word_type view has one file; its blocks' sums are gone at the end.
            parts = 1 if view.level == "word_type" else num_blocks
            size = rows.value * burst.row_bytes[view.name] + parts * burst.part_bytes[view.name]
        views[view.name] = {
            "level": view.level,
            "rows": round(rows.value),
            "margin": round(rows.margin) if view.level == "word_type" or not drawn.is_whole else 0,
            "vector_bytes": before,
            "bytes": round(size),
        }
    return views


def _time(
    drawn: Estimate, blocks: Blocks, burst: Calibration | None, num_blocks: int, workers: int, startup_seconds: float
) -> dict[str, Any]:
    """Of a local run with so many workers: what was measured for a token and a block, as often as they come."""
    encoded = drawn.figure(ENCODED).value * (1 - blocks.duplicate_tokens)
    together = min(workers, cores())
    parts = {"start": startup_seconds + _RUNNER_SECONDS, "read": 0.0, "blocks": 0.0, "encode": 0.0}
    if burst is not None:
        parts["start"] += burst.load_seconds
        parts["read"] = drawn.figure(TEXT_BYTES).value * blocks.read_seconds / together
        parts["blocks"] = num_blocks * (burst.per_block + _RUNNER_SECONDS_PER_BLOCK)
        parts["encode"] = encoded * blocks.padding * burst.per_token
    seconds = sum(parts.values())
    return {
        "workers": workers,
        "seconds": round(seconds, 1),
        "parts": {name: round(part, 1) for name, part in parts.items()},
        "tokens_per_second": round(burst.tokens / burst.seconds) if burst is not None else 0,
        "padding": round(1 - 1 / blocks.padding, 4),
        "core_hours": round((seconds - parts["start"]) * together / _HOUR, 4),
        "burst": {"tokens": burst.tokens, "seconds": round(burst.seconds, 2)} if burst is not None else None,
    }


def _dataflow(machines: Machines, duration: Mapping[str, Any], num_blocks: int) -> dict[str, Any]:
    """Hours and cost, a vCPU taken to be as fast as a core here; each has a block in hand, as long as there are."""
    at_work = min(machines.count * machines.vcpus, max(num_blocks, 1))
    hours = duration["core_hours"] / at_work
    price = machines.price_per_hour
    return {
        "machines": machines.count,
        "vcpus": machines.vcpus,
        "vcpus_at_work": at_work,
        "price_per_hour": price,
        "hours": round(hours, 4),
        "cost": None if price is None else round(hours * machines.count * price, 2),
    }


def vcpus_of(machine_type: str | None) -> int:
    """Of a Google machine type by its name; 1 where none is named, so that prices are those of a vCPU.

    >>> vcpus_of("n2-standard-8"), vcpus_of(None), vcpus_of("e2-medium")
    (8, 1, 1)
    """
    found = re.search(r"-(\d+)\b", machine_type or "")
    return int(found.group(1)) if found else 1
