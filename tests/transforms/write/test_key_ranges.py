"""The table of word types, made of blocks' sums range after range of keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.write import write_part
from layerbeam.transforms.views.number_types import vector_array
from layerbeam.transforms.views.view import ViewSpec
from layerbeam.transforms.write import word_types

NAN = float("nan")
YEARS = [None, NAN, -1.5, float("inf")]
SETTINGS = {"group_by": ["year"], "fields": (("year", "float64"), ("page", "int64")), "min_count": 3}
VIEW = ViewSpec(name="types", level="word_type", layers=(1,), hidden_size=2, **SETTINGS)
SUMS = ("layer_1_sum", "layer_1_squares")


def block_sums(seed: int) -> pa.Table:
    """Some of 100 words in some of the years, in the order null, NaN, others; sums that are exact in any order."""
    random = np.random.default_rng(seed)
    keys = [(year, f"w{word:02}") for year in YEARS for word in range(100) if random.random() < 0.3]
    columns = {
        "year": [year for year, _ in keys],
        "word": [word for _, word in keys],
        "count": random.integers(1, 3, len(keys)),
    }
    columns |= {name: vector_array(random.integers(0, 99, (len(keys), 2)).astype(np.float64)) for name in SUMS}
    return pa.Table.from_pydict(columns, word_types.sums_schema(VIEW))


BLOCKS = [block_sums(seed) for seed in range(7)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of 3 keys, and ranges of 25."""
    monkeypatch.setattr(word_types, "ROW_GROUP_BYTES", 3 * 32)
    monkeypatch.setattr(word_types, "MIN_GROUP_ROWS", 1)
    monkeypatch.setattr(word_types, "RANGE_BYTES", 25 * (32 + 256))


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    output = Output(str(tmp_path), "f")
    return [
        str(tmp_path / write_part(output, VIEW, f"a-{n}", *word_types.row_groups(VIEW, table)).path)
        for n, table in enumerate(BLOCKS)
    ]


def plain_table() -> list[tuple[str, str, int, list[float], list[float]]]:
    """(year, word, count, means, deviations) of all blocks, added up in a dictionary."""
    totals: dict[tuple[int, str], list[np.ndarray]] = {}
    for row in pa.concat_tables(BLOCKS).to_pylist():
        key = ([str(year) for year in YEARS].index(str(row["year"])), row["word"])
        added = totals.setdefault(key, [np.zeros(2) for _ in range(3)])
        for total, value in zip(added, (row["count"], *(row[name] for name in SUMS)), strict=True):
            total += value
    rows = []
    for (year, word), (n, s, q) in sorted(totals.items()):
        vectors = s / n, np.sqrt(np.maximum(q / n - (s / n) ** 2, 0))
        if n[0] >= 3:
            rows.append((str(YEARS[year]), word, int(n[0]), *(v.astype(np.float32).tolist() for v in vectors)))
    return rows


def test_ranges_make_the_table_of_a_dictionary(paths):
    sample = word_types.sample_keys(VIEW, paths)
    ranges = word_types.key_ranges(VIEW, sample)
    tables = [word_types.make_word_types(VIEW, paths, range_) for range_ in ranges]
    distinct = len({(str(row["year"]), row["word"]) for block in BLOCKS for row in block.to_pylist()})
    assert len(ranges) == -(-distinct // 25) > 10
    assert [
        (str(row["year"]), row["word"], row["count"], row["layer_1"], row["layer_1_std"])
        for row in pa.concat_tables(tables).to_pylist()
    ] == plain_table()


def test_sample_does_not_depend_on_the_order_of_parts(paths, monkeypatch):
    monkeypatch.setattr(word_types, "SAMPLED_KEYS", 40)
    whole = word_types.sample_keys(VIEW, paths)
    assert len(whole) == 40
    pieces = [word_types.sample_keys(VIEW, [path]) for path in reversed(paths)]
    assert word_types.merge_samples([word_types.merge_samples(pieces[:3]), *pieces[3:]]) == whole
    # The estimate of the distinct keys decides the number of ranges; together they hold each key once.
    ranges = word_types.key_ranges(VIEW, whole)
    assert 10 <= len(ranges) <= 22
    tables = [word_types.make_word_types(VIEW, paths, range_) for range_ in ranges]
    assert pa.concat_tables(tables).num_rows == len(plain_table())


def test_a_range_reads_few_row_groups(paths):
    ranges = word_types.key_ranges(VIEW, word_types.sample_keys(VIEW, paths))
    parquet = pq.ParquetFile(paths[0])
    read = [word_types._groups_of_range(parquet, range_) for range_ in ranges]
    assert parquet.num_row_groups == 35
    assert {group for groups in read for group in groups} == set(range(parquet.num_row_groups))
    assert max(map(len, read)) <= 7


def test_no_parts_make_an_empty_table():
    (range_,) = word_types.key_ranges(VIEW, word_types.merge_samples([]))
    table = word_types.make_word_types(VIEW, [], range_)
    assert (table.num_rows, table.column_names) == (0, ["year", "word", "count", "layer_1", "layer_1_std"])
