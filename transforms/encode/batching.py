"""Batches planned from the texts' lengths alone, so that equal runs make equal batches."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.transforms.flow.blocks import Int64Array, row_splits_of

# The fixed cost of a batch, in tokens: the overhead of some 300 operations, slower matrix products in small batches (in
# bfloat16, 256 tokens are 8 to 12 % slower than 512 or 1,024), oneDNN's code generation for a new shape.
_BATCH_COST = 32
# A batch is full or this fraction of full, so that shapes recur. With free sizes the plan had 1.5 % less padding and
# twice as many shapes, and was slower (MiniLM, bfloat16, 3,000 verses).
_PARTS = (1, 2, 4)
# The same with buckets, as a share of a full batch: a device with buckets has to be asked for a batch, and waits.
_BUCKET_BATCH_COST = 1 / 16


def plan_batches(
    lengths: Int64Array, batch_tokens: int, buckets: Sequence[int] | None = None, *, only_full: bool = False
) -> list[Int64Array]:
    """Batches of texts, longest first, each at most `batch_tokens` padded tokens (rows x longest) or a single text.

    `lengths`: int [T], tokens with special tokens. Returns index arrays into it; each text is in one of them. The
    texts are sorted by length and cut where padding plus the fixed cost of the batches is lowest. The longest come
    first, so that the memory peak of a block is known early. With `buckets`, and `only_full`, a batch has one of few
    shapes, see `padded_shape`.

    >>> [batch.tolist() for batch in plan_batches(np.array([3, 9, 4, 8]), 18)]
    [[1, 3], [2, 0]]
    >>> [batch.tolist() for batch in plan_batches(np.array([30, 5]), 18)]
    [[0], [1]]
    >>> [batch.tolist() for batch in plan_batches(np.array([3, 9, 4, 8, 2]), 18, [4, 16])]
    [[1], [3], [2], [0], [4]]
    """
    order = np.argsort(-lengths, kind="stable")
    falling = lengths[order]
    if buckets is None:
        ends = _cheapest_ends(falling.tolist(), batch_tokens)
    else:
        ends = _bucket_ends(falling, buckets, batch_tokens, only_full=only_full)
    return [order[start:end] for start, end in itertools.pairwise([0, *ends])]


def _cheapest_ends(lengths: list[int], batch_tokens: int) -> list[int]:
    """Where each batch ends in falling lengths: the cheapest cut, by dynamic programming from the end."""
    total = len(lengths)
    cost = [0] * (total + 1)
    end_of = [0] * total
    for start in range(total - 1, -1, -1):
        full = max(batch_tokens // lengths[start], 1)
        sizes = (min(max(full // part, 1), total - start) for part in _PARTS)
        cost[start], end_of[start] = min(
            (lengths[start] * size + _BATCH_COST + cost[start + size], start + size) for size in sizes
        )
    ends, start = [], 0
    while start < total:
        start = end_of[start]
        ends.append(start)
    return ends


def _bucket_ends(lengths: Int64Array, buckets: Sequence[int], batch_tokens: int, *, only_full: bool) -> list[int]:
    """Where each batch ends in falling lengths, all padded to the bucket of its longest text.

    A batch is full or a fraction of full, or ends with its bucket, or has as many texts of its bucket as a power of two
    allows: whatever costs least for a token.
    """
    before, ends, total = row_splits_of(lengths), [0], len(lengths)
    rising = -_padded_lengths(lengths, buckets)
    while (start := ends[-1]) < total:
        length = -int(rising[start])
        full = _full_rows(length, batch_tokens)
        rest = min(full, int(np.searchsorted(rising, -length, side="right")) - start)
        fractions = [] if only_full else [*(full // part for part in _PARTS), 1 << (rest.bit_length() - 1)]
        sizes = np.clip([full, rest, *fractions], 1, total - start)
        rows = full if only_full else np.exp2(np.ceil(np.log2(sizes)))
        cost = (rows * length + batch_tokens * _BUCKET_BATCH_COST) / (before[start + sizes] - before[start])
        ends.append(start + int(sizes[cost.argmin()]))
    return ends[1:]


def _padded_lengths(lengths: Int64Array, buckets: Sequence[int]) -> Int64Array:
    """The next bucket of each length; a length beyond all buckets stays."""
    bucket = np.searchsorted(buckets, lengths)
    return np.where(bucket < len(buckets), np.append(buckets, 0)[bucket], lengths)


def _full_rows(length: int, batch_tokens: int) -> int:
    """The rows of a full batch of this padded length: the largest power of two that fits, at least 1."""
    return 1 << (max(batch_tokens // length, 1).bit_length() - 1)


def padded_shape(
    rows: int, longest: int, buckets: Sequence[int] | None, batch_tokens: int | None = None
) -> tuple[int, int]:
    """(B, S) of a batch with this many texts and this many tokens in the longest.

    With `buckets` (ascending), S is the next of these lengths and B the next power of two. That leaves few shapes: at
    most log2(2 batch_tokens / bucket) for each bucket. With `batch_tokens` too, B is that of a full batch: one shape
    for each bucket. A text longer than all buckets keeps its length.

    >>> padded_shape(3, 30, None), padded_shape(3, 30, [32, 64]), padded_shape(5, 64, [32, 64])
    ((3, 30), (4, 32), (8, 64))
    >>> padded_shape(3, 30, [32, 64], 1024), padded_shape(5, 64, [32, 64], 1024)
    ((32, 32), (16, 64))
    """
    if buckets is None:
        return rows, longest
    bucket = bisect.bisect_left(buckets, longest)
    length = buckets[bucket] if bucket < len(buckets) else longest
    return 1 << (rows - 1).bit_length() if batch_tokens is None else _full_rows(length, batch_tokens), length


def equal_texts(row_splits: Int64Array, *columns: npt.NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
    """(`first` [U], `inverse` [T]): the first of each set of equal texts, and for each text its place in `first`.

    Texts are equal if all their tokens agree in every column ([N] each).

    >>> first, inverse = equal_texts(np.array([0, 2, 3, 5]), np.array([7, 8, 7, 7, 8], np.int32))
    >>> first.tolist(), inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    tokens = np.stack([column.astype(np.int32) for column in columns], axis=1)
    offsets = np.ascontiguousarray(row_splits * tokens.itemsize * len(columns), np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(tokens)]
    texts = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    inverse = texts.dictionary_encode().indices.to_numpy().astype(np.int64)  # in the order of the first ones
    return np.unique(inverse, return_index=True)[1], inverse
