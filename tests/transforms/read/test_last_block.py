"""Each file has exactly one last block, which ends it, however it is cut and whoever reads it."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from corpora import UNLIMITED, random_lines, read_file, texts_of

from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Slice, TextBlock
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.read.block import read_block, read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, cut_file, number_slices, scan_range

Write = Callable[[Path, list[str], str], Any]


def write_parquet(path: Path, texts: list[str], _: str) -> None:
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])) as writer:
        for start in range(0, len(texts) + 5, 5):  # the last row group may have no rows
            writer.write_table(pa.table({"text": texts[start : start + 5]}, writer.schema))


def write_lines(path: Path, texts: list[str], pattern: str) -> None:
    lines = "".join(pattern % text for text in texts)
    data = (f"text\n{lines}" if ".csv" in path.name else lines).encode()
    packed = {".gz": lambda: gzip.compress(data), ".zst": lambda: zstandard.compress(data)}
    path.write_bytes(packed.get(path.suffix, lambda: data)())


def cases() -> list[Any]:
    found = []
    for ending in ("", ".gz", ".zst"):
        found += [
            pytest.param(f"a.txt{ending}", {}, write_lines, "%s\n", id=f"lines{ending}"),
            pytest.param(f"a.txt{ending}", {"record": "paragraph"}, write_lines, "%s\n\n\n", id=f"paragraphs{ending}"),
            pytest.param(f"a.txt{ending}", {"record": "file"}, write_lines, "%s\n", id=f"file{ending}"),
            pytest.param(f"a.jsonl{ending}", {"format": "jsonl"}, write_lines, '{"text": "%s"}\n', id=f"jsonl{ending}"),
            pytest.param(f"a.csv{ending}", {"format": "csv"}, write_lines, '"%s"\n', id=f"csv{ending}"),
        ]
    return [*found, pytest.param("a.parquet", {"format": "parquet"}, write_parquet, "", id="parquet")]


def read_by(path: Path, limits: BlockLimits, readers: int, *, max_records: int | None = None, **how: Any) -> list[Any]:
    """All items from a file of which every slice has so many readers, in the order of the lines."""
    (file,), record_format = storage.find_files([str(path)]), RecordFormat(**how)
    ranges = cut_file(FileToRead(file, max_records), limits.text_bytes, record_format)
    items: list[Any] = []
    scans = [scan_range(*range_, limits, record_format) for range_ in ranges]
    for slice_ in number_slices(scans, limits, record_format):
        assert isinstance(slice_, Slice)
        for reader in range(readers):
            slice_.reader = reader, readers
            items += read_blocks(slice_, limits, record_format)
    return sorted(items, key=lambda item: item.files[0].first_line)


@pytest.mark.parametrize(("name", "how", "write", "pattern"), cases())
@pytest.mark.parametrize("text_bytes", [1, 300, 1 << 30])
def test_the_last_block_and_no_other_is_last(tmp_path, name, how, write, pattern, text_bytes):
    path, texts = tmp_path / name, [line or "a" for line in random_lines(12 if text_bytes == 1 else 20)]
    write(path, texts, pattern)
    limits = BlockLimits(text_bytes, 1 << 30, 1 << 30, 128)
    items = read_by(path, limits, 1, **how)
    assert [item.files[0].is_last for item in items] == [False] * (len(items) - 1) + [True]
    assert len(texts_of(items)) == (1 if "record" in how and how["record"] == "file" else len(texts))
    for readers in (2, 9):
        assert [item.files[0] for item in read_by(path, limits, readers, **how)] == [item.files[0] for item in items]


@pytest.mark.parametrize(("name", "how", "write", "pattern"), cases())
@pytest.mark.parametrize("max_records", [1, 7, 39])
def test_where_the_limit_ends_a_file_no_block_is_last(tmp_path, name, how, write, pattern, max_records):
    if how.get("record") == "file":
        return
    write(tmp_path / name, [line or "a" for line in random_lines(40)], pattern)
    limits = BlockLimits(300, 1 << 30, 1 << 30, 128)
    items = read_by(tmp_path / name, limits, 2, max_records=max_records, **how)
    assert len(texts_of(items)) == max_records
    assert not any(item.files[0].is_last for item in items)


@pytest.mark.parametrize(("name", "how", "write", "pattern"), cases())
def test_a_file_without_records_is_a_block_without_texts(tmp_path, name, how, write, pattern):
    path = tmp_path / name
    write(path, [], pattern)
    items = read_by(path, UNLIMITED, 3, **how)
    (block,) = items
    assert block.files[0].is_last
    assert (len(block.texts), block.rejected) == (0, [])
    assert not any(block.total(name) for name in block.counts)
    assert read_block(block.files, RecordFormat(**how)).counts == block.counts
    if ".csv" not in name:  # the names of the columns are in a block
        nothing = (0, 0, 0, 0, hashlib.sha256().hexdigest())
        own = block.files[0]
        assert (own.first_line, own.num_lines, own.first_byte, own.end_byte, own.sha256) == nothing


@pytest.mark.parametrize(
    "how", [{"unit": "sentence"}, {"blank": "keep"}, {"pair_separator": " ||| "}, {"format": "csv"}]
)
def test_a_block_without_texts_whatever_a_text_is(corpus, how):
    (block,) = read_file(corpus(gzip.compress(b""), "a.txt.gz"), **how)
    assert (len(block.texts), block.total(metrics.RECORDS)) == (0, 0)
    assert texts_of([read_block(block.files, RecordFormat(**how))]) == []


def test_a_block_without_texts_has_the_fields(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string()), "n": pa.array([], pa.int64())}), path)
    (block,) = read_file(path, format="parquet", keep_fields={"n": "int64"}, pair_field="text")
    assert block.fields["n"].type == pa.int64()
    assert len(block.pairs) == 0


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("slice_bytes", [1, 3, 8, 100])
@pytest.mark.parametrize("text_bytes", [1, 100])
@pytest.mark.parametrize("blank", ["", "\n", " \n\r\n\t\n\n", "\ufeff\n \n"])
def test_blank_lines_at_the_start_are_in_the_first_block(corpus, name, slice_bytes, text_bytes, blank):
    data = f"{blank}one\ntwo\n\n\nthree\n".encode()
    path = corpus(gzip.compress(data) if name.endswith("gz") else data, name)
    limits = BlockLimits(text_bytes, 1 << 30, 1 << 30, 128)
    items = read_file(path, limits, slice_bytes=slice_bytes, record="paragraph")
    line = blank.count("\n")
    assert texts_of(items) == [(line, "one\ntwo"), (line + 4, "three")]
    assert [item.files[0].is_last for item in items] == [False] * (len(items) - 1) + [True]
    first, last = items[0].files[0], items[-1].files[0]
    assert (first.first_line, first.first_byte) == (0, 0)
    assert (last.first_line + last.num_lines, last.end_byte) == (line + 5, len(data))
    assert sum(item.total(metrics.RECORDS) for item in items) == 2
    assert sum(item.total(metrics.BLANK) for item in items) == 0
    for item in items:
        assert texts_of([read_block(item.files, RecordFormat(record="paragraph"))]) == texts_of([item])


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("slice_bytes", [1, 3, 100])
def test_blank_lines_without_a_paragraph_are_a_block(corpus, name, slice_bytes):
    data = b"\n \n\t\n" * 3 + b"  "
    path = corpus(gzip.compress(data) if name.endswith("gz") else data, name)
    (block,) = read_file(path, slice_bytes=slice_bytes, record="paragraph", max_record_bytes=10)
    own = block.files[0]
    assert (own.first_line, own.num_lines, own.first_byte, own.end_byte, own.is_last) == (0, 10, 0, len(data), True)
    assert own.sha256 == hashlib.sha256(data).hexdigest()
    assert (texts_of([block]), block.rejected, block.total(metrics.RECORDS)) == ([], [], 0)
    assert texts_of([read_block(block.files, RecordFormat(record="paragraph"))]) == []


def test_what_was_read_before_a_failure_is_not_last(corpus):
    path = corpus(gzip.compress(b"one\n") + b"x" * 20, "a.txt.gz")
    block, problem = read_file(path, BlockLimits(1, 1 << 30, 1 << 30, 128))
    assert isinstance(block, TextBlock)
    assert not block.files[0].is_last
    assert isinstance(problem, InputFile)
