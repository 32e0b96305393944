from __future__ import annotations

import datetime
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from corpora import UNLIMITED, read_file, texts_of

from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Slice, TextBlock
from layerbeam.transforms.flow.commits import Commit, InputFile
from layerbeam.transforms.input import parquet
from layerbeam.transforms.input.parquet import ParquetInput, find_pieces
from layerbeam.transforms.read.block import read_block
from layerbeam.transforms.settings import BlockLimits, RecordFormat

MANY = BlockLimits(300, 1 << 30, 1 << 30, 128)


@pytest.fixture
def write(tmp_path: Path):
    def write(columns: dict | pa.Table, name: str = "corpus.parquet", **options) -> Path:
        path = tmp_path / name
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
        return path

    return write


def read(path: Path, limits: BlockLimits = UNLIMITED, **record_format) -> list:
    return read_file(path, limits, format="parquet", **record_format)


def numbered(count: int) -> dict:
    return {"text": [f"text number {number}" for number in range(count)], "noise": list(range(count))}


def left_out(items: list) -> str:
    (item,) = items
    assert isinstance(item, InputFile)
    return item.problem


def test_rows_with_their_numbers(write):
    path = write({"text": ["one", None, "", " ", "five"]})
    (block,) = read(path)
    assert texts_of([block]) == [(0, "one"), (4, "five")]
    assert (block.counts[metrics.RECORDS], block.counts[metrics.BLANK], block.counts[metrics.REJECTED]) == (5, 3, 0)
    assert texts_of(read(path, blank="keep")) == [(0, "one"), (2, ""), (3, " "), (4, "five")]


@pytest.mark.parametrize("slice_bytes", [1, 2_000, 1 << 20])
@pytest.mark.parametrize("group", [7, 100, 500])
def test_row_groups_slices_and_blocks(write, group, slice_bytes):
    path = write(numbered(500), row_group_size=group)
    blocks = read(path, MANY, slice_bytes=slice_bytes)
    assert texts_of(blocks) == [(number, f"text number {number}") for number in range(500)]
    assert len(blocks) >= 20
    position = row = 0
    for block in blocks:
        assert (block.files[0].first_line, block.files[0].first_byte) == (row, position)
        row, position = row + block.files[0].num_lines, block.files[0].end_byte
        assert read_block(block.files, RecordFormat(format="parquet")).texts.equals(block.texts)
    assert 0.5 * os.path.getsize(path) < position <= os.path.getsize(path)


def test_slices_are_row_groups_of_about_the_size(write):
    """Of the size of what is read, however small the stored bytes are."""
    path = write(numbered(1000), row_group_size=100)
    (file,) = storage.find_files([str(path)])
    record_format = RecordFormat(format="parquet")
    each = list(find_pieces(file, 1, record_format))
    assert [rows for *_, rows in each] == [100] * 10
    assert [start for start, *_ in each][1:] == [end for _, end, _ in each][:-1]
    groups = map(pq.read_metadata(path).row_group, range(10))
    size = max(group.column(0).total_uncompressed_size for group in groups)
    assert size > 1.2 * max(end - start for start, end, _ in each)
    assert [rows for *_, rows in find_pieces(file, size + 1, record_format)] == [200] * 5
    assert [rows for *_, rows in find_pieces(file, 1 << 30, record_format)] == [1000]


@pytest.mark.parametrize(
    "type_",
    [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_types_that_hold_text(write, type_):
    path = write({"text": pa.array(["a", "ä", None, "a"]).cast(type_)})
    assert texts_of(read(path)) == [(0, "a"), (1, "ä"), (3, "a")]


def test_what_goes_through(write):
    path = write(
        {
            "text": ["a", "b", None, "d"],
            "key": pa.array([1, None, 3, 4], pa.int16()),
            "label": ["x", None, "z", "w"],
            "year": pa.array([1, 2, 3, None], pa.uint8()),
            "score": pa.array([1, 2, 3, None], pa.int32()),
            "gold": [True, None, False, False],
            "none": pa.nulls(4),
            "other": [[1], [2], [3], [4]],
        }
    )
    (block,) = read(
        path,
        id_field="key",
        keep_fields={"label": "string", "year": "int64", "score": "float64", "gold": "bool", "none": "int64"},
    )
    assert {name: column.to_pylist() for name, column in block.fields.items()} == {
        "id": ["1", None, "4"],
        "label": ["x", None, "w"],
        "year": [1, 2, None],
        "score": [1.0, 2.0, None],
        "gold": [True, None, False],
        "none": [None, None, None],
    }
    types = " ".join(str(column.type) for column in block.fields.values())
    assert types == "string string int64 double bool int64"


def test_pairs(write):
    (block,) = read(write({"text": ["a", "b", " "], "b": ["c", None, ""]}), pair_field="b")
    assert (block.texts.to_pylist(), block.pairs.to_pylist()) == (["a", "b"], ["c", None])


@pytest.mark.parametrize(("first", "second"), [("a" * 99, "b"), ("a", "b" * 99), ("a" * 50, "b" * 50)])
def test_both_texts_of_pairs_fill_a_block(write, first, second):
    blocks = read(write({"text": [first] * 20, "b": [second] * 20}), MANY, pair_field="b")
    assert [len(block.texts) for block in blocks] == [3] * 6 + [2]  # 101 bytes each; 300 fill a block


@pytest.mark.parametrize(
    ("columns", "record_format", "reason"),
    [
        ({"body": ["a"], "x": [1]}, {}, "has no column `text`; it has: body, x"),
        ({"text": [1]}, {}, "column `text` is int64, not string"),
        ({"text": [["a"]]}, {}, "column `text` is list<element: string>, not string; set input.words: given"),
        ({"text": ["a"]}, {"pair_field": "b"}, "has no column `b`; it has: text"),
        (
            {"text": ["a"], "id": [True]},
            {"id_field": "id"},
            "column `id` is bool, not string, number, date, time or decimal",
        ),
        ({"text": [datetime.date(2020, 1, 2)]}, {}, "column `text` is date32[day], not string"),
        ({"text": ["a"], "x": ["1"]}, {"keep_fields": {"x": "int64"}}, "column `x` is string, not int64"),
        ({"text": ["a"], "x": [1.5]}, {"keep_fields": {"x": "int64"}}, "column `x` is double, not int64"),
        ({"text": ["a"], "x": [1]}, {"keep_fields": {"x": "bool"}}, "column `x` is int64, not bool"),
        ({"text": ["a"], "x": [1]}, {"keep_fields": {"x": "string"}}, "column `x` is int64, not string"),
    ],
)
def test_files_without_the_columns_are_left_out(write, columns, record_format, reason):
    assert left_out(read(write(columns), **record_format)) == reason


TIME = datetime.datetime(2020, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (1.0, pa.float64(), "1"),
        (-3.0, pa.float32(), "-3"),
        (TIME.date(), pa.date32(), "2020-01-02"),
        (TIME.date(), pa.date64(), "2020-01-02"),
        (TIME, pa.timestamp("s"), "2020-01-02 03:04:05"),
        (TIME, pa.timestamp("ns", "UTC"), "2020-01-02 03:04:05Z"),
        (TIME.replace(microsecond=10), pa.timestamp("us"), "2020-01-02 03:04:05.000010"),
        (TIME.time(), pa.time32("s"), "03:04:05"),
        (Decimal("12.50"), pa.decimal128(9, 2), "12.50"),
        (7, pa.decimal256(40, 0), "7"),
        ("k", pa.dictionary(pa.int8(), pa.string()), "k"),
    ],
)
def test_ids_of_other_types(write, value, type_, expected):
    path = write(pa.table({"text": ["a", "b"], "id": pa.array([value, None], type_)}))
    (block,) = read(path, id_field="id")
    assert block.fields["id"].to_pylist() == [expected, None]
    if not pa.types.is_floating(type_):
        (block,) = read(path, keep_fields={"id": "string"})
        assert block.fields["id"].to_pylist() == [expected, None]


def test_floats_that_are_no_ids(write):
    values = [1.5, float("nan"), float("inf"), 2.0**53, 2.0**53 + 2]
    (block,) = read(write({"text": list("abcde"), "id": values}), id_field="id")
    assert block.fields["id"].to_pylist() == ["9007199254740992"]
    assert [(reject.line, reject.reason) for reject in block.rejected] == [
        (0, "field `id` is a number with a fraction, not an integer"),
        (1, "field `id` is NaN, not an integer"),
        (2, "field `id` is a number above 9,007,199,254,740,992 in float notation, not an integer"),
        (4, "field `id` is a number above 9,007,199,254,740,992 in float notation, not an integer"),
    ]


def test_a_column_that_is_there_twice(write):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    assert left_out(read(write(table))) == "has 2 columns `text`; it has: text, text"


def test_what_is_no_parquet(corpus):
    assert left_out(read(corpus("text\n" * 100))) == "looks like text, not Parquet; set input.format: text"
    assert left_out(read(corpus(""))).startswith("cannot be read as Parquet: ")


def test_damaged_pages_leave_the_blocks_before(write):
    random = np.random.default_rng(0)
    path = write({"text": [random.bytes(50).hex() for _ in range(2000)]}, row_group_size=500, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    path.write_bytes(data)
    *blocks, last = read(path, BlockLimits(1 << 20, 1 << 30, 50, 128))
    assert isinstance(last, InputFile)
    assert "cannot be read as Parquet" in last.problem
    assert len(blocks) > 5


def test_empty_files_and_row_groups(write, tmp_path):
    (nothing,) = read(write({"text": pa.array([], pa.string())}))
    assert (texts_of([nothing]), nothing.files[0].num_lines, nothing.files[0].is_last) == ([], 0, True)
    with pq.ParquetWriter(tmp_path / "groups.parquet", pa.schema([("text", pa.string())])) as writer:
        for texts in (["a"], [], ["b"]):
            writer.write_table(pa.table({"text": pa.array(texts, pa.string())}))
    assert texts_of(read(tmp_path / "groups.parquet", slice_bytes=1)) == [(0, "a"), (1, "b")]


def test_bytes_that_are_no_text(write):
    path = write({"text": pa.array([b"a", b"b\xff"], pa.binary()), "x": pa.array([b"\xfe", b""], pa.binary())})
    (block,) = read(path)
    (reject,) = block.rejected
    assert (reject.line, reject.raw) == (1, b"b\xff")
    assert reject.reason == "field `text`: invalid UTF-8: invalid start byte at byte 1"
    (block,) = read(path, keep_fields={"x": "string"})
    assert [reject.reason for reject in block.rejected] == [
        "field `x`: invalid UTF-8: invalid start byte at byte 0",
        "field `text`: invalid UTF-8: invalid start byte at byte 1",
    ]
    assert texts_of(read(path, invalid_bytes="replace")) == [(0, "a"), (1, "b\ufffd")]


def test_number_that_does_not_fit(write):
    path = write({"text": ["a", "b"], "x": pa.array([1, 1 << 63], pa.uint64())})
    (block,) = read(path, keep_fields={"x": "int64"})
    assert block.fields["x"].to_pylist() == [1]
    assert [reject.reason for reject in block.rejected] == ["field `x` does not fit in int64"]


def test_done_rows_come_as_their_commits(write):
    path = write(numbered(100), compression="none", use_dictionary=False)
    done = read(path, MANY)
    assert len(done) == 6
    os.utime(path, (1, 1))
    assert {type(item) for item in read(path, MANY, done=done)} == {Commit}
    # As long as before, so that all rows have the places that they had.
    changed = numbered(100)
    changed["text"][50] = "text number xx"
    write(changed, compression="none", use_dictionary=False)
    items = read(path, MANY, done=done)
    (block,) = (item for item in items if isinstance(item, TextBlock))
    assert (50, "text number xx") in texts_of([block])
    (before,) = (old.files for old in done if old.files[0].first_line == block.files[0].first_line)
    with pytest.raises(OSError, match="its rows have changed"):
        read_block(before, RecordFormat(format="parquet"))


def test_null_and_empty_are_not_the_same(write):
    (before,) = read(write({"text": ["a"], "x": [""]}), keep_fields={"x": "string"})
    (after,) = read(write({"text": ["a"], "x": pa.array([None], pa.string())}), keep_fields={"x": "string"})
    assert before.files[0].sha256 != after.files[0].sha256


def test_only_needed_columns_decide_whether_a_block_is_done(write):
    table = {"text": ["a", "b"], "other": [1, 2]}
    (before,) = read(write(table))
    (after,) = read(write(table | {"other": [3, 4]}))
    assert before.files[0].sha256 == after.files[0].sha256


@pytest.mark.parametrize("is_dictionary", [True, False])
def test_long_values_in_many_rows_take_bounded_memory(write, is_dictionary, monkeypatch):
    monkeypatch.setattr(parquet, "_REPEATED_BYTES", 16 << 20)
    text = "the bank of the river. " * 4_600  # 108 MB in all rows
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1023 + [1], pa.int32()), [text, "the end"])
    column = (
        column
        if is_dictionary
        else pa.chunked_array([column.slice(i, 256).dictionary_decode() for i in range(0, 1024, 256)])
    )
    path = write({"text": column}, compression="zstd", dictionary_pagesize_limit=10 << 20)
    assert path.stat().st_size < 2_000
    del column
    allocated = pa.total_allocated_bytes()
    (file,) = storage.find_files([str(path)])
    form, rows = RecordFormat(format="parquet"), 0
    limits = BlockLimits(1 << 20, 1 << 20, 1 << 20, 128)
    for block, table in ParquetInput().cut(Slice(file, 0, None, 0), limits, form):
        assert block.first_line == rows
        assert set(pc.binary_length(table["text"].slice(0, 1023 - rows)).to_pylist()) <= {len(text)}
        rows += block.num_lines
        assert pa.total_allocated_bytes() - allocated < 50_000_000
    assert rows == 1024
    assert ParquetInput().read(block, form)["text"].to_pylist()[-2:] == [text.encode(), b"the end"]


def test_fields_of_structs(write):
    rows = [{"meta": {"text": "a", "id": 1.0, "more": {"n": 7}}}, {"meta": None}, {"meta": {"text": None}}]
    path = write(pa.Table.from_pylist(rows))
    how = {"text_field": "meta.text", "id_field": "meta.id", "keep_fields": {"meta.more.n": "int64"}}
    (block,) = read(path, **how)
    assert (block.texts.to_pylist(), block.fields["id"].to_pylist()) == (["a"], ["1"])
    assert block.fields["meta.more.n"].to_pylist() == [7]
    assert block.counts[metrics.BLANK] == 2
    assert left_out(read(path, text_field="meta.body")) == "has no column `meta.body`; it has: meta"
    (block,) = read(write({"meta.text": ["a"], "meta": [{"text": "b"}]}), text_field="meta.text")
    assert block.texts.to_pylist() == ["a"]


def test_texts_of_several_columns(write):
    path = write({"title": ["A", None, "x" * 90], "body": ["b", "c", "y" * 20], "n": [1, 2, 3]})
    how = {"text_field": ["title", "body"], "keep_fields": {"n": "int64"}, "max_record_bytes": 100}
    (block,) = read(path, **how)
    assert (texts_of([block]), block.fields["n"].to_pylist()) == ([(0, "A\n\nb"), (1, "c")], [1, 2])
    assert [reject.line for reject in block.rejected] == [2]
    assert left_out(read(path, text_field=["title", "text"])) == "has no column `text`; it has: title, body, n"
