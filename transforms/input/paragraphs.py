"""Paragraphs of slices: lines up to a blank one, so that hard-wrapped text comes in whole sentences.

A paragraph begins at a nonblank line after a blank one or at the file's start, and belongs to the slice in which its
first byte lies. Its text is its lines joined by `\\n`. A line is blank here if it holds nothing but ASCII white space.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Int64Array, Slice
from layerbeam.transforms.commits import BlockId
from layerbeam.transforms.input.lines import (
    MAX_RECORD_BYTES,
    UTF8_MARK,
    blank_lines,
    identify,
    line_ends,
    records_in_block,
    refuse_other_encoding,
    skip_line,
    too_large,
    whole_lines,
)
from layerbeam.transforms.settings import BlockLimits

_BACKWARDS_BYTES = 1 << 12


def cut_paragraphs(slice_: Slice, limits: BlockLimits, encoding: str) -> Iterator[tuple[BlockId, bytes]]:
    """Identity and bytes of each block of the slice, from the first byte of a paragraph to that of another one.

    Blank lines belong to the paragraph before them.
    """
    with storage.open_binary(slice_.file.path) as file:
        yield from _cut_paragraphs(file, slice_, limits, encoding)


def _cut_paragraphs(
    file: BinaryIO, slice_: Slice, limits: BlockLimits, encoding: str
) -> Iterator[tuple[BlockId, bytes]]:
    position, line, after_blank = max(slice_.start - 1, 0), slice_.first_line, True
    if slice_.start > 0:
        after_blank = _is_blank_before(file, position)
    file.seek(position)
    chunks = storage.read_chunks(file, slice_.file.path)
    if slice_.start > 0:
        rest, skipped, blank = skip_line(chunks, slice_.end - position if slice_.end is not None else None)
        chunks = itertools.chain([rest], chunks)
        position, line, after_blank = position + skipped, line + int(skipped > 1), after_blank and blank
        if slice_.end is not None and position >= slice_.end:
            return
    pending = b""  # from the first paragraph that is in no block yet
    begins, lines = np.zeros(0, np.int64), np.zeros(0, np.int64)  # of the paragraphs in it: first byte, line
    is_last = False
    for run in whole_lines(chunks, position, None):
        if position == 0:
            refuse_other_encoding(run, encoding)
        starts, is_first, is_blank = _paragraphs_in(run, at_file_start=position == 0, after_blank=after_blank)
        new = starts[is_first]
        beyond = new[new + position >= slice_.end] if slice_.end is not None else new[:0]
        is_last = bool(len(beyond)) or (
            slice_.end is not None and not len(begins) and not len(new) and position + len(run) >= slice_.end
        )
        new_lines = line + np.flatnonzero(is_first)
        num_lines = len(starts)
        if len(beyond):
            num_lines = int(np.searchsorted(starts, beyond[0]))
            new, new_lines, run = new[new < beyond[0]], new_lines[new < beyond[0]], run[: beyond[0]]
        if not len(begins) and len(new):
            pending, begins, lines = run[new[0] :], new - new[0], new_lines
        elif len(begins):
            begins, lines = np.concatenate([begins, len(pending) + new]), np.concatenate([lines, new_lines])
            pending += run
        if len(pending) - (begins[-1] if len(begins) else 0) > MAX_RECORD_BYTES:
            raise too_large()
        position, line, after_blank = position + len(run), line + num_lines, bool(is_blank[-1])
        if is_last:
            break
        while (count := records_in_block(np.diff(begins), limits)) is not None:
            size = int(begins[count])
            place = position - len(pending)
            yield (
                identify(slice_.file, pending[:size], int(lines[0]), int(lines[count] - lines[0]), place),
                pending[:size],
            )
            pending, begins, lines = pending[size:], begins[count:] - size, lines[count:]
    while len(begins):
        count = records_in_block(np.diff(begins, append=len(pending)), limits) or len(begins)
        size = int(begins[count]) if count < len(begins) else len(pending)
        next_line = int(lines[count]) if count < len(lines) else line
        place = position - len(pending)
        yield identify(slice_.file, pending[:size], int(lines[0]), next_line - int(lines[0]), place), pending[:size]
        pending, begins, lines = pending[size:], begins[count:] - size, lines[count:]


def _paragraphs_in(
    run: bytes, *, at_file_start: bool, after_blank: bool
) -> tuple[Int64Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Of a run of whole lines: (first byte of each line, whether a paragraph begins with it, whether it is blank)."""
    ends = line_ends(run)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    text = starts.copy()
    if at_file_start and run.startswith(UTF8_MARK):
        text[0] = len(UTF8_MARK)
    blank = blank_lines(np.frombuffer(run, np.uint8), text, ends)
    return starts, ~blank & np.concatenate([[after_blank], blank[:-1]]), blank


def _is_blank_before(file: BinaryIO, position: int) -> bool:
    """Whether what stands between the line's begin and `position` is nothing but white space."""
    while position > 0:
        # All that is left where the rest would begin inside the byte order mark.
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
