"""Records longer than `max_record_bytes`: each is a reject with its first bytes, and all others stay where they are."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import UNLIMITED, chunks_of, read_file, texts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import TextBlock
from layerbeam.transforms.settings import BlockLimits

LIMITS = st.builds(BlockLimits, st.integers(1, 40), st.integers(1, 30), st.integers(1, 6), st.integers(3, 10))
PIECES = ["a", "bcdef", "\n", "\n", "\n\n", " ", " \t", "\r\n", "x" * 20, " " * 20, "\n" * 20]


def rejects_of(items: list[TextBlock]) -> list[tuple[int, int, bytes]]:
    """(line, byte, raw bytes) of each reject."""
    return [(reject.line, reject.byte_offset, reject.raw) for block in items for reject in block.rejected]


def check_blocks(items: list[TextBlock], data: bytes, *, hashed: bytes = b"") -> None:
    """Assert that the blocks follow each other, balance, and have the hashes of the file's bytes."""
    for before, after in itertools.pairwise(items):
        assert before.files[0].end_byte == after.files[0].first_byte
        assert before.files[0].first_line + before.files[0].num_lines == after.files[0].first_line
    for block in items:
        assert metrics.unbalanced({name: block.total(name) for name in block.counts}) is None
        own = data[block.files[0].first_byte : block.files[0].end_byte]
        assert block.files[0].sha256 == hashlib.sha256(hashed + own).hexdigest()


def records_of(data: bytes, record: str, most: int) -> list[tuple[int, int, int, bytes]]:
    """(line, first byte, byte after the last, text) of each record."""
    found: list[tuple[int, int, int, bytes]] = []
    after_blank = True
    for number, match in enumerate(re.finditer(rb"[^\n]*\n|[^\n]+", data)):
        line = match[0]
        is_blank = not line.strip() and len(line) <= most
        if (
            record == "line"
            or (record == "paragraph" and not is_blank and after_blank)
            or (record == "file" and not found)
        ):
            found.append((number, match.start(), match.end(), line))
        elif found:
            found[-1] = (*found[-1][:2], match.end(), found[-1][3] + line)
        after_blank = is_blank
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples, which write over one another."""
    return tmp_path_factory.mktemp("any")


@settings(max_examples=133)
@given(
    data=st.lists(st.sampled_from(PIECES), max_size=40).map("".join).map(str.encode),
    record=st.sampled_from(["line", "paragraph", "file"]),
    most=st.integers(1, 30),
    limits=LIMITS,
    slice_bytes=st.integers(1, 40),
    chunk_bytes=st.integers(1, 40),
    is_compressed=st.booleans(),
)
def test_long_records_of_text_are_those_of_a_plain_loop(
    folder, data, record, most, limits, slice_bytes, chunk_bytes, is_compressed
):
    path = folder / ("a.txt.gz" if is_compressed else "a.txt")
    path.write_bytes(gzip.compress(data, mtime=0) if is_compressed else data)
    with chunks_of(chunk_bytes):
        items = read_file(path, limits, slice_bytes=slice_bytes, record=record, max_record_bytes=most)
    check_blocks(items, data)
    records = records_of(data, record, most)
    assert sum(block.total(metrics.RECORDS) for block in items) == len(records)
    is_long = [end - first > most for _, first, end, _ in records]
    assert rejects_of(items) == [
        (line, first, data[first:end][:most])
        for (line, first, end, _), long in zip(records, is_long, strict=True)
        if long
    ]
    assert [line for line, _ in texts_of(items)] == [
        line for (line, _, _, text), long in zip(records, is_long, strict=True) if not long and text.strip()
    ]


@settings(max_examples=100)
@given(
    rows=st.lists(st.lists(st.sampled_from('ab\n","\n '), max_size=12).map("".join), max_size=20),
    most=st.integers(8, 30),
    limits=LIMITS,
    slice_bytes=st.integers(1, 40),
    chunk_bytes=st.integers(1, 40),
    has_end=st.booleans(),
)
def test_long_rows_of_csv_end_where_they_were_written(folder, rows, most, limits, slice_bytes, chunk_bytes, has_end):
    written = []
    for number, text in enumerate(rows):
        out = io.StringIO()
        csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL if number % 2 else csv.QUOTE_MINIMAL).writerow(
            [text, number]
        )
        written.append(out.getvalue().encode())
    if written and not has_end:
        written[-1] = written[-1][:-1]
    data = b"".join([b"text,n\n", *written])
    path = folder / "a.csv"
    path.write_bytes(data)
    with chunks_of(chunk_bytes):
        form = {"format": "csv", "max_record_bytes": most, "keep_fields": {"n": "int64"}}
        items = read_file(path, limits, slice_bytes=slice_bytes, **form)
    check_blocks(items, data, hashed=b"text,n\n")
    expected, long = [], []
    line, place = 1, 7
    for number, (text, raw) in enumerate(zip(rows, written, strict=True)):
        size = len(raw) + (0 if number else 7)  # the names of the columns belong to the first row
        if size > most:
            long.append(
                (line, place, (raw if number else b"text,n\n" + raw)[:most][0 if number else 7 :].rstrip(b"\r\n"))
            )
        elif text.strip():
            expected.append((line, text))
        line, place = line + raw.count(b"\n"), place + len(raw)
    assert texts_of(items) == expected
    assert rejects_of(items) == long


def test_a_long_record_is_a_reject_with_its_first_kilobyte(corpus):
    long = "\ufeff" + "x" * 2000
    (first, second) = read_file(corpus(f"{long}\nshort\n"), max_record_bytes=2003)
    assert texts_of([first, second]) == [(1, "short")]
    (reject,) = first.rejected
    assert (reject.stage, reject.reason) == ("read", "is longer than 2,003 bytes (input.max_record_bytes)")
    assert (reject.line, reject.byte_offset, reject.raw) == (0, 3, b"x" * 1021)
    assert texts_of(read_file(corpus(f"{long}\nshort\n"), max_record_bytes=2004)) == [(0, "x" * 2000), (1, "short")]


def test_long_lines_of_json(corpus):
    lines = ['{"text": "one"}', '{"text": "%s"}' % ("x" * 50), "", '{"text": "two"}', '{"text": "%s' % ("y" * 60)]
    items = read_file(corpus("\n".join(lines), "a.jsonl"), format="jsonl", max_record_bytes=50)
    assert texts_of(items) == [(0, "one"), (3, "two")]
    assert [(line, place) for line, place, _ in rejects_of(items)] == [(1, 16), (4, 96)]
    assert {reject.reason for block in items for reject in block.rejected} == {
        "is longer than 50 bytes (input.max_record_bytes)"
    }


def test_long_rows_of_parquet(tmp_path):
    texts = ["one", "x" * 3000, None, "two", "y" * 100]
    pairs = ["1", "2", "3", "z" * 100, None]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts, "pair": pairs, "n": [1, 2, 3, 4, 5]}), path)
    form = {"format": "parquet", "pair_field": "pair", "keep_fields": {"n": "int64"}, "max_record_bytes": 101}
    (block,) = read_file(path, **form)
    assert texts_of([block]) == [(0, "one"), (4, "y" * 100)]
    assert block.fields["n"].to_pylist() == [1, 5]
    assert [(reject.line, reject.reason, reject.raw) for reject in block.rejected] == [
        (1, "is longer than 101 bytes (input.max_record_bytes)", b"x" * 1024),
        (3, "is longer than 101 bytes (input.max_record_bytes)", b"two"),
    ]
    assert metrics.unbalanced({name: block.total(name) for name in block.counts}) is None


def test_a_file_of_one_record_that_is_too_long(corpus):
    (block,) = read_file(corpus(b"x\n" * 3_000_000), UNLIMITED, record="file", max_record_bytes=1 << 20)
    assert rejects_of([block]) == [(0, 0, b"x\n" * 512)]
    assert (block.files[0].num_lines, block.files[0].end_byte) == (3_000_000, 6_000_000)
