"""How `verify` compares rows and vectors."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from layerbeam.pipeline.verify.compare import (
    ColumnComparison,
    DirectionTolerance,
    RowDifference,
    Tolerance,
    compare_rows,
)
from layerbeam.transforms.parts import PART_FORMATS

LINES, TOKENS = [0, 0, 1, 2], ["a", "b", "c", "d"]


def rows(lines: list[int], tokens: list[str]) -> pa.Table:
    return pa.table({"line": lines, "token": tokens})


@pytest.mark.parametrize(
    ("found", "difference", "message"),
    [
        (rows(LINES[:3], TOKENS[:3]), RowDifference("missing", (), [2]), "rows of 1 record are missing (the "),
        (
            rows([*LINES, 5, 6], [*TOKENS, "e", "f"]),
            RowDifference("unexpected", (), [5, 6]),
            "rows of 2 records belong",
        ),
        (rows([0, *LINES], ["a", *TOKENS]), RowDifference("duplicate", (), [0]), "rows of 1 record are duplicates ("),
        (rows(LINES[1:], TOKENS[1:]), RowDifference("miscounted", (), [0]), "rows of 1 record are too many or too few"),
        (rows(LINES, ["a", "b", "c", "x"]), RowDifference("unequal", ("token",), [2]), "have other values in token ("),
        (rows([0, 0, 2, 1], ["a", "b", "d", "c"]), RowDifference("unordered", (), [0]), "not in the order of their"),
    ],
)
def test_each_kind_of_difference(found, difference, message):
    assert compare_rows(rows(LINES, TOKENS), found) == [difference]
    assert message in str(difference)


def test_equal_rows():
    table = pa.table({"line": [0, 1], "x": [math.nan, 0.5]})
    assert compare_rows(table, table) == []
    assert compare_rows(table, table.select(["line"])) == [], "only the columns of both"


def test_the_precision_of_file_formats():
    column = pa.chunked_array([[0.1, math.inf]])
    assert PART_FORMATS["parquet"].as_stored(column) is column
    assert PART_FORMATS["tfrecord"].as_stored(column).to_pylist() == [float(np.float32(0.1)), math.inf]
    assert PART_FORMATS["jsonl"].as_stored(column).to_pylist() == [0.1, None]


def test_the_largest_difference_and_its_row():
    comparison = ColumnComparison("t", "layer_1", "float32", "parquet", Tolerance(0.1, 0))
    comparison.add(np.array([[1.0, 0.0], [1.0, 0.25]]), np.array([[1.0, 0.0], [1.0, 0.0]]), "a.txt line 3")
    assert (comparison.rows, comparison.max_difference) == (2, 0.25)
    assert comparison.failures == ["a.txt line 3, row 1 of the text: off by 0.25"]


def test_too_small_is_as_wrong_as_too_large():
    found = np.array([[0.05], [0.2], [-0.05], [-0.2]])
    assert Tolerance(0.1, 0).allows(found, np.zeros((4, 1))).tolist() == [True, False, True, False]


def test_a_direction_may_differ_in_length():
    tolerance = DirectionTolerance(cosine=0.99, length=0.1, products="bfloat16")
    expected = np.array([[1.0, 0.0]] * 3)
    assert tolerance.allows(np.array([[1.05, 0.0], [1.2, 0.0], [0.8, 0.6]]), expected).tolist() == [True, False, False]
