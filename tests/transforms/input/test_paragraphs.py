from __future__ import annotations

import itertools
import re

import pytest
from corpora import read_file, texts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from layerbeam.transforms.read.block import read_block
from layerbeam.transforms.settings import BlockLimits, RecordFormat


@pytest.mark.parametrize("slice_bytes", range(4096, 4102))
def test_byte_order_mark_and_much_white_space_before_paragraphs(corpus, slice_bytes):
    path = corpus(b"\xef\xbb\xbf" + b" " * 4096 + b"\none")
    assert texts_of(read_file(path, record="paragraph", slice_bytes=slice_bytes)) == [(1, "one")]


def test_paragraph_over_many_slices_and_white_space_over_many_more(corpus):
    long = "\n".join(["a line of text"] * 50)
    path = corpus(f"one\n{' ' * 10_000}\n{long}\n{' ' * 10_000}\n\ntwo\n")
    expected = [(0, "one"), (2, long), (54, "two")]
    for slice_bytes in (7, 100, 9_999):
        assert texts_of(read_file(path, record="paragraph", slice_bytes=slice_bytes)) == expected


@settings(max_examples=400)
@given(
    data=st.lists(st.sampled_from(["a", "\n", "\n", "\r", " ", "ä", "b\n"]), max_size=60).map("".join),
    slice_bytes=st.integers(1, 20),
    limits=st.builds(BlockLimits, st.integers(1, 20), st.integers(3, 30), st.integers(1, 5), st.just(10)),
)
def test_paragraphs_of_any_slices_are_those_of_a_plain_loop(tmp_path_factory, data, slice_bytes, limits):
    path = tmp_path_factory.mktemp("any") / "a.txt"
    path.write_bytes(data.encode())
    expected: list[tuple[int, list[str]]] = []
    after_blank = True
    for number, line in enumerate(re.sub(r"\r(?=\n)", "", data).split("\n")):
        if line.strip(" \r"):
            expected += [(number, [])] if after_blank else []
            expected[-1][1].append(line)
        after_blank = not line.strip(" \r")
    blocks = read_file(path, limits, slice_bytes=slice_bytes, record="paragraph")
    assert texts_of(blocks) == [(number, "\n".join(found)) for number, found in expected]
    for before, after in itertools.pairwise(blocks):
        assert before.block.end_byte == after.block.first_byte
        assert before.block.first_line + before.block.num_lines == after.block.first_line
    for block in blocks:
        assert read_block(block.block, RecordFormat(record="paragraph")).texts.equals(block.texts)
