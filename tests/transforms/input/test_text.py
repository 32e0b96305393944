"""Paragraphs, whole files, other encodings and pairs: what each record is, where it begins, and what is refused."""

from __future__ import annotations

import gzip

import pytest
from corpora import UNLIMITED, read_file, texts_of

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.settings import BlockLimits


def test_paragraphs_with_the_line_of_their_first_line(corpus):
    path = corpus("\n \none\ntwo \n\n\n\tthree\n \t\r\nfour")
    (block,) = read_file(path, record="paragraph")
    assert texts_of([block]) == [(2, "one\ntwo "), (6, "\tthree"), (8, "four")]
    assert block.counts[metrics.RECORDS] == block.counts[metrics.EMBEDDED] == 3


def test_lines_of_a_paragraph_are_joined_by_line_feeds(corpus):
    path = corpus("a\r\nb\rc\r\n\r\nd\r\r\ne\r\n")
    assert texts_of(read_file(path, record="paragraph")) == [(0, "a\nb\rc"), (3, "d\r\ne")]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xef\xbb\xbfone\n", [(0, "one")]),
        (b"\xef\xbb\xbf\none\n", [(1, "one")]),
        (b"\xef\xbb\xbf \r\n\xef\xbb\xbfone", [(1, "\ufeffone")]),
        (b"", []),
        (b" \n\n\t", []),
    ],
)
@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 4, 100])
def test_byte_order_mark_before_paragraphs(corpus, data, expected, slice_bytes):
    assert texts_of(read_file(corpus(data), record="paragraph", slice_bytes=slice_bytes)) == expected


def test_line_of_unicode_spaces_ends_no_paragraph(corpus):
    path = corpus("a\n\u00a0\nb\n\n\u2003\n\nc")
    (block,) = read_file(path, record="paragraph")
    assert texts_of([block]) == [(0, "a\n\u00a0\nb"), (6, "c")]
    assert block.counts[metrics.BLANK] == 1


def test_a_rejected_paragraph_goes_with_its_place_and_bytes(corpus):
    (block,) = read_file(corpus(b"one\n\ntwo\nth\xffree\n\nfour\n"), record="paragraph")
    (reject,) = block.rejected
    assert (reject.line, reject.byte_offset, reject.raw) == (2, 5, b"two\nth\xffree")
    assert reject.reason == "invalid UTF-8: invalid start byte at byte 6 (0xff)"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_file_is_one_record(corpus, name):
    data = "\ufeffone\r\n\n two\n".encode()
    path = corpus(gzip.compress(data) if name.endswith("gz") else data, name)
    (block,) = read_file(path, BlockLimits(1, 1, 1, 10), slice_bytes=3, record="file")
    assert texts_of([block]) == [(0, "one\r\n\n two\n")]
    assert (block.files[0].first_byte, block.files[0].end_byte, block.files[0].num_lines) == (0, 14, 3)


def test_empty_file_has_no_record_and_a_blank_one_is_blank(corpus):
    (block,) = read_file(corpus(""), record="file")
    assert block.counts[metrics.RECORDS] == 0
    (block,) = read_file(corpus("\ufeff \n\n"), record="file")
    assert (block.counts[metrics.RECORDS], block.counts[metrics.BLANK]) == (1, 1)


def test_single_byte_encodings(corpus):
    path = corpus("na\u00efve \u2013 \u20ac\r\nb\n".encode("cp1252"))
    assert texts_of(read_file(path, encoding="cp1252")) == [(0, "na\u00efve \u2013 \u20ac"), (1, "b")]
    assert texts_of(read_file(path, encoding="iso8859-1")) == [(0, "na\u00efve \x96 \x80"), (1, "b")]


def test_bytes_that_the_encoding_does_not_have(corpus):
    path = corpus(b"fine\na\x81b\n")
    (block,) = read_file(path, encoding="cp1252")
    (reject,) = block.rejected
    assert reject.reason == "invalid cp1252: character maps to <undefined> at byte 1 (0x81)"
    assert (reject.line, reject.byte_offset, reject.raw) == (1, 5, b"a\x81b")
    assert texts_of(read_file(path, encoding="cp1252", invalid_bytes="replace"))[1] == (1, "a\ufffdb")


def test_surrogates_of_a_loose_codec_are_rejected(corpus):
    (block,) = read_file(corpus(b"+2AA-\nok\n"), encoding="utf-7")
    assert texts_of([block]) == [(1, "ok")]
    assert metrics.unbalanced(block.counts) is None


@pytest.mark.parametrize("record", ["line", "paragraph", "file"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize(
    ("data", "encoding", "reason"),
    [
        ("text\n".encode("utf-16"), "iso8859-1", "it is UTF-16, not iso8859-1; convert it"),
        (b"\xef\xbb\xbftext\n", "cp1252", "begins with the byte order mark of UTF-8, and input.encoding is cp1252"),
    ],
)
def test_the_mark_of_another_encoding_is_named(corpus, record, name, data, encoding, reason):
    path = corpus(gzip.compress(data) if name.endswith("gz") else data, name)
    (left_out,) = read_file(path, encoding=encoding, record=record)
    assert reason in left_out.problem


def test_pairs_are_split_at_the_last_separator(corpus):
    (block,) = read_file(
        corpus("a ||| b\n  \u00e9 ||| c ||| d \nsingle\nno |||one\n"), UNLIMITED, pair_separator=" ||| "
    )
    assert block.texts.to_pylist() == ["a", "  \u00e9 ||| c", "single", "no |||one"]
    assert block.pairs.to_pylist() == ["b", "d ", None, None]
    assert block.pair_offset.tolist() == [6, 14, 0, 0]


@pytest.mark.parametrize("line", ["a ||| ", " ||| b", " ||| ", "a |||", "||| b"])
def test_half_a_pair_is_a_single_text_as_in_extract_features(corpus, line):
    (block,) = read_file(corpus(line + "\n"), pair_separator=" ||| ")
    assert block.texts.to_pylist() == [line]
    assert block.pairs is None


def test_blank_lines_among_pairs(corpus):
    path = corpus("a ||| b\n \nc ||| d\n")
    (block,) = read_file(path, pair_separator=" ||| ")
    assert (block.texts.to_pylist(), block.pairs.to_pylist()) == (["a", "c"], ["b", "d"])
    (block,) = read_file(path, pair_separator=" ||| ", blank="keep")
    assert (block.texts.to_pylist(), block.pairs.to_pylist()) == (["a", " ", "c"], ["b", None, "d"])


@pytest.mark.parametrize("slice_bytes", range(4096, 4102))
def test_byte_order_mark_and_much_white_space_before_paragraphs(corpus, slice_bytes):
    path = corpus(b"\xef\xbb\xbf" + b" " * 4096 + b"\none")
    assert texts_of(read_file(path, record="paragraph", slice_bytes=slice_bytes)) == [(1, "one")]


def test_paragraph_and_white_space_over_many_slices(corpus):
    long = "\n".join(["a line of text"] * 50)
    path = corpus(f"one\n{' ' * 10_000}\n{long}\n{' ' * 10_000}\n\ntwo\n")
    expected = [(0, "one"), (2, long), (54, "two")]
    for slice_bytes in (7, 100, 9_999):
        assert texts_of(read_file(path, record="paragraph", slice_bytes=slice_bytes)) == expected
