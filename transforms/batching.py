"""Which texts go through the encoder together: pure functions of lengths, so that equal runs make equal batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from transforms.records import Int64Array


def plan_batches(lengths: Int64Array, batch_tokens: int) -> list[Int64Array]:
    """Texts in batches of `rows x longest <= batch_tokens` padded tokens, longest first; at least one text in each.

    `lengths`: int [T], tokens with [CLS] and [SEP]. Gives index arrays into it that hold each text once. Sorted by
    length, so that padding is a few per cent; longest first, so that the largest batch of a block comes first and
    what it needs is known early.

    >>> [batch.tolist() for batch in plan_batches(np.array([3, 9, 4, 8]), 18)]
    [[1, 3], [2, 0]]
    >>> [batch.tolist() for batch in plan_batches(np.array([30, 5]), 18)]
    [[0], [1]]
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        rows = max(batch_tokens // int(lengths[order[start]]), 1)
        batches.append(order[start : start + rows])
        start += rows
    return batches


def equal_texts(row_splits: Int64Array, *columns: npt.NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
    """(`first` [U], `inverse` [T]): the first text of each kind, and for each text its place in `first`.

    Texts are equal where all their tokens agree in every column ([N] each).

    >>> first, inverse = equal_texts(np.array([0, 2, 3, 5]), np.array([7, 8, 7, 7, 8], np.int32))
    >>> first.tolist(), inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    table = np.stack([column.astype(np.int32) for column in columns], axis=1)
    seen: dict[bytes, int] = {}
    first: list[int] = []
    inverse = np.empty(len(row_splits) - 1, np.int64)
    for text, (start, stop) in enumerate(zip(row_splits[:-1].tolist(), row_splits[1:].tolist(), strict=True)):
        key = table[start:stop].tobytes()
        place = seen.setdefault(key, len(first))
        if place == len(first):
            first.append(text)
        inverse[text] = place
    return np.array(first, np.int64), inverse


def token_positions(row_splits: Int64Array, texts: Int64Array) -> Int64Array:
    """Where the tokens of these texts stand, one text after the other: int64, the sum of their lengths.

    >>> token_positions(np.array([0, 2, 3, 6]), np.array([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    lengths = np.diff(row_splits)[texts]
    before = np.cumsum(lengths) - lengths
    return np.repeat(row_splits[texts] - before, lengths) + np.arange(int(lengths.sum()))
