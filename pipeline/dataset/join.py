"""The rows of two views that are of the same place in the same text, found through a file, in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.pipeline.dataset.reader import Run
from layerbeam.pipeline.dataset.view import View
from layerbeam.pipeline.output.scratch import Scratch
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.commits import Part

_TABLES = """
CREATE TABLE others (key INTEGER PRIMARY KEY, part INTEGER, number INTEGER);
CREATE TABLE wanted (key INTEGER PRIMARY KEY, number INTEGER);
"""
_FOUND = """SELECT wanted.key, wanted.number, others.part, others.number FROM wanted JOIN others USING (key)
ORDER BY others.part, others.number"""
# Of texts the text itself, too: a record that has changed since is another one.
_PLACE = ("sentence", "start", "end")
Int64Array = npt.NDArray[np.int64]


class Pairs(NamedTuple):
    """Rows of a part of one view and of a part of the other that belong together. `keys`: [n], evenly distributed."""

    keys: Int64Array
    part: Part
    rows: Int64Array
    other_part: Part
    other_rows: Int64Array


class Join(Scratch):
    """Pairs of rows with the same id, or file and line, and place in the text; several at one place in their order.

    `columns`: what rows have in common. A row of 64 bits of a hash in the file stands for one of the other view.
    """

    def __init__(self, runs: tuple[Run, Run], views: tuple[View, View]) -> None:
        super().__init__(_TABLES)
        self._view, self._other = views
        names = [name for name in views[0].schema.names if name in views[1].schema.names]
        counts = [run.manifest["counts"] for run in runs]
        has_ids = "id" in names and not any(count.get(metrics.DUPLICATE_IDS) for count in counts)
        of_text = (*_PLACE, *(("text",) if self._view.level == "text" else ()))
        record = ("id",) if has_ids and all(metrics.DUPLICATE_IDS in count for count in counts) else ("file", "line")
        self.columns = [*record, *(name for name in of_text if name in names)]

    def __iter__(self) -> Iterator[Pairs]:
        for number, part in enumerate(self._other.parts):
            keys = self._keys(self._other, part)
            rows = ((key, number, row) for row, key in enumerate(keys.tolist()))
            self._change("INSERT OR IGNORE INTO others VALUES (?, ?, ?)", rows)
        for part in self._view.parts:
            self._run_script("DELETE FROM wanted")
            wanted = ((key, row) for row, key in enumerate(self._keys(self._view, part).tolist()))
            self._change("INSERT OR IGNORE INTO wanted VALUES (?, ?)", wanted)
            found = np.array(list(self._run(_FOUND)), np.int64).reshape(-1, 4)
            for other in np.unique(found[:, 2]).tolist():
                keys, rows, _, other_rows = found[found[:, 2] == other].T
                by_row = np.argsort(rows)
                yield Pairs(keys[by_row], part, rows[by_row], self._other.parts[other], other_rows[by_row])

    def _keys(self, view: View, part: Part) -> Int64Array:
        """A hash of each row of a part."""
        table = view.read(part, self.columns)
        view.check_rows(part, table.num_rows)
        keys = np.zeros(table.num_rows, np.uint64)
        for name in self.columns:
            keys = _mix(keys ^ _numbers(table[name].combine_chunks()))
        order = np.argsort(keys, kind="stable")
        firsts = np.flatnonzero(np.diff(keys[order], prepend=keys[order][:1] + 1)) if len(keys) else order
        occurrence = np.empty(len(keys), np.uint64)
        occurrence[order] = np.arange(len(keys)) - np.repeat(firsts, np.diff(np.append(firsts, len(keys))))
        return np.asarray(_mix(keys ^ occurrence).view(np.int64))


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """A number for each value: itself, or 64 bits of a hash."""
    if not pa.types.is_string(column.type):
        return np.asarray(column.fill_null(-1).cast(pa.int64()).to_numpy().view(np.uint64))
    encoded = column.fill_null("").dictionary_encode()
    texts: list[Any] = encoded.dictionary.to_pylist()
    hashes = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") for text in texts]
    return np.asarray(np.array(hashes, np.uint64)[encoded.indices.to_numpy()])


def _mix(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The finalizer of splitmix64: equal values stay equal, others become evenly distributed."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
