"""Slices read as blocks of texts: the Beam transform `ReadBlocks`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam

from layerbeam.transforms import coders, counters, metrics
from layerbeam.transforms.block_commit import find_commit
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.commits import BlockId, Commit, InputFile
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat


@dataclasses.dataclass
class ReadBlocks(beam.PTransform):
    """`Slice` -> `TextBlock`, or `Commit` for a block that is done; tagged `SKIPPED`, what cannot be read.

    Put a `beam.Reshuffle` before this stage, or one worker may read all slices of a file.

    The stages after it pass a `Commit` on. With commits in an output of their own, a block could be missing in both
    outputs: a runner may compute each output separately, and a block may be committed in between.

    Args:
        limits: Where a block ends; the same as for `SliceFiles`.
        record_format: What the files hold and what a record is; the same as for `SliceFiles`.
        hardware: What a worker process may use; splitting sentences by tensorflow_text runs TensorFlow.
        output: The same as for `WriteBlocks`. A block that an attempt has committed there is not read again: to encode
            it again would take minutes. None: nothing is looked up, and there is no `Commit`.
        known: Gives the commit of a block with the same bytes, also one of earlier runs, if there is one. None: only
            the commits of this run are found.

    Returns (from `expand`):
        Two PCollections: `TextBlock` or `Commit`, and `InputFile` with its problem. Unpack them, or index by `BLOCKS`
        and `SKIPPED`.

    Example:
        >>> pipeline = beam.Pipeline()
        >>> slices = pipeline | beam.Create([]).with_output_types(Slice)
        >>> blocks, skipped = slices | ReadBlocks(record_format=RecordFormat(unit="sentence"))
        >>> blocks.element_type is TextBlock
        True
    """

    limits: BlockLimits = dataclasses.field(default_factory=BlockLimits)
    record_format: RecordFormat = dataclasses.field(default_factory=RecordFormat)
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    output: Output | None = None
    known: Callable[[BlockId], Commit | None] | None = None

    BLOCKS = "blocks"
    SKIPPED = "skipped"

    def expand(self, slices: Any) -> Any:
        coders.register()
        read = beam.ParDo(_ReadSlice(self)).with_outputs(self.SKIPPED, main=self.BLOCKS)
        return slices | read


@beam.typehints.with_output_types(TextBlock)
class _ReadSlice(beam.DoFn):
    def __init__(self, stage: ReadBlocks) -> None:
        self._stage, output = stage, stage.output
        in_output = (lambda _: None) if output is None else functools.partial(find_commit, output)
        self._known = stage.known or in_output
        self._fingerprint = None if output is None else output.fingerprint
        self._attempt = None if output is None else output.attempt

    def setup(self) -> None:
        record_format = self._stage.record_format
        if record_format.unit == "sentence" and record_format.sentences == "tensorflow_text":
            load_tensorflow(self._stage.hardware)

    def process(self, slice_: Slice) -> Iterator[Any]:
        stage = self._stage
        items = read_blocks(slice_, stage.limits, stage.record_format, self._fingerprint, known=self._known)
        for item in counters.timed_items("read", items):
            if isinstance(item, Commit) and item.attempt is not None:  # the index knows no attempts
                counters.count(metrics.blocks_found(item.attempt, self._attempt), 1)
            skipped = isinstance(item, InputFile)
            yield beam.pvalue.TaggedOutput(ReadBlocks.SKIPPED, item) if skipped else item
