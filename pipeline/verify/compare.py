"""How `layerbeam verify` compares: vectors within a tolerance, all other columns exactly."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.pipeline.console import count_noun
from layerbeam.transforms.parts import PART_FORMATS
from layerbeam.transforms.views.number_types import NUMBER_TYPES
from layerbeam.transforms.views.view import ViewSpec

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """A value x may be off by `absolute + relative * |x| + of_largest * m`; m: the largest |x| of its vector."""

    absolute: float
    relative: float
    of_largest: float = 0.0

    def allows(self, found: Array, expected: Array) -> npt.NDArray[np.bool_]:
        """[n]: whether each row of [n, W] is near enough to the expected row."""
        sizes = np.abs(expected)
        largest = sizes.max(axis=1, keepdims=True, initial=0)
        near = np.abs(found - expected) <= self.absolute + self.relative * sizes + self.of_largest * largest
        return np.asarray(near.all(axis=1))

    def __str__(self) -> str:
        largest = f" + {self.of_largest:.4f} of the vector's largest" if self.of_largest else ""
        return f"{self.absolute:.2e}".replace(".00", "") + f" + {self.relative:.0e} |x|{largest}"


@dataclasses.dataclass(frozen=True)
class DirectionTolerance:
    """A vector's cosine with the expected one is at least `cosine`; its length may be off by the share `length`."""

    cosine: float
    length: float
    products: str

    def allows(self, found: Array, expected: Array) -> npt.NDArray[np.bool_]:
        """[n]: whether each row of [n, W] is near enough to the expected row."""
        lengths, wanted = np.linalg.norm(found, axis=1), np.linalg.norm(expected, axis=1)
        near = (np.abs(lengths - wanted) <= self.length * wanted) & (cosines(found, expected) >= self.cosine)
        return np.asarray(near)

    def __str__(self) -> str:
        lengths = f"{1 - self.length:g} to {1 + self.length:g}"
        return f"cosine {self.cosine:g} and length {lengths} after products of {self.products},"


def cosines(found: Array, expected: Array) -> Array:
    """[n]: the cosine of each row of [n, W] with the same row of the other; 1 if one of them is zero."""
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return np.asarray(np.where(norms == 0, 1, (found * expected).sum(axis=1) / np.where(norms == 0, 1, norms)))


def tolerance_of(view: ViewSpec, compute_dtype: str) -> Tolerance | DirectionTolerance:
    """How far the vectors in a view's files may be off.

    float32 is summed in another order (3e-6 in BERT-base, see docs/encoders.md), and the number type rounds. Products
    of bfloat16, which keeps 8 bits, turn every value a little: 0.9999 in MiniLM and BERT-base's size, 12 blocks. Those
    of int8 are exact, but of codes: an input between two codes may get the other one.
    """
    if compute_dtype != "float32":
        return DirectionTolerance(0.998, 0.02, compute_dtype)
    number_type = NUMBER_TYPES[view.dtype]
    return Tolerance(1e-4 + PART_FORMATS[view.format].rounding, number_type.relative, number_type.of_largest)


@dataclasses.dataclass
class ColumnComparison:
    """One vector column of a view: how far it is off, and where by more than the tolerance."""

    view: str
    column: str
    dtype: str
    format: str
    tolerance: Tolerance | DirectionTolerance
    rows: int = 0
    max_difference: float = 0.0
    min_cosine: float = 1.0
    min_float32_cosine: float | None = None
    mean_float32_cosine: float | None = None
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, found: Array, expected: Array, place: str) -> None:
        """Compare the rows of one text, [n, W] each."""
        found, expected = found.astype(np.float64), expected.astype(np.float64)
        off = np.abs(found - expected)
        self.rows += len(found)
        # max and min of NaN are NaN, which does not pass.
        self.max_difference = float(np.max([self.max_difference, off.max(initial=0)]))
        self.min_cosine = float(np.min([self.min_cosine, cosines(found, expected).min(initial=1)]))
        wrong = np.flatnonzero(~self.tolerance.allows(found, expected))
        if len(wrong):
            self.failures.append(f"{place}, row {wrong[0]} of the text: off by {off[wrong[0]].max():.3g}")

    def add_float32(self, found: Array, exact: Array) -> None:
        """Note how near the rows that were added last, [n, W], are to what products in float32 give."""
        near = cosines(found.astype(np.float64), exact.astype(np.float64))
        before = (self.mean_float32_cosine or 0) * (self.rows - len(near))
        self.mean_float32_cosine = float(before + near.sum()) / self.rows
        smallest = near.min() if self.min_float32_cosine is None else min(self.min_float32_cosine, near.min())
        self.min_float32_cosine = float(smallest)


_PREDICATES = {
    "unordered": "are not in the order of their lines",
    "missing": "are missing",
    "unexpected": "belong to no text",
    "duplicate": "are duplicates",
    "miscounted": "are too many or too few",
    "unequal": "have other values in",
}


@dataclasses.dataclass(frozen=True)
class RowDifference:
    """A way in which the rows of some records differ from the expected ones; `columns`: those that are unequal."""

    kind: str
    columns: tuple[str, ...]
    lines: Sequence[int]

    def __str__(self) -> str:
        records = count_noun(len(self.lines), "record")
        columns = f" {', '.join(self.columns)}" if self.columns else ""
        return f"rows of {records} {_PREDICATES[self.kind]}{columns} (the first at line {self.lines[0]})"


def compare_rows(expected: pa.Table, found: pa.Table) -> list[RowDifference]:
    """The differences between the rows of a part and the expected ones, in the columns that both have."""
    names = [name for name in expected.column_names if name in found.column_names]
    if all(expected[name].equals(found[name]) for name in names):
        return []
    wanted_rows, found_rows = _rows_by_line(expected.select(names)), _rows_by_line(found.select(names))
    lines: dict[tuple[str, tuple[str, ...]], list[int]] = collections.defaultdict(list)
    if list(found_rows) != sorted(found_rows):
        lines["unordered", ()].append(next(iter(found_rows)))
    for line in sorted(wanted_rows.keys() | found_rows.keys()):
        wanted, rows = wanted_rows.get(line, []), found_rows.get(line, [])
        if repr(rows) != repr(wanted):  # unlike ==, NaN equals itself
            lines[_kind(wanted, rows)].append(line)
    return [RowDifference(kind, columns, numbers) for (kind, columns), numbers in lines.items()]


def _kind(wanted: list[dict[str, Any]], rows: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """How the rows of one record differ, and in which columns."""
    if not rows:
        return "missing", ()
    if not wanted:
        return "unexpected", ()
    if len(rows) > len(wanted) and {repr(row) for row in rows} == {repr(row) for row in wanted}:
        return "duplicate", ()
    if len(rows) != len(wanted):
        return "miscounted", ()
    pairs = list(zip(rows, wanted, strict=True))
    return "unequal", tuple(name for name in wanted[0] if any(repr(a[name]) != repr(b[name]) for a, b in pairs))


def _rows_by_line(table: pa.Table) -> dict[int, list[dict[str, Any]]]:
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        rows.setdefault(-1 if row["line"] is None else row["line"], []).append(row)
    return rows
