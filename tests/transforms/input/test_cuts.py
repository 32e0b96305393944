"""Blocks cut by content against a judge in plain Python, and what an edit changes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import chunks_of, read_file
from hypothesis import given, settings
from hypothesis import strategies as st

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import TextBlock
from layerbeam.transforms.settings import BlockLimits

FULL = 1 << 30
LINES = st.lists(
    st.sampled_from([b"", b"", b"a", b"same line", b"bc" * 9, b"d" * 70])
    | st.text("abcd \t", max_size=30).map(str.encode)
)
LIMITS = st.builds(
    BlockLimits, st.integers(10, 300), st.sampled_from([40, 1 << 30]), st.sampled_from([7, 1 << 30]), st.just(128)
)


def blocks_of(lines: list[bytes], limits: BlockLimits, most: int) -> list[bytes]:
    """The bytes of each block, by the rules of `cuts.py`, one line after the other."""
    blocks, begin = list[bytes](), 0
    while begin < len(lines):
        candidates, filled, end = list[tuple[int, int]](), 0, len(lines)
        for number in range(begin, len(lines)):
            line = lines[number]
            if len(line) > most:
                end = max(number, begin + 1)
                break
            tokens = min(2 + len(line) // 4, limits.max_seq_length)
            shares = (1, limits.text_rows), (len(line), limits.text_bytes), (tokens, limits.token_rows)
            size = min(max(1, *(-(-FULL * amount // limit) for amount, limit in shares)), FULL)
            filled += size
            rank = zlib.crc32(line) * FULL // size
            if filled >= FULL // 4 and rank < 16 << 32:
                candidates.append((rank, -number))
            if filled >= FULL:
                end = 1 - min(candidates)[1] if candidates else number + 1
                break
        blocks.append(b"".join(lines[begin:end]))
        begin = end
    return blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cuts")


def cut(path: Path, data: bytes, limits: BlockLimits, **how: Any) -> list[tuple[bytes, int, int, str, bool]]:
    path.write_bytes(data if path.suffix == ".txt" else gzip.compress(data))
    items = read_file(path, limits, **how)
    assert all(isinstance(item, TextBlock) for item in items)
    own = [item.files[0] for item in items]
    return [(data[o.first_byte : o.end_byte], o.first_line, o.num_lines, o.sha256, o.is_last) for o in own]


@settings(max_examples=66)
@given(
    lines=LINES, limits=LIMITS, slice_bytes=st.integers(1, 90), chunk=st.integers(1, 60), most=st.sampled_from([50, 99])
)
def test_blocks_are_those_of_the_judge(folder, lines, limits, slice_bytes, chunk, most):
    data = b"".join(line + b"\n" for line in lines)
    whole = cut(folder / "a.txt", data, limits, max_record_bytes=most)
    assert [content for content, *_ in whole] == (blocks_of(data.splitlines(keepends=True), limits, most) or [b""])
    with chunks_of(chunk):
        assert cut(folder / "a.txt", data, limits, slice_bytes=slice_bytes, max_record_bytes=most) == whole
        assert cut(folder / "a.txt.gz", data, limits, max_record_bytes=most) == whole


@settings(max_examples=66)
@given(
    lines=LINES, limits=LIMITS, slice_bytes=st.integers(1, 90), chunk=st.integers(1, 60), most=st.sampled_from([50, 99])
)
def test_paragraphs_however_the_file_is_sliced(folder, lines, limits, slice_bytes, chunk, most):
    data = b"".join(line + b"\n" for line in lines)
    how = {"record": "paragraph", "max_record_bytes": most}
    whole = cut(folder / "a.txt", data, limits, **how)
    assert b"".join(content for content, *_ in whole) == data
    with chunks_of(chunk):
        assert cut(folder / "a.txt", data, limits, slice_bytes=slice_bytes, **how) == whole
        assert cut(folder / "a.txt.gz", data, limits, **how) == whole


TEXT = st.text('ab,"\\é', max_size=20)


@settings(max_examples=66)
@given(
    rows=st.lists(st.fixed_dictionaries({"text": TEXT, "pair": TEXT}, optional={"label": TEXT})),
    format_=st.sampled_from(["jsonl", "csv"]),
    slice_bytes=st.integers(1, 90),
    chunk=st.integers(1, 60),
    labels=st.lists(TEXT | st.integers(0, 99), min_size=1),
)
def test_blocks_of_records_end_by_their_texts(folder, rows, format_, slice_bytes, chunk, labels):
    """However the file is sliced, and whatever other fields hold."""

    def data(rows: list[dict[str, Any]]) -> bytes:
        if format_ == "jsonl":
            return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, ["label", "text", "pair"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue().encode()

    limits = BlockLimits(60, 1 << 30, 7, 128)
    how = {"format": format_, "pair_field": "pair"}
    whole = cut(folder / "a.txt", data(rows), limits, **how)
    with chunks_of(chunk):
        assert cut(folder / "a.txt", data(rows), limits, slice_bytes=slice_bytes, **how) == whole
        assert cut(folder / "a.txt.gz", data(rows), limits, **how) == whole
    others = [row | {"label": labels[number % len(labels)]} for number, row in enumerate(rows)]
    again = cut(folder / "a.txt", data(others), limits, **how)
    assert [block[1:3] for block in again] == [block[1:3] for block in whole]


def random_text(seed: int, count: int) -> list[bytes]:
    drawn = random.Random(seed)
    return [b"%d %s\n" % (number, b"x" * drawn.randrange(100)) for number in range(count)]


def test_an_edit_moves_the_cuts_of_its_neighbourhood_only(folder):
    limits = BlockLimits(2000, 1 << 30, 1 << 30, 128)
    lines = random_text(0, 600)
    before = {sha256 for *_, sha256, _ in cut(folder / "a.txt", b"".join(lines), limits)}
    drawn = random.Random(1)
    changed_bytes = []
    for number in range(15):
        place = drawn.randrange(len(lines))
        edited = [
            [*lines[:place], b"changed\n", *lines[place + 1 :]],
            [*lines[:place], b"inserted\n", *lines[place:]],
            [*lines[:place], *lines[place + 1 :]],
        ][number % 3]
        blocks = cut(folder / "a.txt", b"".join(edited), limits, slice_bytes=9_997)
        changed_bytes.append(sum(len(content) for content, *_, sha256, _ in blocks if sha256 not in before))
    assert np.mean(changed_bytes) < 2000
    assert max(changed_bytes) < 3 * 2000


def test_sizes_of_blocks(folder):
    """Of lines that differ; the figures of `docs/scale.md`, as shares of a full block."""
    blocks = cut(folder / "a.txt", b"".join(random_text(0, 10_000)), BlockLimits(2000, 1 << 30, 1 << 30, 128))
    shares = np.array([len(content) for content, *_ in blocks[:-1]]) / 2000
    assert 0.6 < shares.mean() < 0.7
    assert shares.min() >= 0.25
    assert shares.max() < 1.1


@pytest.mark.parametrize("line", [b"same line\n", b"a candidate: 79\n", b"d" * 70 + b"\n", b"\n"])
def test_equal_lines_fill_their_blocks(folder, line):
    """Whether all of them are candidates or none is."""
    limits = BlockLimits(2_000, 1 << 30, 1 << 30, 128, edit_tokens=1 << 30)
    blocks = cut(folder / "a.txt", line * 2_500, limits, slice_bytes=1234)
    assert {len(content) for content, *_ in blocks[:-1]} == {-(-2_000 // len(line)) * len(line)}


BLANK, HIGH = b"\n", b"same line\n"
LINES_BY_HASH = sorted((b"line %d\n" % number for number in range(10_000)), key=zlib.crc32)
# Both are candidates, of blocks of 2,000 lines.
LOW, MIDDLE = LINES_BY_HASH[0], LINES_BY_HASH[40]


@pytest.mark.parametrize(
    "lines",
    [
        [b"the bank\n", *[BLANK] * 60_000],
        [LOW] * 20_000,
        # Ranges with too many candidates, next to others with a few and with none.
        ([HIGH] * 3_000 + [MIDDLE] * 3 + [HIGH] * 400 + [LOW] * 2_500) * 6,
        ([HIGH] * 5_200 + [LOW]) * 10,
        [b"%d\n" % (number % 977) for number in range(40_000)],
        [b"x" * 99 + b"\n", *[HIGH] * 3_000] * 5,  # a record that is alone
    ],
    ids=["blank", "all candidates", "some ranges", "every other block", "numbers", "long"],
)
def test_any_content_is_cut_in_a_few_passes(folder, monkeypatch, lines):
    data, limits = b"".join(lines), BlockLimits(1 << 30, 10_000, 1 << 30, 128)
    read = storage.read_chunks
    num_bytes = 0

    def counted(*arguments: Any) -> Any:
        nonlocal num_bytes
        for chunk in read(*arguments):
            num_bytes += len(chunk)
            yield chunk

    with monkeypatch.context() as patch:
        patch.setattr(storage, "read_chunks", counted)
        blocks = cut(folder / "a.txt", data, limits, slice_bytes=29_999, max_record_bytes=90)
    assert [content for content, *_ in blocks] == blocks_of(lines, limits, 90)
    assert num_bytes < 5 * len(data)


def test_a_block_has_as_many_tokens_as_an_edit_may_cost(folder):
    lines = random_text(0, 3000)
    limits = BlockLimits(1 << 30, 100_000, 1 << 30, 128, edit_tokens=1_000)
    tokens = [
        sum(2 + len(line) // 4 for line in content.splitlines(keepends=True))
        for content, *_ in cut(folder / "a.txt", b"".join(lines), limits)
    ]
    assert 600 < np.mean(tokens[:-1]) < 700
