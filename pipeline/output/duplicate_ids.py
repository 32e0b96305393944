"""How many records of a run have the id of an earlier one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.parquet as pq

from layerbeam.transforms import metrics, storage
from layerbeam.transforms.commits import Commit
from layerbeam.transforms.views import View

# 64 bits of a hash for each: 8 MB. Two of so many different ids agree in them once in 37 million runs.
MOST_RECORDS = 1_000_000


def count_duplicate_ids(output_path: str, views: Sequence[View], commits: Sequence[Commit]) -> int | None:
    """Over the whole run, from the `id` column of the smallest Parquet view; the rows of a record count once.

    None where nobody can say with little memory: over a million records, or no Parquet view. Equal ids within a block
    are in the counts of its commit.
    """
    rows = {
        view.name: sum(commit.parts[view.name].rows for commit in commits if view.name in commit.parts)
        for view in views
        if view.format == "parquet" and view.level in ("token", "text", "record") and view.keep_words is None
    }
    if not rows or sum(commit.counts.get(metrics.EMBEDDED, 0) for commit in commits) > MOST_RECORDS:
        return None
    smallest = min(rows, key=lambda name: rows[name])
    hashes = [
        np.fromiter(_hashes(storage.join(output_path, commit.parts[smallest].path)), np.uint64)
        for commit in commits
        if smallest in commit.parts
    ]
    return sum(map(len, hashes)) - len(np.unique(np.concatenate(hashes))) if hashes else 0


def _hashes(path: str) -> Iterator[int]:
    """64 bits for the id of each record in a part, in which the rows of a record stand together."""
    with storage.open_binary(path) as file:
        table = pq.ParquetFile(file).read(columns=["line", "id"])
    lines = table["line"].to_numpy()
    first = np.flatnonzero(np.diff(lines, prepend=-1))
    for value in table["id"].take(first).drop_null().to_pylist():
        yield int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
