"""One row per word form over the whole corpus: each block's sums, and the table made of them at the end.

A block's part holds, per form (and kept fields), the number of its occurrences, and the sums and the sums of squares of
its vectors in float64, in the order of the keys. The table is made range after range of keys: a worker adds up what the
parts of ALL blocks have of a range, in the order of the blocks, so that the number of workers, a resumed or a growing
run change no bit. A sample of the keys decides where the ranges end; it depends on nothing but the keys.
"""

from __future__ import annotations

import bisect
import collections
import concurrent.futures
import hashlib
import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import FIELD_TYPES, Float32Array, Int64Array, TokenBlock
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.number_types import NUMBER_TYPES, as_matrix, vector_array, vector_type
from layerbeam.transforms.views.view import ViewSpec

_SUM, _SQUARES = "_sum", "_squares"
# A range of keys and their sums: a worker holds them in memory. The vectors of its part of the table, in float32, have
# half the size of the sums.
RANGE_BYTES = 64 << 20
_KEY_BYTES = 256
# A range of keys reads whole row groups. Small ones hold little that it does not need; fewer rows cost large footers.
ROW_GROUP_BYTES, MIN_GROUP_ROWS = 512 << 10, 64
_FIRST_KEYS = "layerbeam.first_keys"
# Distinct keys that decide where ranges end. Each of 500 ranges gets 65 of them: its size is right within some 12 %.
SAMPLED_KEYS = 1 << 15
_HASH_BYTES = 8
# Parts read in advance: stores answer slowly.
_PARTS_AHEAD = 4
_ROWS_AT_ONCE = 1024

_NULL, _NAN = (0, 0), (1, 0)

Float64Array = npt.NDArray[np.float64]
# The values of `group_by` and the form, each as a pair, so that null comes first, then NaN, then the others.
Key = tuple[tuple[int, Any], ...]
# Hashes and keys, ascending: of the distinct keys those with the smallest hashes.
Sample = list[tuple[int, Key]]
# The first key, and the first that is not in the range; None: there is no such key.
KeyRange = tuple[Key, Key | None]


def sums_schema(view: ViewSpec) -> pa.Schema:
    """The columns of a block's part."""
    types = dict(view.key_fields)
    keys = [pa.field(name, FIELD_TYPES[types[name]]) for name in view.group_by]
    type_ = vector_type(np.float64, view.width)
    vectors = [pa.field(name, type_, nullable=False) for name in _sum_columns(view)]
    columns = [pa.field("word", pa.string(), nullable=False), pa.field("count", pa.int64(), nullable=False)]
    return pa.schema([*keys, *columns, *vectors])


def sum_words(view: ViewSpec, tokens: TokenBlock, vectors: Sequence[Float32Array]) -> pa.Table:
    """The sums over a block's words, one row per form (and kept fields), in the order of their keys."""
    rows = tokens.rows[view.name]
    words = rows.words
    assert words is not None  # noqa: S101 - for mypy
    forms = words.forms.take(pa.array(words.form)).to_pylist()
    kept = [tokens.text.column_of_rows(name, rows.text, words.word_index).to_pylist() for name in view.group_by]
    keys = _keys([*kept, forms])
    distinct = sorted(set(keys))
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


def row_groups(view: ViewSpec, sums: pa.Table) -> list[pa.Table]:
    """The row groups of a block's part; their metadata has the first key of each."""
    rows = max(ROW_GROUP_BYTES // _row_bytes(view), MIN_GROUP_ROWS)
    begins = range(0, sums.num_rows, rows)
    first_keys = _table_keys(view, sums.select(_key_names(view)).take(pa.array(begins)))
    sums = sums.replace_schema_metadata({_FIRST_KEYS: json.dumps(first_keys)})
    return [sums.slice(begin, rows) for begin in begins]


def sample_keys(view: ViewSpec, paths: Iterable[str]) -> Sample:
    """A sample of the distinct keys in these parts."""
    found: set[tuple[int, Key]] = set()
    for path in paths:
        with storage.open_arrow(path) as file:
            table = pq.ParquetFile(file).read(columns=_key_names(view))
        found.update((_hash(key), key) for key in _table_keys(view, table))
    return merge_samples([found])


def merge_samples(samples: Iterable[Iterable[tuple[int, Key]]]) -> Sample:
    """The sample of all keys from samples of some of them, in any order and grouping."""
    return heapq.nsmallest(SAMPLED_KEYS, set(itertools.chain.from_iterable(samples)))


def key_ranges(view: ViewSpec, sample: Sample) -> list[KeyRange]:
    """Ranges of keys whose sums fit in memory, at least one; together they hold every key."""
    distinct = len(sample)
    if distinct == SAMPLED_KEYS:  # hashes are evenly spread: so many keys have hashes up to the largest
        distinct = distinct * (1 << 8 * _HASH_BYTES) // sample[-1][0]
    keys = sorted(key for _, key in sample)
    count = max(min(-(-distinct // _keys_in_range(view)), len(keys)), 1)
    begins = [(), *(keys[number * len(keys) // count] for number in range(1, count))]
    return list(zip(begins, [*begins[1:], None], strict=True))


def make_word_types(view: ViewSpec, paths: Iterable[str], range_: KeyRange) -> pa.Table:
    """The rows of the table with keys in this range, from the parts of all blocks, in their order."""
    number: dict[Key, int] = {}
    # Memory that is not written is not used.
    capacity = 2 * _keys_in_range(view)
    counts = np.zeros(capacity, np.int64)
    sums = {name: np.zeros((capacity, view.width)) for name in _sum_columns(view)}
    for keys, table in _read_ahead(view, paths, range_):
        rows = np.array([number.setdefault(key, len(number)) for key in keys], np.int64)
        while len(number) > len(counts):
            counts = np.concatenate([counts, np.zeros_like(counts)])
            sums = {name: np.concatenate([total, np.zeros_like(total)]) for name, total in sums.items()}
        counts[rows] += table["count"].to_numpy()
        for name, total in sums.items():
            total[rows] += as_matrix(table[name].combine_chunks())
    kept = sorted(key for key, row in number.items() if counts[row] >= view.min_count)
    return _finish(view, kept, np.array([number[key] for key in kept], np.int64), counts, sums)


def _finish(
    view: ViewSpec, keys: list[Key], rows: Int64Array, counts: Int64Array, sums: dict[str, Float64Array]
) -> pa.Table:
    """Means and standard deviations (of the population: over n) of these rows of the sums, in alternate columns."""
    columns = _key_columns(view, keys, counts[rows])
    number_type = NUMBER_TYPES[view.dtype]
    for name in view.vector_columns:
        means, deviations = (np.empty((len(rows), view.width), number_type.input_type) for _ in range(2))
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[begin : begin + _ROWS_AT_ONCE]
            divisor = counts[some][:, None]
            mean = sums[f"{name}{_SUM}"][some] / divisor
            variance = np.maximum(sums[f"{name}{_SQUARES}"][some] / divisor - mean**2, 0)
            means[begin : begin + len(some)] = mean
            deviations[begin : begin + len(some)] = np.sqrt(variance)
        columns |= number_type.store(name, means) | number_type.store(f"{name}_std", deviations)
    return pa.Table.from_pydict(columns, schema(view))


def _read_ahead(view: ViewSpec, paths: Iterable[str], range_: KeyRange) -> Iterator[tuple[list[Key], pa.Table]]:
    """What each part has of a range, in their order."""
    pending: collections.deque[concurrent.futures.Future[tuple[list[Key], pa.Table]]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(_PARTS_AHEAD) as threads:
        for path in paths:
            pending.append(threads.submit(_read_range, view, path, range_))
            if len(pending) > _PARTS_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _read_range(view: ViewSpec, path: str, range_: KeyRange) -> tuple[list[Key], pa.Table]:
    """(keys, sums) of the rows of a block's part with keys in this range."""
    with storage.open_arrow(path) as file:
        parquet = pq.ParquetFile(file)
        table = parquet.read_row_groups(_groups_of_range(parquet, range_))
    keys = _table_keys(view, table)
    begin, end = _bounds(keys, range_)
    return keys[begin:end], table.slice(begin, end - begin)


def _groups_of_range(parquet: pq.ParquetFile, range_: KeyRange) -> list[int]:
    """The row groups of a part that can hold keys of this range."""
    written = json.loads(parquet.metadata.metadata[_FIRST_KEYS.encode()])
    first_keys = [tuple(map(tuple, key)) for key in written]
    begin, end = _bounds(first_keys, range_)
    return list(range(max(begin - 1, 0), end))


def _bounds(keys: list[Key], range_: KeyRange) -> tuple[int, int]:
    """Index of the first of these ascending keys in the range, and of the first after it."""
    first, after = range_
    return bisect.bisect_left(keys, first), len(keys) if after is None else bisect.bisect_left(keys, after)


def _sum_columns(view: ViewSpec) -> list[str]:
    return [f"{name}{suffix}" for name in view.vector_columns for suffix in (_SUM, _SQUARES)]


def _row_bytes(view: ViewSpec) -> int:
    """The size of the sums of one key."""
    return len(_sum_columns(view)) * view.width * 8


def _keys_in_range(view: ViewSpec) -> int:
    return max(RANGE_BYTES // (_row_bytes(view) + _KEY_BYTES), 1)


def _key_names(view: ViewSpec) -> list[str]:
    return [*view.group_by, "word"]


def _key_columns(view: ViewSpec, keys: list[Key], counts: Int64Array) -> dict[str, Any]:
    """The columns of these keys and of their counts."""
    special = {_NULL: None, _NAN: float("nan")}
    return {
        name: [special[key[index]] if key[index] in special else key[index][1] for key in keys]
        for index, name in enumerate(_key_names(view))
    } | {"count": counts}


def _table_keys(view: ViewSpec, table: pa.Table) -> list[Key]:
    return _keys([table[name].to_pylist() for name in _key_names(view)])


def _keys(columns: Sequence[list[Any]]) -> list[Key]:
    """The key of each row. Keys with NaN are equal."""
    marked = [[_NULL if v is None else _NAN if v != v else (2, v) for v in column] for column in columns]
    return list(zip(*marked, strict=True))


def _hash(key: Key) -> int:
    return int.from_bytes(hashlib.blake2b(json.dumps(key).encode(), digest_size=_HASH_BYTES).digest(), "big")
