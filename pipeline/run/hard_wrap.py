"""A hint for hard-wrapped text that is read line by line: each line is then a piece of a sentence."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.work import PendingWork
from layerbeam.transforms import storage

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
        "nearly the same length; `record: paragraph` takes the lines up to a blank one as one text"
    )


def _first_lines(job: Job, work: PendingWork) -> Iterator[str]:
    """The first lines of some files, spread over all of them, without blank ones."""
    files = [left.file for left in work.to_read if left.file.size]
    for file in files[:: -(-len(files) // _FILES) or 1]:
        try:
            with storage.open_binary(file.path, _FILE_BYTES) as opened:
                data = next(storage.read_chunks(opened, file.path, _FILE_BYTES), b"")
        except OSError:
            continue
        lines = data[:_FILE_BYTES].decode(job.records.encoding, "replace").split("\n")
        yield from filter(str.strip, lines if len(data) < _FILE_BYTES else lines[:-1])
