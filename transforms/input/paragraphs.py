"""Slices cut into paragraphs: runs of lines between blank ones, so that hard-wrapped text keeps its sentences whole.

A paragraph begins at a nonblank line after a blank one or at the file's start, and belongs to the slice in which its
first byte lies. Its text is its lines joined by `\\n`. A line is blank here if it holds nothing but ASCII white space.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Int64Array, Slice
from layerbeam.transforms.commits import BlockId, InputFile
from layerbeam.transforms.input.lines import (
    MAX_RECORD_BYTES,
    UTF8_MARK,
    blank_lines,
    identify,
    line_ends,
    records_in_block,
    refuse_other_encoding,
    start_slice,
    too_large,
    whole_lines,
)
from layerbeam.transforms.settings import BlockLimits

_BACKWARDS_BYTES = 1 << 12


class _ParagraphBuffer:
    """The paragraphs that are in no block yet. The last one is open: its end is not known until the next one begins.

    `_begins`, `_lines`: the first byte of each paragraph in `_data`, and its line number. `_position`: the place of
    `_data` in the file.
    """

    def __init__(self, file: InputFile, limits: BlockLimits) -> None:
        self._file = file
        self._limits = limits
        self._data = b""
        self._position = 0
        self._begins = np.zeros(0, np.int64)
        self._lines = np.zeros(0, np.int64)

    @property
    def is_empty(self) -> bool:
        return not len(self._begins)

    def feed(self, data: bytes, position: int, begins: Int64Array, lines: Int64Array) -> None:
        """Append whole lines. Bytes before the first paragraph of the slice are dropped.

        `position`: where `data` lies in the file; `begins`, `lines`: the paragraphs that begin in it.
        """
        if not self.is_empty:
            self._begins = np.concatenate([self._begins, len(self._data) + begins])
            self._lines = np.concatenate([self._lines, lines])
            self._data += data
        elif len(begins):
            first = int(begins[0])
            self._data, self._position = data[first:], position + first
            self._begins, self._lines = begins - first, lines
        if not self.is_empty and len(self._data) - self._begins[-1] > MAX_RECORD_BYTES:
            raise too_large()

    def full_blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        """The blocks that closed paragraphs fill."""
        while (count := records_in_block(np.diff(self._begins), self._limits)) is not None:
            yield self._take(count)

    def rest(self, line: int) -> Iterator[tuple[BlockId, bytes]]:
        """The blocks of all that is left; the file continues with `line`."""
        if self.is_empty:
            return
        # A paragraph that never ends closes the last one.
        self._begins, self._lines = np.append(self._begins, len(self._data)), np.append(self._lines, line)
        yield from self.full_blocks()
        if len(self._begins) > 1:
            yield self._take(len(self._begins) - 1)

    def _take(self, count: int) -> tuple[BlockId, bytes]:
        """Remove the first paragraphs, as a block."""
        size, first_line = int(self._begins[count]), int(self._lines[0])
        raw = self._data[:size]
        block = identify(self._file, raw, first_line, int(self._lines[count]) - first_line, self._position)
        self._data, self._position = self._data[size:], self._position + size
        self._begins, self._lines = self._begins[count:] - size, self._lines[count:]
        return block, raw


def cut_paragraphs(slice_: Slice, limits: BlockLimits, encoding: str) -> Iterator[tuple[BlockId, bytes]]:
    """Identity and bytes of each block of the slice. A block ends where a paragraph begins.

    Blank lines belong to the paragraph before them.
    """
    end = sys.maxsize if slice_.end is None else slice_.end
    buffer = _ParagraphBuffer(slice_.file, limits)
    with storage.open_binary(slice_.file.path) as file:
        after_blank = _is_blank_before(file, max(slice_.start - 1, 0))
        chunks, position, line, blank = start_slice(file, slice_)
        after_blank = after_blank and blank
        for run in whole_lines(chunks, position, None) if position < end else ():
            if position == 0:
                refuse_other_encoding(run, encoding)
            starts, is_first, is_blank = _paragraphs_in(run, at_file_start=position == 0, after_blank=after_blank)
            first_lines = np.flatnonzero(is_first)
            begins = starts[first_lines]
            inside = int(np.searchsorted(begins, end - position))  # of the paragraphs, those that belong to this slice
            size, num_lines = len(run), len(starts)
            if inside < len(begins):
                size, num_lines = int(begins[inside]), int(first_lines[inside])
            buffer.feed(run[:size], position, begins[:inside], line + first_lines[:inside])
            position, line, after_blank = position + size, line + num_lines, bool(is_blank[-1])
            if inside < len(begins) or (buffer.is_empty and position >= end):
                break
            yield from buffer.full_blocks()
    yield from buffer.rest(line)


def _paragraphs_in(
    run: bytes, *, at_file_start: bool, after_blank: bool
) -> tuple[Int64Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(first byte, whether a paragraph begins, whether it is blank) of each line in a run of whole lines."""
    ends = line_ends(run)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    text = starts.copy()
    if at_file_start and run.startswith(UTF8_MARK):
        text[0] = len(UTF8_MARK)
    blank = blank_lines(np.frombuffer(run, np.uint8), text, ends)
    return starts, ~blank & np.concatenate([[after_blank], blank[:-1]]), blank


def _is_blank_before(file: BinaryIO, position: int) -> bool:
    """Whether the line holds nothing but white space before `position`; True at the file's start."""
    while position > 0:
        # Read to the file's start if the rest would begin inside the byte order mark.
        size = _BACKWARDS_BYTES if position > _BACKWARDS_BYTES + len(UTF8_MARK) else position
        file.seek(position - size)
        before = file.read(size)
        on_line = before[before.rfind(b"\n") + 1 :]
        if position == size and len(on_line) == size:
            on_line = on_line.removeprefix(UTF8_MARK)
        if on_line.strip():
            return False
        if b"\n" in before:
            return True
        position -= size
    return True
