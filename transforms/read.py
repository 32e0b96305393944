"""Slices read as blocks of texts: whatever the format, what is done and unchanged is not decoded again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from transforms import filesystem, jsonl, lines, metrics, paragraphs, parquet_records, text_records
from transforms.formats import RecordFormat, make_texts
from transforms.hardware import Hardware, load_tensorflow
from transforms.lines import UnreadableFileError
from transforms.records import BlockId, BlockLimits, Commit, LeftOut, Slice, TextBlock


def read_blocks(
    slice_: Slice, limits: BlockLimits, how: RecordFormat | None = None
) -> Iterator[TextBlock | Commit | LeftOut]:
    """The slice's records as blocks, in order; for a block that is done and unchanged its commit.

    Where the file can't be read on there is a `LeftOut`; the blocks before stay, and those after it that were done, if
    the file is the one they were read from.
    """
    how = how or RecordFormat()
    done = {(commit.block.first_line, commit.block.first_byte): commit for commit in slice_.done}
    try:
        for block, content in _cut_blocks(slice_, limits, how):
            commit = done.pop((block.first_line, block.first_byte), None)
            if commit is not None and (commit.block.end_byte, commit.block.sha256) == (block.end_byte, block.sha256):
                yield dataclasses.replace(commit, block=block)
            else:
                yield _decode(block, content, how)
        # Line numbers are from the scan, the bytes from now: they belong together if the file is still the same.
        change = filesystem.find_change(slice_.file)
        if change is not None:
            raise UnreadableFileError(change.reason)
    except OSError as error:
        yield LeftOut(slice_.file.path, filesystem.reason_of(error))
        yield from (commit for commit in done.values() if commit.block.file == slice_.file)


def read_block(block: BlockId, how: RecordFormat | None = None) -> TextBlock:
    """The texts of one block again, as `read_blocks` gave them.

    UnreadableFileError where the file is gone, or no longer holds the block's records at that place.
    """
    how = how or RecordFormat()
    now = filesystem.stat_file(block.file.path)
    if isinstance(now, LeftOut):
        raise UnreadableFileError(now.reason)
    content = parquet_records.read_table(block, how) if how.format == "parquet" else lines.read_bytes(block)
    return _decode(block, content, how)


def _cut_blocks(slice_: Slice, limits: BlockLimits, how: RecordFormat) -> Iterator[tuple[BlockId, Any]]:
    if how.format == "parquet":
        return parquet_records.cut_blocks(slice_, limits, how)
    if how.is_whole_file:
        return lines.cut_whole(slice_, how.encoding)
    if how.format == "text" and how.record == "paragraph":
        return paragraphs.cut_paragraphs(slice_, limits, how.encoding)
    return lines.cut_lines(slice_, limits, how.encoding)


def _decode(block: BlockId, content: Any, how: RecordFormat) -> TextBlock:
    decode = {
        "text": text_records.decode_text,
        "jsonl": jsonl.decode_jsonl,
        "parquet": parquet_records.decode_rows,
    }[how.format]
    return make_texts(block, decode(block, content, how), how)


@dataclasses.dataclass
class ReadBlocks(beam.PTransform):
    """`Slice` -> `TextBlock`; tagged `DONE`, the `Commit` of what needs no work and `LeftOut`.

    `hardware`: what a worker process may use.
    """

    limits: BlockLimits
    how: RecordFormat = dataclasses.field(default_factory=RecordFormat)
    hardware: Hardware = dataclasses.field(default_factory=Hardware)

    BLOCKS = "blocks"
    DONE = "done"

    def expand(self, slices: Any) -> Any:
        read = _ReadSlice(self.limits, self.how, self.hardware)
        return slices | "spread slices" >> beam.Reshuffle() | beam.ParDo(read).with_outputs(self.DONE, main=self.BLOCKS)


@beam.typehints.with_output_types(TextBlock)
class _ReadSlice(beam.DoFn):
    def __init__(self, limits: BlockLimits, how: RecordFormat, hardware: Hardware) -> None:
        self._limits = limits
        self._how = how
        self._hardware = hardware

    def setup(self) -> None:
        if self._how.unit == "sentence":
            load_tensorflow(self._hardware)

    def process(self, slice_: Slice) -> Iterator[Any]:
        for item in metrics.timed_items(metrics.READ_TIME, read_blocks(slice_, self._limits, self._how)):
            if isinstance(item, TextBlock):
                for name, amount in item.counts.items():
                    metrics.count(name, amount)
                yield item
            else:
                yield beam.pvalue.TaggedOutput(ReadBlocks.DONE, item)
