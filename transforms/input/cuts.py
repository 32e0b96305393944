"""Blocks cut by content, so that an edit of a file moves the cuts of its neighbourhood only.

A record has a size, its share of what fits in a block, and a rank, from a hash of its bytes. It is a candidate if the
rank is low: sixteen in a full block, on average. A block ends with the candidate of the lowest rank, the last one of
equals, among those with which it is between a quarter full and full; without one, with the record that fills it. So
where a block ends depends on where it begins and on what follows, and blocks that begin at different records soon end
at the same one. (Compare FastCDC, Xia and others 2016, which takes the first place whose hash has some property.)

A record that is too long is a block of its own, and ends the one before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from layerbeam.transforms.blocks import Int64Array
from layerbeam.transforms.input.records import amounts
from layerbeam.transforms.settings import BlockLimits

# The size of a full block.
FULL = 1 << 30
_FEWEST = FULL // 4
# Ranks of a record that is no candidate, and of one that is too long. Hashes have 32 bits.
NO_CANDIDATE = 16 << 32
ALONE = -1
_LONGEST = 1 << 31


def sizes_and_ranks(
    lengths: Int64Array, hashes: Sequence[int], limits: BlockLimits, most: int
) -> tuple[Int64Array, Int64Array]:
    """The sizes and the ranks of records of these lengths in bytes. One of more than `most` is alone in its block."""
    *others, (tokens, most_tokens) = amounts(np.minimum(lengths, _LONGEST), 1, limits)
    given = [*others, (tokens, min(most_tokens, limits.edit_tokens))]
    sizes = np.clip(np.maximum.reduce([-(-amount * FULL // limit) for amount, limit in given]), 1, FULL)
    # So the candidates in a block are as many whether its records are short or long.
    ranks = np.minimum(np.array(hashes, np.int64) * FULL // sizes, NO_CANDIDATE)
    is_alone = lengths > most
    return np.where(is_alone, FULL, sizes), np.where(is_alone, ALONE, ranks)


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


@dataclasses.dataclass
class Candidates:
    """Where blocks of a file may end, by the records that begin in a range of it: C places.

    `places`, `lines`: int64 [C], and the line ends before them. `before`, `filled`: int64 [C], the sizes of all records
    before the candidate, and with it. `ranks`: int64 [C]. A record that is too long has a place before it, too. Lines
    and sizes count from `start`, where the first record begins, or the file. `end`, `num_lines`, `size`: of all of the
    records.
    """

    start: int
    end: int
    num_lines: int
    size: int
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
        behind = np.concatenate([bounds[:, count:], [filled - sizes, filled, ranks]])[:, ranks < NO_CANDIDATE]
        before = np.concatenate([bounds[:, count - 1 : -1], [filled - sizes, filled - sizes, ranks]])[:, ranks == ALONE]
        of_run = np.concatenate([behind, before], axis=1)
        found = np.concatenate([found, of_run[:, np.argsort(of_run[0], kind="stable")]], axis=1)
    if first is None:
        return None
    found = found[:, _may_be_chosen(*found[2:])]
    found[1] -= first[1]
    (end_place,), (end_line,) = end.tolist()
    return Candidates(first[0], end_place, end_line - first[1], size, *found)


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


def first_block(runs: Iterable[RankedRecords], limits: BlockLimits) -> tuple[int, int, int]:
    """(byte after the last, line after the last, size) of the block that begins with the first of these records."""
    found = RankedRecords(*[np.empty(0, np.int64)] * 4)
    count = 0
    for run in runs:
        found = RankedRecords(*map(np.concatenate, zip(found, run, strict=True)))
        count = records_in_block(found.sizes[: limits.text_rows + 1], found.ranks[: limits.text_rows + 1])
        if count:
            break
    count = count or len(found.sizes)
    last = len(found.places) - len(found.sizes) + count - 1
    return int(found.places[last]), int(found.lines[last]), int(found.sizes[:count].sum())


def cut(
    ranges: Sequence[Candidates], read_block: Callable[[int, int], tuple[int, int, int]]
) -> Iterator[tuple[int, int, int]]:
    """(first byte, byte after the last, line ends) of each block of a file, by the candidates in all of its ranges.

    `read_block(first byte, line)`: (byte after the last, line after the last, size) of the block that begins there,
    from the file. It is asked for a block without a candidate; of records that all differ, one of a million.
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
        if alone or (len(ranks[window]) and totals[1][-1] - start >= FULL):
            chosen = first + alone[0] if alone else stop - 1 - _behind_lowest(ranks[window])
            end = int(places[chosen]), int(lines[chosen]), int(filled[chosen])
        elif totals[1][-1] - start >= FULL:
            end = read_block(place, line)
            end = *end[:2], start + end[2]
        else:
            end = ranges[-1].end, int(totals[0][-1]), int(totals[1][-1])
        yield place, end[0], end[1] - line
        place, line, start = end
