"""Whether text read line by line looks hard-wrapped: each line a piece of a sentence, broken where the page ended."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.find import PendingWork
from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits

_FILES = 8
_FILE_BYTES = 1 << 16
_LINES = 1000
_FEWEST_LINES = 20
# A page is wider; lists of words or names are not.
_NARROWEST = 40
_NEARLY = 0.15
_FINAL = tuple(".!?\u2026:;\u3002\uff01\uff1f")
_CLOSING = "\"')]}\u00bb\u2019\u201d"


def wrapped_lines(lines: Sequence[str]) -> int:
    """How many of the lines end without final punctuation, at nearly the length of the one in the middle.

    >>> wrapped_lines(["It is a truth, that a single man in", "possession of a good fortune, must be in", "want."])
    2
    """
    median = statistics.median([len(line) for line in lines]) if lines else 0
    return sum(
        abs(len(line) - max(median, _NARROWEST)) <= _NEARLY * max(median, _NARROWEST)
        and not line.rstrip(_CLOSING).endswith(_FINAL)
        for line in map(str.rstrip, lines)
    )


def wrapping_hint(job: Job, work: PendingWork) -> str | None:
    """What to say where over half of the first 1,000 lines look broken; None where they do not."""
    if (job.records.format, job.records.record) != ("text", "line"):
        return None
    whole_lines = dataclasses.replace(job.records, unit="record", pair_separator=None)
    lines = list(itertools.islice(_lines(dataclasses.replace(job, records=whole_lines), work), _LINES))
    wrapped = wrapped_lines(lines)
    if len(lines) < _FEWEST_LINES or 2 * wrapped <= len(lines):
        return None
    return (
        f"the text looks hard-wrapped: {wrapped:,} of the first {len(lines):,} lines end without final punctuation, at "
        "nearly the same length; `record: paragraph` takes the lines up to a blank one as one text"
    )


def _lines(job: Job, work: PendingWork) -> Iterator[str]:
    """Of the beginnings of some of the files, spread over all of them."""
    limits = BlockLimits(_FILE_BYTES, 1 << 62, 1 << 62, job.config.encoder.max_seq_length)
    files = [left.file for left in work.to_read if left.file.size]
    for index in sorted({round(i) for i in np.linspace(0, len(files) - 1, _FILES)}) if files else []:
        end = None if storage.is_compressed(files[index].path) else files[index].size
        block = next(read_blocks(Slice(files[index], 0, end, 0), limits, job.records), None)
        if isinstance(block, TextBlock):
            yield from block.texts.to_pylist()
