from __future__ import annotations

import io
from pathlib import Path

import pytest
from corpora import UNLIMITED, read_file, texts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import Slice
from layerbeam.transforms.input import text
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.storage import compression


def test_line_longer_than_many_slices_is_one_record(corpus):
    long = b"x" * 1000
    items = read_file(corpus(b"a\n" + long + b"\nb\nc\n"), slice_bytes=7)
    assert texts_of(items) == [(0, "a"), (1, long.decode()), (2, "b"), (3, "c")]


@pytest.mark.parametrize("record", ["line", "paragraph"])
def test_a_slice_inside_a_long_line_is_not_read_beyond_its_end(corpus, monkeypatch, record):
    (file,) = storage.find_files([str(corpus(b"x" * 100_000 + b"\n"))])
    read: list[int] = []

    class RecordedFile(io.BytesIO):
        def read(self, size=-1):
            read.append(len(data := super().read(size)))
            return data

        def readline(self, size=-1):
            read.append(len(data := super().readline(size)))
            return data

    monkeypatch.setattr(compression, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(text, "_BACKWARDS_BYTES", 10)
    monkeypatch.setattr(storage, "open_binary", lambda path, _end: RecordedFile(Path(path).read_bytes()))
    assert list(read_blocks(Slice(file, 50_000, 51_000, 0), UNLIMITED, RecordFormat(record=record))) == []
    assert 1_000 <= sum(read) <= 1_100


def test_blocks_end_with_the_line_that_fills_them(corpus):
    path = corpus(b"12345\n" * 10)
    by_bytes = read_file(path, BlockLimits(13, 1 << 30, 1 << 30, 128))
    assert [len(block.texts) for block in by_bytes] == [3, 3, 3, 1]
    by_rows = read_file(path, BlockLimits(1 << 30, 1 << 30, 4, 128))
    assert [len(block.texts) for block in by_rows] == [4, 4, 2]
    by_tokens = read_file(path, BlockLimits(1 << 30, 6, 1 << 30, 128))  # 2 + 6 // 4 = 3 for each line
    assert [len(block.texts) for block in by_tokens] == [2, 2, 2, 2, 2]


@settings(max_examples=300)
@given(
    data=st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r", b" ", b"\xff", b"\xc3\xa4"]), max_size=60).map(b"".join),
    slice_bytes=st.integers(1, 20),
    limits=st.builds(BlockLimits, st.integers(1, 20), st.integers(3, 30), st.integers(1, 5), st.just(10)),
)
def test_blocks_put_together_are_the_file(tmp_path_factory, data, slice_bytes, limits):
    path = tmp_path_factory.mktemp("any") / "a.txt"
    path.write_bytes(data)
    lines = data.split(b"\n")
    ended = [line.removesuffix(b"\r") for line in lines[:-1]]
    expected = dict(enumerate(ended + ([lines[-1]] if lines[-1] else [])))
    position, found = 0, {}
    for block in read_file(path, limits, slice_bytes=slice_bytes, blank="keep"):
        assert block.block.first_byte == position
        position = block.block.end_byte
        found |= {line: text.encode() for line, text in texts_of([block])}
        for reject in block.rejected:
            found[reject.line] = reject.raw
            assert data[reject.byte_offset :].startswith(reject.raw)
        assert metrics.unbalanced(block.counts) is None
    assert position == len(data)
    assert found == expected
