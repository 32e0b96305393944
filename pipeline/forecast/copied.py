"""What a run will not encode of changed files, as the folder has the rows of the same bytes or texts: for estimates."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Sequence

import numpy as np

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.output.catalog import Source
from layerbeam.pipeline.output.work import PendingWork, cut_blocks_of
from layerbeam.transforms.flow.commits import FileRange
from layerbeam.transforms.input.path_fields import path_values
from layerbeam.transforms.read.block import decode_block
from layerbeam.transforms.slice.slices import FileToRead
from layerbeam.transforms.views.view import has_sums_by_field

_SECONDS = 3.0  # a file of 300 MB


@dataclasses.dataclass
class Copied:
    """What will be copied; `bytes`: of the parts."""

    blocks: int = 0
    texts: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, source: Source) -> None:
        """Add the rows of a source."""
        self.blocks += 1
        self.texts += source.texts
        self.tokens += source.tokens
        self.bytes += source.bytes


def find_copied(job: Job, work: PendingWork) -> tuple[PendingWork, Copied]:
    """(the work without blocks whose bytes or texts are known, what of them is copied).

    Files are read for some seconds; what is not known by then counts as work.
    """
    until, left, copied, kept = time.monotonic() + _SECONDS, list[FileToRead](), Copied(), Copied()
    if not work.catalog.has_rows:
        return work, copied
    fields_may_differ = job.records.has_fields and not has_sums_by_field(job.views)
    values = functools.partial(path_values, job.records, job.views)
    for file in work.to_read:
        done, known, is_left = set(map(tuple, file.done.ranges.tolist())), list[FileRange](), False
        alone = (dataclasses.replace(file, file=one, others=()) for one in (file.file, *file.others))
        for block in itertools.chain.from_iterable(cut_blocks_of(job, one, until) for one in alone):
            own, content = block or (None, None)
            if own is not None and (own.first_byte, own.end_byte) in done:
                continue
            source = None if own is None else work.catalog.source_of(own)
            if own is not None and source is not None and values(source.path) != values(own.file.path):
                source = None
            stays = own is not None and source is not None and source.is_at(own)
            if own is not None and source is None and fields_may_differ:
                source = work.catalog.source_of_texts(decode_block(own, content, job.records).files[0])
            if own is None or source is None:
                is_left = True
            else:
                known.append(own)
                (kept if stays else copied).add(source)
        if is_left:
            left.append(file if file.others else _without(file, known))
    texts, tokens = work.texts_done + kept.texts, work.tokens_done + kept.tokens
    return dataclasses.replace(work, to_read=left, texts_done=texts, tokens_done=tokens), copied


def _without(file: FileToRead, known: Sequence[FileRange]) -> FileToRead:
    """The file, of which these blocks are done, too."""
    found = [*file.done.ranges.tolist(), *([own.first_byte, own.end_byte] for own in known)]
    ranges = list[list[int]]()
    for first, end in sorted(found):
        if ranges and first <= ranges[-1][1]:
            ranges[-1][1] = max(end, ranges[-1][1])
        else:
            ranges.append([first, end])
    return dataclasses.replace(
        file, done=dataclasses.replace(file.done, ranges=np.array(ranges, np.int64).reshape(-1, 2))
    )
