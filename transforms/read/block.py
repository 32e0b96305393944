"""Slices read as blocks of texts in any format. Blocks that are done and unchanged are not decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.commits import BlockId, Commit, SkippedFile
from layerbeam.transforms.input import lines, paragraphs
from layerbeam.transforms.input import parquet as parquet_input
from layerbeam.transforms.input.lines import UnreadableFileError
from layerbeam.transforms.read import jsonl, parquet, text
from layerbeam.transforms.read.records import make_texts
from layerbeam.transforms.settings import BlockLimits, RecordFormat


def read_blocks(
    slice_: Slice, limits: BlockLimits, record_format: RecordFormat | None = None
) -> Iterator[TextBlock | Commit | SkippedFile]:
    """Yields the slice's blocks in order; for a block that is done and unchanged, its commit.

    If reading fails, a `SkippedFile` follows the blocks before the failure, and then the commits after it, provided
    that the file has not changed since.
    """
    record_format = record_format or RecordFormat()
    done = {(commit.block.first_line, commit.block.first_byte): commit for commit in slice_.done}
    try:
        for block, content in _cut_blocks(slice_, limits, record_format):
            commit = done.pop((block.first_line, block.first_byte), None)
            if commit is not None and (commit.block.end_byte, commit.block.sha256) == (block.end_byte, block.sha256):
                yield dataclasses.replace(commit, block=block)
            else:
                yield _decode(block, content, record_format)
        # Line numbers are from the scan, bytes from this read. They belong together if the file is unchanged.
        change = storage.find_change(slice_.file)
        if change is not None:
            raise UnreadableFileError(change.reason)
    except OSError as error:
        yield SkippedFile(slice_.file.path, storage.reason_of(error))
        yield from (commit for commit in done.values() if commit.block.file == slice_.file)


def read_block(block: BlockId, record_format: RecordFormat | None = None) -> TextBlock:
    """The texts of one block, read again as by `read_blocks`.

    Raises UnreadableFileError if the file is missing or has other records at that place.
    """
    record_format = record_format or RecordFormat()
    now = storage.stat_file(block.file.path)
    if isinstance(now, SkippedFile):
        raise UnreadableFileError(now.reason)
    content = (
        parquet_input.read_table(block, record_format) if record_format.format == "parquet" else lines.read_bytes(block)
    )
    return _decode(block, content, record_format)


def _cut_blocks(slice_: Slice, limits: BlockLimits, record_format: RecordFormat) -> Iterator[tuple[BlockId, Any]]:
    if record_format.format == "parquet":
        return parquet_input.cut_blocks(slice_, limits, record_format)
    if record_format.is_whole_file:
        return lines.cut_whole(slice_, record_format.encoding)
    if record_format.format == "text" and record_format.record == "paragraph":
        return paragraphs.cut_paragraphs(slice_, limits, record_format.encoding)
    return lines.cut_lines(slice_, limits, record_format.encoding)


def _decode(block: BlockId, content: Any, record_format: RecordFormat) -> TextBlock:
    decode = {
        "text": text.decode_text,
        "jsonl": jsonl.decode_jsonl,
        "parquet": parquet.decode_rows,
    }[record_format.format]
    return make_texts(block, decode(block, content, record_format), record_format)
