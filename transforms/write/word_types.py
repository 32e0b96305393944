"""One row per word form over the whole corpus: each block's sums, and the table that they become at the end.

A block's part holds, per form (and kept fields), how often it comes, and the sums and the sums of squares of its
vectors in float64. The table is made from the parts of ALL blocks in one order, so that a resumed or a growing run
gives what one run gives.
"""

from __future__ import annotations

from collections.abc import Sequence
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
# Sums in memory at once while the table is made; the forms are taken in ranges of this size.
_RANGE_BYTES = 256 << 20

_NAN = float("nan")

Float64Array = npt.NDArray[np.float64]
Key = tuple[Any, ...]


def sums_schema(view: View) -> pa.Schema:
    """The columns of a block's part."""
    types = dict(view.fields)
    keys = [pa.field(name, FIELD_TYPES[types[name]]) for name in view.group_by]
    type_ = vector_type(np.float64, view.width)
    vectors = [
        pa.field(f"{name}{ending}", type_, nullable=False)
        for name in view.vector_columns
        for ending in (_SUM, _SQUARES)
    ]
    columns = [pa.field("word", pa.string(), nullable=False), pa.field("count", pa.int64(), nullable=False)]
    return pa.schema([*keys, *columns, *vectors])


def sum_words(view: View, tokens: TokenBlock, vectors: Sequence[Float32Array]) -> pa.Table:
    """The sums over a block's words, a row per form (and kept fields), in the order of their keys."""
    rows = tokens.rows[view.name]
    words = rows.words
    assert words is not None  # noqa: S101 - for mypy
    forms = words.forms.take(pa.array(words.form)).to_pylist()
    kept = [tokens.text.fields[name].take(pa.array(rows.text)).to_pylist() for name in view.group_by]
    keys = _keys([*kept, forms])
    distinct = sorted(set(keys), key=_order)
    number = {key: index for index, key in enumerate(distinct)}
    of_row = np.array([number[key] for key in keys], np.int64)
    order = np.argsort(of_row, kind="stable")
    counts = np.bincount(of_row, minlength=len(distinct))
    begins = np.cumsum(counts) - counts
    columns: list[Any] = [[key[index] for key in distinct] for index in range(len(view.group_by) + 1)]
    columns.append(counts)
    for values in vectors:
        ordered = values[order].astype(np.float64)
        for terms in (ordered, ordered**2):
            sums = np.add.reduceat(terms, begins, axis=0) if len(distinct) else terms[:0]
            columns.append(vector_array(sums))
    expected = sums_schema(view)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, expected, strict=True)]
    return pa.Table.from_arrays(arrays, schema=expected)


def make_word_types(output_path: str, view: View, parts: Sequence[Part]) -> tuple[int, Any]:
    """(rows, the tables of the word types, range after range of forms) from the parts of all blocks, in their order."""
    keys, counts = _read_keys(output_path, view, parts)
    totals: dict[Key, int] = {}
    for of_part, numbers in zip(keys, counts, strict=True):
        for key, count in zip(of_part, numbers.tolist(), strict=True):
            totals[key] = totals.get(key, 0) + count
    distinct = sorted((key for key, count in totals.items() if count >= view.min_count), key=_order)
    return len(distinct), _tables(output_path, view, parts, keys, distinct, totals)


def _tables(
    output_path: str,
    view: View,
    parts: Sequence[Part],
    keys: Sequence[list[Key]],
    distinct: list[Key],
    totals: dict[Key, int],
) -> Any:
    number = {key: index for index, key in enumerate(distinct)}
    # Of each part the rows that are wanted, and their places among all: both ascend.
    wanted = [[(row, number[key]) for row, key in enumerate(of_part) if key in number] for of_part in keys]
    places = [np.array(pairs, np.int64).reshape(-1, 2) for pairs in wanted]
    names = [f"{name}{ending}" for name in view.vector_columns for ending in (_SUM, _SQUARES)]
    step = max(_RANGE_BYTES // max(len(names) * view.width * 8, 1), 1)
    for begin in range(0, len(distinct), step):
        end = min(begin + step, len(distinct))
        sums = {name: np.zeros((end - begin, view.width)) for name in names}
        for part, rows in zip(parts, places, strict=True):
            first, last = np.searchsorted(rows[:, 1], [begin, end])
            if first < last:
                table = _read(output_path, part, names)
                for name, total in sums.items():
                    values = as_matrix(table[name].combine_chunks())
                    total[rows[first:last, 1] - begin] += values[rows[first:last, 0]]
        yield _finish(view, distinct[begin:end], np.array([totals[key] for key in distinct[begin:end]]), sums)


def _finish(view: View, keys: list[Key], counts: Int64Array, sums: dict[str, Float64Array]) -> pa.Table:
    """Means and standard deviations (of the population: over n) beside each other."""
    columns: dict[str, Any] = {
        name: [key[index] for key in keys] for index, name in enumerate((*view.group_by, "word"))
    }
    columns["count"] = counts
    for name in view.vector_columns:
        mean = sums[f"{name}{_SUM}"] / counts[:, None]
        variance = np.maximum(sums[f"{name}{_SQUARES}"] / counts[:, None] - mean**2, 0)
        for column, values in ((name, mean), (f"{name}_std", np.sqrt(variance))):
            columns[column] = vector_array(values.astype(view.dtype))
    expected = schema(view)
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in expected], schema=expected)


def _read_keys(output_path: str, view: View, parts: Sequence[Part]) -> tuple[list[list[Key]], list[Int64Array]]:
    keys, counts = [], []
    for part in parts:
        table = _read(output_path, part, [*view.group_by, "word", "count"])
        columns = [table[name].to_pylist() for name in (*view.group_by, "word")]
        keys.append(_keys(columns))
        counts.append(table["count"].to_numpy())
    return keys, counts


def _read(output_path: str, part: Part, columns: list[str]) -> pa.Table:
    with storage.open_binary(storage.join(output_path, part.path)) as file:
        return pq.ParquetFile(file).read(columns=columns)


def _keys(columns: Sequence[list[Any]]) -> list[Key]:
    """A key of each row; every NaN is the same one, so that it is equal to itself."""
    return [tuple(_NAN if value != value else value for value in row) for row in zip(*columns, strict=True)]


def _order(key: Key) -> tuple[tuple[int, Any], ...]:
    """Keys in order: null, NaN, the others."""
    return tuple((0, 0) if value is None else (1, 0) if value is _NAN else (2, value) for value in key)
