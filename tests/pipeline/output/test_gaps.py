"""What a runner may have lost: a line that is in no block, the file of a block."""

from __future__ import annotations

import pytest

from layerbeam.pipeline.output.finish_group import GapCheck
from layerbeam.transforms.commits import BlockId, Commit, InputFile
from layerbeam.transforms.settings import RecordFormat

FILE = InputFile("a.txt", 90, 0.0)
LINES = RecordFormat()


def block(first_line: int, num_lines: int, first_byte: int, end_byte: int, file: InputFile = FILE) -> Commit:
    return Commit("f", BlockId(file, first_line, num_lines, first_byte, end_byte, "0"), {}, {})


WHOLE = [block(0, 3, 0, 30), block(3, 2, 30, 50), block(5, 4, 50, 90)]


def find_gap(blocks: list[Commit], file: InputFile = FILE, record_format: RecordFormat = LINES) -> str | None:
    check = GapCheck(file, record_format)
    for commit in blocks:
        check.add(commit.block)
    return check.end()


def test_a_whole_file():
    assert find_gap(WHOLE) is None
    assert find_gap([], InputFile("empty.txt", 0, 0.0)) is None


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (WHOLE[1:], "a.txt: lines 0 to 2 are in no block"),
        ([WHOLE[0], WHOLE[2]], "a.txt: lines 3 to 4 are in no block"),
        ([WHOLE[0], WHOLE[0], *WHOLE[1:]], "a.txt: line 0 is in two blocks"),
        (WHOLE[:2], "a.txt: bytes 50 to 90 are in no block"),
        ([], "a.txt: bytes 0 to 90 are in no block"),
    ],
)
def test_what_is_missing_or_duplicated(blocks, message):
    assert find_gap(blocks) == message


def test_a_compressed_file_does_not_record_where_it_ends():
    file = InputFile("a.txt.gz", 20, 0.0)
    blocks = [block(0, 3, 0, 30, file), block(3, 2, 30, 50, file)]
    assert find_gap(blocks, file) is None
    assert find_gap(blocks[1:], file) == "a.txt.gz: lines 0 to 2 are in no block"
