"""The rows of a view nearest to given vectors: exact, with one part per thread in memory.

All vectors are compared in float32. Those that may be among the best, within the error of that, are compared again in
float64, one by one: so the result depends on no order of summation, number of threads, or division into parts.

Shapes: Q queries, n rows, W values in a vector.
"""

from __future__ import annotations

import concurrent.futures
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.dataset.view import FILES_AT_ONCE, View
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import Part
from layerbeam.transforms.hardware import cores
from layerbeam.transforms.views.number_types import as_matrix, code_names, elements, scale_of, vector_names, zero_rows

if TYPE_CHECKING:
    import pyarrow.dataset as ds

Metric: TypeAlias = Literal["cosine", "dot", "l2"]
Array: TypeAlias = npt.NDArray[Any]
METRICS = get_args(Metric)
# The columns that the result has in addition to the view's.
OWN_COLUMNS = ("query", "score")
# Values of vectors, and products, that a thread has in memory at a time, in addition to its part.
_VALUES = 1 << 21
_ROUNDING = 2.0**-24
# Norms whose squares are outside lose digits in float32.
_SMALLEST, _LARGEST = 1e-30, 1e37


def find_nearest(
    view: View,
    queries: npt.ArrayLike,
    k: int,
    *,
    column: str,
    metric: Metric,
    where: pc.Expression | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    """See `View.nearest`. `column`: that of the vectors. `columns` None: those that the files hold, without vectors."""
    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; allowed: {', '.join(METRICS)}")
    if k < 1:
        raise ValueError(f"k is {k}; allowed: 1 or more")
    best = _Best(_checked(queries, view.width), k, metric)
    for name in OWN_COLUMNS:
        if name in (view.schema.names if columns is None else columns):
            raise ValueError(f"columns: the result has a column {name} of its own; name the other columns of the view")
    if where is not None:
        check_where(view, where)
    stored = view.stored
    names = [column, scale_of(column)] if column in code_names(stored.schema) else [column]
    firsts = np.zeros(len(view.parts) + 1, np.int64)

    def compare(number: int, part: Part) -> None:
        rows = None if where is None else _rows_where(view, part, where)
        if rows is None or len(rows):
            vectors, *scales = stored.read(part, names, rows).columns
            if rows is None:
                view.check_rows(part, len(vectors))
            if getattr(elements(vectors).type, "list_size", 0) != view.width:
                path = storage.join(view.path, part.path)
                raise ValueError(f"{path}: {column} is of type {vectors.type}, not of {view.width:,} numbers")
            numbers = firsts[number] + (np.arange(part.rows) if rows is None else rows)
            best.add(numbers, as_matrix(vectors), scales[0].to_numpy() if scales else None)

    def read(number: int) -> pa.Table:
        first, end = np.searchsorted(distinct, firsts[number : number + 2])
        return _read(view, view.parts[number], columns, distinct[first:end] - firsts[number])

    threads = cores() if storage.is_local(view.path) else max(cores(), FILES_AT_ONCE)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for batch in storage.in_batches(enumerate(view.parts)):
            for number, part in batch:
                firsts[number + 1] = firsts[number] + part.rows
            list(pool.map(compare, *zip(*batch, strict=True)))
        rows = np.concatenate([np.zeros(0, np.int64), *best.rows])
        distinct = np.unique(rows)
        numbers = np.unique(np.searchsorted(firsts, distinct, side="right") - 1).tolist()
        tables = list(pool.map(read, numbers)) or [_without_rows(view, columns)]
    found = pa.concat_tables(tables).take(pa.array(np.searchsorted(distinct, rows)))
    query = np.repeat(np.arange(len(best.rows)), np.array([len(of_query) for of_query in best.rows], np.int64))
    own = (pa.array(query), pa.array(best.final_scores()))
    return pa.table({"query": own[0], **dict(zip(found.column_names, found.columns, strict=True)), "score": own[1]})


def _checked(queries: npt.ArrayLike, width: int) -> Array:
    """[Q, W] in float64. ValueError for another shape, and for values that float32 does not have."""
    given = np.asarray(queries)
    if given.ndim not in (1, 2) or given.shape[-1] != width or given.dtype.kind not in "fiu":
        raise ValueError(f"vectors are {given.dtype} {list(given.shape)}; give numbers, [{width}] or [n, {width}]")
    with np.errstate(over="ignore"):
        if not np.isfinite(given.astype(np.float32)).all():
            raise ValueError("vectors have values that are not finite in float32")
    return np.atleast_2d(given).astype(np.float64)


def check_where(view: View, where: pc.Expression) -> None:
    """ValueError for an expression of other columns than the view's, or that is neither true nor false."""
    if not isinstance(where, pc.Expression):
        raise TypeError(f'where is {where!r:.40}; give an expression: pyarrow.compute.field("word") == "bank"')
    try:
        _rows(view.empty(view.other_columns), where)
    except (pa.ArrowException, NotImplementedError) as error:  # an unknown column, or types that cannot be compared
        unknown = re.match(r"No match for FieldRef\.Name\((.*)\) in ", str(error))
        why = f"{unknown[1]} is no column" if unknown else str(error).partition("\n")[0]
        raise ValueError(f"where: {why}; view {view.name} has {', '.join(view.other_columns)}") from error


def _rows_where(view: View, part: Part, where: pc.Expression) -> Array:
    """The numbers of the rows of a part for which this is true. Of Parquet only the columns in it are read."""
    if not view.file_format.is_columnar:
        return _rows(view.read(part), where)
    with view.open(part) as file:
        return _rows(view.fragment(part, file), where, **({"schema": view.schema} if view.in_folders else {}))


def _rows(rows: pa.Table | ds.Fragment, where: pc.Expression, **given: Any) -> Array:
    """The numbers of the rows of a table, or of a Parquet file, for which this is true. `given`: to read it with."""
    import pyarrow.dataset as ds  # 0.2 s

    source = ds.dataset(rows) if isinstance(rows, pa.Table) else rows
    keep = source.to_table(columns={"keep": where}, use_threads=False, **given)["keep"]
    if not pa.types.is_boolean(keep.type):
        raise pa.ArrowTypeError(f"is of type {keep.type}; give a comparison")
    return np.flatnonzero(pc.fill_null(keep, False).to_numpy())


def _read(view: View, part: Part, columns: Sequence[str] | None, rows: Array) -> pa.Table:
    if columns is not None:
        return view.read(part, columns, rows)
    names = _without_rows(view, columns).column_names if view.file_format.is_columnar else None
    found = view.read(part, names, rows)
    return found.drop_columns(vector_names(found.schema))


def _without_rows(view: View, columns: Sequence[str] | None) -> pa.Table:
    vectors = vector_names(view.schema)
    return view.empty([name for name in view.schema.names if name not in vectors] if columns is None else columns)


class _Best:
    """The best rows of each query among those that were added: the highest scores; of equal ones the first rows.

    `rows`: for each query their numbers, best first. Scores are cosines, products, or for `l2` the negative squares of
    distances. Rows of zeros are left out. With a query of zeros the cosine is 0, and NaN is the worst score.
    Thread-safe.
    """

    def __init__(self, queries: Array, k: int, metric: Metric) -> None:
        self.rows = [np.zeros(0, np.int64) for _ in queries]
        self._scores = [np.zeros(0) for _ in queries]
        self._k, self._metric = k, metric
        self._lock = threading.Lock()
        norms = np.linalg.norm(queries, axis=1)
        lengths = np.where(norms == 0, 1, norms)
        self._queries = queries / lengths[:, None] if metric == "cosine" else queries
        # Products are estimated for queries of length 1, whose values are neither too large nor too small for float32.
        self._unit = lengths if metric == "dot" else np.ones(len(queries))
        self._estimated = (self._queries / self._unit[:, None]).astype(np.float32)
        self._norms = norms.astype(np.float32)
        self._error = np.float32((2 * queries.shape[1] + 16) * _ROUNDING)
        # No row with a lower estimate is among the best; in float32, as the estimates are.
        self._bounds = np.full(len(queries), -np.inf, np.float32)

    def add(self, rows: Array, vectors: Array, scales: Array | None) -> None:
        """Rows with these numbers [n], and vectors [n, W], times `scales` [n] if they are codes."""
        size = max(_VALUES // max(vectors.shape[1], len(self.rows), 1), 1)
        for first in range(0, len(rows), size):
            some = slice(first, first + size)
            with np.errstate(all="ignore"):
                self._add(rows[some], vectors[some], None if scales is None else scales[some])

    def _add(self, rows: Array, vectors: Array, scales: Array | None) -> None:
        estimates, errors = self._estimate(vectors.astype(np.float32, copy=False), scales)
        for query, estimate in enumerate(estimates):
            upper = estimate + errors
            # "Not less" is true of NaN, too: where float32 does not suffice.
            candidates = np.flatnonzero(~(upper < self._bounds[query]) & ~zero_rows(vectors))
            if len(candidates) > 2 * self._k:
                lower = np.partition((estimate - errors)[candidates], -self._k)[-self._k]
                candidates = candidates[~(upper[candidates] < lower)]
            if len(candidates):
                scores = self._score(query, vectors[candidates], None if scales is None else scales[candidates])
                self._merge(query, rows[candidates], scores)

    def _estimate(self, vectors: Array, scales: Array | None) -> tuple[Array, Array]:
        """(scores [Q, n], divided by `_unit`; how far each row's may be off [n]), in float32.

        A product of W terms in any order of summation is off by at most W roundings of the product of the norms.
        """
        products = self._estimated @ vectors.T
        squares = np.einsum("ij,ij->i", vectors, vectors)
        if scales is not None:
            products *= scales
            squares *= scales * scales
        certain = (squares > _SMALLEST) & (squares < _LARGEST)
        norms = np.sqrt(np.where(certain, squares, np.float32(1)))
        if self._metric == "cosine":
            products /= norms
            errors = np.full(len(norms), self._error)
        elif self._metric == "dot":
            errors = self._error * norms
        else:
            products = 2 * products - squares - self._norms[:, None] ** 2
            errors = self._error * (norms + self._norms.max(initial=0)) ** 2
        return products, np.where(certain, errors, np.float32(np.inf))

    def _score(self, query: int, vectors: Array, scales: Array | None) -> Array:
        """[n] in float64; the sum of each row is the same in all matrices."""
        values, given = vectors.astype(np.float64), self._queries[query]
        if scales is not None:
            values *= scales[:, None]
        terms = -((values - given) ** 2) if self._metric == "l2" else values * given
        scores = terms.sum(axis=1)
        if self._metric == "cosine":
            norms = np.sqrt((values**2).sum(axis=1))
            scores = np.clip(np.where(norms == 0, 0, scores / norms), -1, 1)
        return np.asarray(np.where(np.isnan(scores), -np.inf, scores))

    def _merge(self, query: int, rows: Array, scores: Array) -> None:
        with self._lock:
            rows, scores = np.append(self.rows[query], rows), np.append(self._scores[query], scores)
            order = np.lexsort((rows, -scores))[: self._k]
            self.rows[query], self._scores[query] = rows[order], scores[order]
            if len(order) == self._k:
                self._bounds[query] = scores[order[-1]] / self._unit[query]

    def final_scores(self) -> Array:
        """The scores of `rows`, one query after the other; for `l2` the distances."""
        scores = np.concatenate([np.zeros(0), *self._scores])
        return np.sqrt(-scores) if self._metric == "l2" else scores
