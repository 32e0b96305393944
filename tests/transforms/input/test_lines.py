from __future__ import annotations

import bz2
import gzip
import io
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard
from corpora import UNLIMITED, chunks_of, read_file, texts_of

from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Slice, TextBlock
from layerbeam.transforms.flow.commits import Commit, InputFile
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, number_slices, scan_range


def test_lines_with_their_numbers(corpus):
    assert texts_of(read_file(corpus(b"one\ntwo\n\n  \t\nfive"))) == [(0, "one"), (1, "two"), (4, "five")]


def test_carriage_return_before_line_feed_is_line_end(corpus):
    assert texts_of(read_file(corpus(b"a\r\nb\rc\r\r\nd\r"))) == [(0, "a"), (1, "b\rc\r"), (2, "d\r")]


def test_other_unicode_line_ends_are_text(corpus):
    assert texts_of(read_file(corpus("a\u2028b\x0bc\u0085d\x0ce\n".encode()))) == [(0, "a\u2028b\x0bc\u0085d\x0ce")]


def test_byte_order_mark_is_dropped_once(corpus):
    assert texts_of(read_file(corpus(b"\xef\xbb\xbf\xef\xbb\xbfa\n\xef\xbb\xbfb\n"))) == [
        (0, "\ufeffa"),
        (1, "\ufeffb"),
    ]


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\xef\xbb\xbf\r\n"])
def test_nothing_but_a_byte_order_mark_is_a_blank_line(corpus, data):
    (block,) = read_file(corpus(data))
    assert len(block.texts) == 0
    assert block.counts[metrics.BLANK] == 1


def test_empty_file_has_no_text(corpus):
    (block,) = read_file(corpus(b""))
    assert (texts_of([block]), block.total(metrics.RECORDS)) == ([], 0)


def test_blank_lines_are_counted_or_kept(corpus):
    path = corpus(b"a\n\n \xc2\xa0\nb\n")
    (skipped,) = read_file(path)
    assert (skipped.counts[metrics.BLANK], skipped.counts[metrics.EMBEDDED]) == (2, 2)
    (kept,) = read_file(path, blank="keep")
    assert texts_of([kept]) == [(0, "a"), (1, ""), (2, " \xa0"), (3, "b")]
    assert (kept.counts[metrics.BLANK], kept.counts[metrics.EMBEDDED]) == (0, 4)


def test_invalid_bytes_are_rejected_with_their_place(corpus):
    (block,) = read_file(corpus(b"good\nb\xffd\r\n\xc3\nalso good\n"))
    assert texts_of([block]) == [(0, "good"), (3, "also good")]
    first, second = block.rejected
    assert (first.line, first.byte_offset, first.raw) == (1, 5, b"b\xffd")
    assert first.reason == "invalid UTF-8: invalid start byte at byte 1 (0xff)"
    assert (second.line, second.byte_offset, second.raw) == (2, 10, b"\xc3")
    assert metrics.unbalanced(block.counts) is None


def test_invalid_bytes_can_be_replaced(corpus):
    (block,) = read_file(corpus(b"b\xffd\n"), invalid_bytes="replace")
    assert texts_of([block]) == [(0, "b\ufffdd")]
    assert block.rejected == []


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_utf16_is_left_out_with_the_way_out(corpus, mark, name):
    data = mark + "text\n".encode("utf-16-le") * 100
    (left_out,) = read_file(corpus(gzip.compress(data) if name.endswith("gz") else data, name), slice_bytes=50)
    assert isinstance(left_out, InputFile)
    assert "it is UTF-16, not UTF-8; convert it, for example with `iconv" in left_out.problem


def test_utf16_is_seen_over_the_ends_of_gzip_members(corpus):
    data = b"\xff\xfe" + "text\n".encode("utf-16-le")
    (left_out,) = read_file(corpus(gzip.compress(data[:1]) + gzip.compress(data[1:]), "a.txt.gz"))
    assert isinstance(left_out, InputFile)


def test_later_line_with_utf16_mark_is_rejected_alone(corpus):
    # More than one chunk, less than one block: the mark stands where the second run of lines begins.
    before = [gzip.compress(b"a line of text\n" * 10_000), gzip.compress(b"\xff\xfe no text\nlast\n")]
    (block,) = read_file(corpus(b"".join(before), "corpus.txt.gz"))
    assert [reject.line for reject in block.rejected] == [10_000]
    assert texts_of([block])[-1] == (10_001, "last")


LINES = b"".join(b"line %d of some text\n" % number for number in range(5000))
COMPRESSORS = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_compressed_is_read_like_plain(corpus, ending):
    limits = BlockLimits(1000, 1 << 30, 1 << 30, 128)
    plain = read_file(corpus(LINES), limits)
    packed = read_file(corpus(COMPRESSORS[ending](LINES), f"corpus.txt{ending}"), limits)
    assert len(packed) == len(plain) > 50
    assert texts_of(packed) == texts_of(plain)
    assert [block.files[0].sha256 for block in packed] == [block.files[0].sha256 for block in plain]


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_several_compressed_members_are_one_stream(corpus, ending):
    compress = COMPRESSORS[ending]
    path = corpus(compress(b"one\ntw") + compress(b"") + compress(b"o\nthree"), f"corpus.txt{ending}")
    assert texts_of(read_file(path)) == [(0, "one"), (1, "two"), (2, "three")]


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_truncated_compressed_file_keeps_whole_blocks(corpus, ending):
    # Random digits: zstd would put repetitive lines into one frame block, of which a half gives nothing.
    random = np.random.default_rng(0)
    data = b"".join(random.bytes(30).hex().encode() + b"\n" for _ in range(10_000))
    packed = COMPRESSORS[ending](data)
    *blocks, left_out = read_file(
        corpus(packed[: len(packed) // 2], f"corpus.txt{ending}"), BlockLimits(10_000, 1 << 30, 1 << 30, 128)
    )
    assert isinstance(left_out, InputFile)
    assert "is truncated" in left_out.problem
    assert all(isinstance(block, TextBlock) for block in blocks)
    expected = data.decode().splitlines()
    assert [text for _, text in texts_of(blocks)] == expected[: len(texts_of(blocks))]


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_damaged_compressed_file_is_left_out(corpus, ending):
    (left_out,) = read_file(corpus(b"this is no compressed data", f"corpus.txt{ending}"))
    assert isinstance(left_out, InputFile)
    assert "the compressed data is damaged" in left_out.problem


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_an_empty_file_is_no_compressed_one(corpus, ending):
    """Each of these formats has bytes for a file without any: an empty one is a download that failed."""
    (left_out,) = read_file(corpus(b"", f"corpus.txt{ending}"))
    assert isinstance(left_out, InputFile)
    assert "the compressed data is truncated" in left_out.problem
    assert texts_of(read_file(corpus(COMPRESSORS[ending](b""), f"corpus.txt{ending}"))) == []


def test_zeros_after_a_gzip_member_are_padding(corpus):
    assert texts_of(read_file(corpus(gzip.compress(b"a\n") + b"\0" * 512, "corpus.txt.gz"))) == [(0, "a")]


def test_block_that_is_done_and_unchanged_comes_as_its_commit(corpus):
    path = corpus(b"one\ntwo\nthree\nfour\n")
    limits = BlockLimits(1, 1 << 30, 1 << 30, 128)
    done = read_file(path, limits)
    path.write_bytes(b"one\nTWO\nthree\nfour\n")
    os.utime(path, (1, 1))
    first, second, third, fourth = read_file(path, limits, done=done)
    assert isinstance(second, TextBlock)
    assert texts_of([second]) == [(1, "TWO")]
    for commit in (first, third, fourth):
        assert isinstance(commit, Commit)
        assert commit.files[0].file.modified == 1  # so that the next run need not read it


def test_appended_file_is_done_from_its_last_block_on(corpus):
    path = corpus(b"one\ntwo\nthree")
    limits = BlockLimits(1, 1 << 30, 1 << 30, 128)
    done = read_file(path, limits)
    path.write_bytes(b"one\ntwo\nthree more\nfour\n")
    kinds = [type(item) for item in read_file(path, limits, done=done)]
    assert kinds == [Commit, Commit, TextBlock, TextBlock]


def test_file_is_skipped_after_blocks_before_damage(corpus):
    first, second = gzip.compress(b"one\n"), gzip.compress(b"two\n")
    path = corpus(first + second, "corpus.txt.gz")
    limits = BlockLimits(1, 1 << 30, 1 << 30, 128)
    done = read_file(path, limits)
    assert len(done) == 2
    status = path.stat()
    path.write_bytes(first + b"x" * len(second))  # damaged on the disk: as long, and as old
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    items = read_file(path, limits, done=done)
    assert [type(item) for item in items] == [Commit, InputFile]
    path.unlink()
    (file,) = {block.files[0].file for block in done}
    (left_out,) = number_slices([scan_range(FileToRead(file), 0, None, limits)], limits)
    assert isinstance(left_out, InputFile)


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

    monkeypatch.setattr(storage, "open_binary", lambda path, _end: RecordedFile(Path(path).read_bytes()))
    with chunks_of(100):
        assert list(read_blocks(Slice(file, 50_000, 51_000, 0), UNLIMITED, RecordFormat(record=record))) == []
    assert 1_000 <= sum(read) <= 1_200


def test_blocks_end_with_the_line_that_fills_them(corpus):
    path = corpus(b"12345\n" * 10)
    by_bytes = read_file(path, BlockLimits(13, 1 << 30, 1 << 30, 128))
    assert [len(block.texts) for block in by_bytes] == [3, 3, 3, 1]
    by_rows = read_file(path, BlockLimits(1 << 30, 1 << 30, 4, 128))
    assert [len(block.texts) for block in by_rows] == [4, 4, 2]
    by_tokens = read_file(path, BlockLimits(1 << 30, 6, 1 << 30, 128))  # 2 + 6 // 4 = 3 for each line
    assert [len(block.texts) for block in by_tokens] == [2, 2, 2, 2, 2]
