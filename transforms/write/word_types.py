"""One row per word form over the whole corpus: each block's sums, and the table made of them at the end.

A block's part holds, per form (and kept fields), the number of its occurrences, and the sums and the sums of squares of
its vectors in float64. The table is made from the parts of ALL blocks in one order, so that a resumed or a growing run
gives the same bytes as one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import FIELD_TYPES, Float32Array, Int64Array, TokenBlock
from layerbeam.transforms.columns import schema, vector_array, vector_type
from layerbeam.transforms.commits import Part
from layerbeam.transforms.parts import as_matrix
from layerbeam.transforms.views import View

_SUM, _SQUARES = "_sum", "_squares"
# The forms are taken in ranges whose sums have this size.
_RANGE_BYTES = 256 << 20

_NAN = float("nan")

Float64Array = npt.NDArray[np.float64]
Key = tuple[Any, ...]


def sums_schema(view: View) -> pa.Schema:
    """The columns of a block's part."""
    types = dict(view.fields)
    keys = [pa.field(name, FIELD_TYPES[types[name]]) for name in view.group_by]
    type_ = vector_type(np.float64, view.width)
    vectors = [pa.field(name, type_, nullable=False) for name in _sum_columns(view)]
    columns = [pa.field("word", pa.string(), nullable=False), pa.field("count", pa.int64(), nullable=False)]
    return pa.schema([*keys, *columns, *vectors])


def sum_words(view: View, tokens: TokenBlock, vectors: Sequence[Float32Array]) -> pa.Table:
    """The sums over a block's words, one row per form (and kept fields), in the order of their keys."""
    rows = tokens.rows[view.name]
    words = rows.words
    assert words is not None  # noqa: S101 - for mypy
    forms = words.forms.take(pa.array(words.form)).to_pylist()
    kept = [tokens.text.fields[name].take(pa.array(rows.text)).to_pylist() for name in view.group_by]
    keys = _keys([*kept, forms])
    distinct = sorted(set(keys), key=_order)
    number = {key: index for index, key in enumerate(distinct)}
    row_forms = np.array([number[key] for key in keys], np.int64)
    order = np.argsort(row_forms, kind="stable")
    counts = np.bincount(row_forms, minlength=len(distinct))
    begins = np.cumsum(counts) - counts
    columns = _key_columns(view, distinct, counts)
    for name, values in zip(view.vector_columns, vectors, strict=True):
        ordered = values[order].astype(np.float64)
        for suffix, terms in ((_SUM, ordered), (_SQUARES, ordered**2)):
            columns[f"{name}{suffix}"] = vector_array(np.add.reduceat(terms, begins, axis=0))
    return pa.Table.from_pydict(columns, sums_schema(view))


def make_word_types(output_path: str, view: View, parts: Sequence[Part]) -> tuple[int, Iterator[pa.Table]]:
    """(rows, the tables of the word types, range after range of forms) from the parts of all blocks, in their order."""
    keys, counts = _read_keys(output_path, view, parts)
    totals: dict[Key, int] = {}
    for part_keys, part_counts in zip(keys, counts, strict=True):
        for key, count in zip(part_keys, part_counts.tolist(), strict=True):
            totals[key] = totals.get(key, 0) + count
    distinct = sorted((key for key, count in totals.items() if count >= view.min_count), key=_order)
    number = {key: index for index, key in enumerate(distinct)}
    # Per part (row in the part, row in the table) of the rows that are kept: both ascend.
    kept = [
        np.array([(row, number[key]) for row, key in enumerate(part_keys) if key in number], np.int64).reshape(-1, 2)
        for part_keys in keys
    ]
    names = _sum_columns(view)
    step = max(_RANGE_BYTES // max(len(names) * view.width * 8, 1), 1)

    def tables() -> Iterator[pa.Table]:
        for begin in range(0, len(distinct), step):
            forms = distinct[begin : begin + step]
            sums = {name: np.zeros((len(forms), view.width)) for name in names}
            for part, rows in zip(parts, kept, strict=True):
                first, last = np.searchsorted(rows[:, 1], [begin, begin + len(forms)])
                if first < last:
                    table = _read(output_path, part, names)
                    for name, total in sums.items():
                        values = as_matrix(table[name].combine_chunks())
                        total[rows[first:last, 1] - begin] += values[rows[first:last, 0]]
            yield _finish(view, forms, np.array([totals[key] for key in forms]), sums)

    return len(distinct), tables()


def _sum_columns(view: View) -> list[str]:
    return [f"{name}{suffix}" for name in view.vector_columns for suffix in (_SUM, _SQUARES)]


def _finish(view: View, keys: list[Key], counts: Int64Array, sums: dict[str, Float64Array]) -> pa.Table:
    """Means and standard deviations (of the population: over n), in alternate columns."""
    columns = _key_columns(view, keys, counts)
    for name in view.vector_columns:
        mean = sums[f"{name}{_SUM}"] / counts[:, None]
        variance = np.maximum(sums[f"{name}{_SQUARES}"] / counts[:, None] - mean**2, 0)
        for column, values in ((name, mean), (f"{name}_std", np.sqrt(variance))):
            columns[column] = vector_array(values.astype(view.dtype))
    return pa.Table.from_pydict(columns, schema(view))


def _key_columns(view: View, keys: list[Key], counts: Int64Array) -> dict[str, Any]:
    """The columns of these keys and of their counts."""
    names = (*view.group_by, "word")
    return {name: [key[index] for key in keys] for index, name in enumerate(names)} | {"count": counts}


def _read_keys(output_path: str, view: View, parts: Sequence[Part]) -> tuple[list[list[Key]], list[Int64Array]]:
    keys, counts = [], []
    for part in parts:
        table = _read(output_path, part, [*view.group_by, "word", "count"])
        columns = [table[name].to_pylist() for name in (*view.group_by, "word")]
        keys.append(_keys(columns))
        counts.append(table["count"].to_numpy())
    return keys, counts


def _read(output_path: str, part: Part, columns: list[str]) -> pa.Table:
    with storage.open_arrow(storage.join(output_path, part.path)) as file:
        return pq.ParquetFile(file).read(columns=columns)


def _keys(columns: Sequence[list[Any]]) -> list[Key]:
    """The key of each row. All NaN are one object, so that keys with NaN are equal."""
    return [tuple(_NAN if value != value else value for value in row) for row in zip(*columns, strict=True)]


def _order(key: Key) -> tuple[tuple[int, Any], ...]:
    """What to sort keys by: null first, then NaN, then the others."""
    return tuple((0, 0) if value is None else (1, 0) if value is _NAN else (2, value) for value in key)
