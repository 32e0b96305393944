"""Slices read as blocks of texts: the Beam transform `ReadBlocks`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam

from layerbeam.transforms.flow import counters, metrics
from layerbeam.transforms.flow.blocks import Slice, TextBlock
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.flow.stage import SKIPPED, StageFn, register_coders
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.views.view import ViewSpec


@dataclasses.dataclass
class ReadBlocks(beam.PTransform):
    """`Slice` -> `TextBlock`, whose texts are records, and what cannot be read.

    Put a `beam.Reshuffle` before this stage, or one worker may read all slices of a file.

    Args:
        limits: Where a block ends; the same as for `SliceFiles`.
        record_format: What the files hold and what a record is; the same as for `SliceFiles`.
        output: The same as for `WriteBlocks`. A block that is committed there is not encoded again, which would take
            minutes, and gives nothing. None: nothing is looked up.
        views: The same as for `WriteBlocks`.

    Returns (from `expand`):
        Two PCollections: `TextBlock`, and `InputFile` with its problem. Unpack them, or index by `BLOCKS` and
        `SKIPPED`.

    Example:
        >>> pipeline = beam.Pipeline()
        >>> slices = pipeline | beam.Create([]).with_output_types(Slice)
        >>> blocks, skipped = slices | ReadBlocks(record_format=RecordFormat(record="paragraph"))
        >>> blocks.element_type is TextBlock
        True
    """

    limits: BlockLimits = dataclasses.field(default_factory=BlockLimits)
    record_format: RecordFormat = dataclasses.field(default_factory=RecordFormat)
    output: Output | None = None
    views: tuple[ViewSpec, ...] = ()

    BLOCKS = "blocks"
    SKIPPED = SKIPPED

    def expand(self, slices: Any) -> Any:
        register_coders()
        read = beam.ParDo(StageFn(self.start, skips=True)).with_output_types(TextBlock)
        return slices | read.with_outputs(self.SKIPPED, main=self.BLOCKS)

    def start(self) -> Callable[[Slice], Iterator[TextBlock | InputFile]]:
        """The stage as a function: a slice's blocks that are not committed, and why a file cannot be read."""
        store = None if self.output is None else BlockStore(self.output, self.views, self.record_format)
        return functools.partial(self._read, store)

    def _read(self, store: BlockStore | None, slice_: Slice) -> Iterator[TextBlock | InputFile]:
        items = read_blocks(slice_, self.limits, self.record_format, store)
        for item in counters.timed_items("read", items):
            if isinstance(item, InputFile | TextBlock):
                yield item
            elif self.output is not None and item.attempt is not None:  # the index knows no attempts
                counters.count(metrics.blocks_found(item.attempt, self.output.attempt), 1)
