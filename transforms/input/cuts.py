"""Blocks cut by content, so that an edit of a file moves the cuts of its neighbourhood only.

A record has a size, its share of what fits in a block, and a rank, from a hash of its bytes. It is a candidate if the
rank is low: sixteen in a full block, on average. A block ends with the candidate of the lowest rank, the last one of
equals, among those with which it is between a quarter full and full; without one, with the record that fills it. So
where a block ends depends on where it begins and on what follows, and blocks that begin at different records soon end
at the same one. (Compare FastCDC, Xia and others 2016, which takes the first place whose hash has some property.)

A record that is too long is a block of its own, and ends the one before it.

Of a record with fields, the text decides, and the pair: so a block whose other fields change ends where it did.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from layerbeam.transforms.flow.blocks import BoolArray, Int64Array
from layerbeam.transforms.input.records import UnreadableFileError, amounts
from layerbeam.transforms.settings import BlockLimits

# The size of a full block.
FULL = 1 << 30
_FEWEST = FULL // 4
# Ranks of a record that is no candidate, and of one that is too long. Hashes have 32 bits.
NO_CANDIDATE = 16 << 32
ALONE = -1
_LONGEST = 1 << 31
# A range with more candidates in a full block than this keeps none: they would take more memory than the file.
_MOST_CANDIDATES = 256
# CRC-32, a byte at a time: what is left of a register of 32 bits, by its last byte.
_CRC_MASK = 0xFFFFFFFF
_CRC_STEPS = np.array([zlib.crc32(bytes([255 ^ code])) ^ 0xFF000000 for code in range(256)], np.uint32)
_SHORT_BYTES = 16


def sizes_and_ranks(
    lengths: Int64Array, hashes: Sequence[int] | Int64Array, limits: BlockLimits, is_alone: BoolArray
) -> tuple[Int64Array, Int64Array]:
    """The sizes and the ranks of records of these lengths in bytes. `is_alone`: those that are too long."""
    shortened = np.minimum(lengths, _LONGEST)
    if len(lengths) > np.max(shortened, initial=0):  # of many short records, by length
        sizes = _sizes(np.arange(shortened.max() + 1), limits)[shortened]
    else:
        sizes = _sizes(shortened, limits)
    # So the candidates in a block are as many whether its records are short or long.
    ranks, given = np.full(len(sizes), NO_CANDIDATE), np.asarray(hashes, np.int64)
    low = np.flatnonzero(given < NO_CANDIDATE // FULL * sizes)
    ranks[low] = given[low] * FULL // sizes[low]
    sizes[is_alone], ranks[is_alone] = FULL, ALONE
    return sizes, ranks


def _sizes(lengths: Int64Array, limits: BlockLimits) -> Int64Array:
    *others, (tokens, most_tokens) = amounts(lengths, 1, limits)
    given = [*others, (tokens, min(most_tokens, limits.edit_tokens))]
    sizes: Int64Array = np.clip(np.maximum.reduce([-(-amount * FULL // limit) for amount, limit in given]), 1, FULL)
    return sizes


def checksums(data: memoryview, bounds: Int64Array) -> Int64Array:
    """int64 [R]: the CRC-32 of each piece data[bounds[i] : bounds[i + 1]], the short ones all at once."""
    lengths, codes = np.diff(bounds), np.frombuffer(data, np.uint8)
    hashes = np.zeros(len(lengths), np.int64)
    for length in np.flatnonzero(np.bincount(np.minimum(lengths, _SHORT_BYTES + 1))[1 : _SHORT_BYTES + 1]) + 1:
        short = np.flatnonzero(lengths == length)
        starts, register = bounds[short], np.full(len(short), _CRC_MASK, np.uint32)
        for at in range(length):
            register = _CRC_STEPS[(register ^ codes[starts + at]) & 0xFF] ^ (register >> 8)
        hashes[short] = register ^ _CRC_MASK
    long = np.flatnonzero(lengths > _SHORT_BYTES)
    pieces = zip(bounds[long].tolist(), bounds[long + 1].tolist(), strict=True)
    hashes[long] = [zlib.crc32(data[start:end]) for start, end in pieces]
    return hashes


def records_in_block(sizes: Int64Array, ranks: Int64Array) -> int:
    """The number of records in the block that begins with these; 0 if it may go on behind them.

    >>> quarters = np.full(5, FULL // 4)
    >>> records_in_block(quarters, np.array([1, 7, 5, 9, 0])), records_in_block(quarters[:3], np.array([1, 7, 5]))
    (1, 0)
    """
    filled = np.cumsum(sizes)
    last = int(np.searchsorted(filled, FULL))
    alone = np.flatnonzero(ranks[: last + 1] == ALONE)[:1].tolist()
    if alone or last == len(sizes):
        return max(1, *alone) if alone else 0
    window = ranks[int(np.searchsorted(filled, _FEWEST)) : last + 1]
    return last + 1 - (_behind_lowest(window) if window.min() < NO_CANDIDATE else 0)


def _behind_lowest(ranks: Int64Array) -> int:
    """How many are behind the lowest one, or the last of the lowest."""
    return int(np.argmin(ranks[::-1]))


class RankedRecords(NamedTuple):
    """Some of the records of a slice in order.

    `places`, `lines`: int64 [P], where they begin, and the last one of all ends, and the line numbers there. `sizes`,
    `ranks`: int64 [R], of those that end: at the last R places.
    """

    places: Int64Array
    lines: Int64Array
    sizes: Int64Array
    ranks: Int64Array


_NO_RECORDS = RankedRecords(*[np.empty(0, np.int64)] * 4)


@dataclasses.dataclass
class Candidates:
    """Where blocks of a file may end, by the records that begin in a range of it: C places.

    `places`, `lines`: int64 [C], and the line ends before them. `before`, `filled`: int64 [C], the sizes of all records
    before the candidate, and with it. `ranks`: int64 [C]. A record that is too long has a place before it, too. Lines
    and sizes count from `start`, where the first record begins, or the file. `end`, `num_lines`, `size`: of all of the
    records. `is_complete`: whether all candidates are there; if not, they are too many, and there is none.
    """

    start: int
    end: int
    num_lines: int
    size: int
    is_complete: bool
    places: Int64Array
    lines: Int64Array
    before: Int64Array
    filled: Int64Array
    ranks: Int64Array


def find_candidates(runs: Iterable[RankedRecords], *, at_file_start: bool) -> Candidates | None:
    """The candidates in a range of a file; None if no record begins in it."""
    found, size = np.empty((5, 0), np.int64), 0
    first: list[int] | None = [0, 0] if at_file_start else None
    end = np.zeros((2, int(at_file_start)), np.int64)
    for places, lines, sizes, ranks in runs:
        if first is None and len(places):
            first = [int(places[0]), int(lines[0])]
        bounds = np.concatenate([end, np.stack([places, lines])], axis=1)
        end, count = bounds[:, -1:], bounds.shape[1] - len(sizes)
        filled = size + np.cumsum(sizes)
        size += int(sizes.sum())
        behind, before = np.flatnonzero(ranks < NO_CANDIDATE), np.flatnonzero(ranks == ALONE)
        of_run = np.concatenate(
            [
                [*bounds[:, count + behind], filled[behind] - sizes[behind], filled[behind], ranks[behind]],
                [*bounds[:, count + before - 1], *[filled[before] - sizes[before]] * 2, ranks[before]],
            ],
            axis=1,
        )
        found = np.concatenate([found, of_run[:, np.argsort(of_run[0], kind="stable")]], axis=1)
    if first is None:
        return None
    is_complete = found.shape[1] <= _MOST_CANDIDATES * (1 + size // FULL)
    found = found[:, _may_be_chosen(*found[2:]) if is_complete else []]
    found[1] -= first[1]
    (end_place,), (end_line,) = end.tolist()
    return Candidates(first[0], end_place, end_line - first[1], size, is_complete, *found)


def _may_be_chosen(before: Int64Array, filled: Int64Array, ranks: Int64Array) -> list[int]:
    """Those that are the lowest between a quarter full and full, wherever the block begins: a sixth, on average."""
    kept = list[int]()
    open_: list[tuple[int, int, int]] = []  # (rank, number, filled by the lower one before it), as none lower follows
    for number, (begin, rank) in enumerate(zip(before.tolist(), ranks.tolist(), strict=True)):
        while open_ and open_[-1][0] >= rank:
            other_rank, other, lower = open_.pop()
            if other_rank == ALONE or begin - lower > FULL - _FEWEST:
                kept.append(other)
        open_.append((rank, number, int(filled[open_[-1][1]]) if open_ else -FULL))
    return sorted([*kept, *(number for _, number, _ in open_)])


class BlockReader:
    """Finds where blocks end from the file; those that follow one another in one pass.

    `open_records(first byte, byte after the last, line)`: the records that begin between these bytes.
    """

    def __init__(self, open_records: Callable[[int, int, int], Iterator[RankedRecords]], limits: BlockLimits) -> None:
        self._open_records = open_records
        self._most_records = limits.text_rows + 1
        self._runs: Iterator[RankedRecords] = iter(())
        # What was read from there on.
        self._place = -1
        self._found = _NO_RECORDS

    def read(self, place: int, line: int, until: int) -> tuple[int, int, int]:
        """(byte after the last, line after the last, size) of the block that begins at `place` and ends by `until`."""
        is_opened = place != self._place
        if is_opened:
            self._open(place, line, until)
        while not (count := self._count()):
            run = next(self._runs, None)
            if run is not None:
                self._found = RankedRecords(*map(np.concatenate, zip(self._found, run, strict=True)))
            elif not is_opened:  # an earlier block's `until` was too early for this one
                self._open(place, line, until)
                is_opened = True
            else:
                count = len(self._found.sizes)
                break
        if not count:
            raise UnreadableFileError("its bytes have changed since it was read")
        places, lines, sizes, ranks = self._found
        self._found = RankedRecords(places[count:], lines[count:], sizes[count:], ranks[count:])
        self._place = int(places[count])
        return self._place, int(lines[count]), int(sizes[:count].sum())

    def _open(self, place: int, line: int, until: int) -> None:
        self._runs = self._open_records(place, until, line)
        self._found = _NO_RECORDS

    def _count(self) -> int:
        return records_in_block(self._found.sizes[: self._most_records], self._found.ranks[: self._most_records])


def cut(ranges: Sequence[Candidates], reader: BlockReader) -> Iterator[tuple[int, int, int]]:
    """(first byte, byte after the last, line ends) of each block of a file, by the candidates in all of its ranges.

    The reader is asked for a block without a candidate, or with too many. Of records that all differ, one of a million
    has none.
    """
    totals = [np.cumsum([0, *values]) for values in zip(*((r.num_lines, r.size) for r in ranges), strict=True)]
    lines, before, filled = (
        np.concatenate([getattr(one, name) + shift for one, shift in zip(ranges, total[:-1], strict=True)])
        for name, total in zip(("lines", "before", "filled"), (totals[0], totals[1], totals[1]), strict=True)
    )
    places, ranks = (np.concatenate([getattr(one, name) for one in ranges]) for name in ("places", "ranks"))
    place, line, start = ranges[0].start, 0, 0
    while place < ranges[-1].end:
        stop = int(np.searchsorted(before, start + FULL))
        first = int(np.searchsorted(places, place, "right"))
        window = slice(max(first, int(np.searchsorted(filled, start + _FEWEST))), stop)
        alone = np.flatnonzero(ranks[first:stop] == ALONE)[:1].tolist()
        # The ranges in which the block begins, and in which it is full.
        begins = int(np.searchsorted(totals[1], start, "right")) - 1
        fills = int(np.searchsorted(totals[1], start + FULL))
        is_known = all(one.is_complete for one in ranges[begins:fills])
        if is_known and (alone or (len(ranks[window]) and fills <= len(ranges))):
            chosen = first + alone[0] if alone else stop - 1 - _behind_lowest(ranks[window])
            end = int(places[chosen]), int(lines[chosen]), int(filled[chosen])
        elif is_known and fills > len(ranges):
            end = ranges[-1].end, int(totals[0][-1]), int(totals[1][-1])
        else:
            until = min([ranges[:fills][-1].end, *places[stop : stop + 1].tolist()])
            end = reader.read(place, line, until)
            end = *end[:2], start + end[2]
        yield place, end[0], end[1] - line
        place, line, start = end
