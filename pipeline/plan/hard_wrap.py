"""A hint for hard-wrapped text that is read line by line: each line is then a piece of a sentence."""

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

_FILES, _FILE_BYTES, _MAX_LINES, _MIN_LINES = 8, 1 << 16, 1000, 20
# A page is at least this wide; lists of words or names are narrower.
_MIN_WIDTH = 40
_TOLERANCE = 0.15
_FINAL = tuple(".!?\u2026:;\u3002\uff01\uff1f")
_CLOSING = "\"')]}\u00bb\u2019\u201d"


def wrapped_lines(lines: Sequence[str]) -> int:
    """How many of the lines end without final punctuation, at nearly the median length.

    >>> wrapped_lines(["It is a truth, that a single man in", "possession of a good fortune, must be in", "want."])
    2
    """
    width = max(statistics.median([len(line) for line in lines]), _MIN_WIDTH) if lines else _MIN_WIDTH
    return sum(
        abs(len(line) - width) <= _TOLERANCE * width and not line.rstrip(_CLOSING).endswith(_FINAL)
        for line in map(str.rstrip, lines)
    )


def wrapping_hint(job: Job, work: PendingWork) -> str | None:
    """The hint if more than half of the first 1,000 lines look broken."""
    if (job.records.format, job.records.record) != ("text", "line"):
        return None
    lines = list(itertools.islice(_first_lines(job, work), _MAX_LINES))
    wrapped = wrapped_lines(lines)
    if len(lines) < _MIN_LINES or 2 * wrapped <= len(lines):
        return None
    return (
        f"the text looks hard-wrapped: {wrapped:,} of the first {len(lines):,} lines end without final punctuation, at "
        "nearly the same length; `record: paragraph` makes one text of the lines up to a blank line"
    )


def _first_lines(job: Job, work: PendingWork) -> Iterator[str]:
    """The first lines of some files, spread over all of them."""
    whole_lines = dataclasses.replace(job.records, unit="record", pair_separator=None)
    limits = BlockLimits(_FILE_BYTES, 1 << 62, 1 << 62, job.limits.max_seq_length)
    files = [left.file for left in work.to_read if left.file.size]
    for index in sorted({round(i) for i in np.linspace(0, len(files) - 1, _FILES)}) if files else []:
        end = None if storage.is_compressed(files[index].path) else files[index].size
        block = next(read_blocks(Slice(files[index], 0, end, 0), limits, whole_lines), None)
        if isinstance(block, TextBlock):
            yield from block.texts.to_pylist()
