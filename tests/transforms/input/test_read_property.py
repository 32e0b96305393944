"""Slices and blocks of any bytes against a plain reading of the file: each record once, in its place, however cut."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from corpora import chunks_of, counted_files, read_file, texts_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Slice, TextBlock
from layerbeam.transforms.flow.commits import Commit, InputFile
from layerbeam.transforms.input.content import contradiction
from layerbeam.transforms.read.block import read_block, read_blocks
from layerbeam.transforms.settings import LINES, BlockLimits, RecordFormat

MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\n\r\x0b\x0c"

# Line ends, marks and what looks like one, white space of ASCII and of Unicode, whole characters and pieces of them.
ATOMS = [
    *(b"\n", b"\n", b"\n", b"\r\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r", b"\r\r\n", b"\n\r"),
    *(MARK, MARK, b"\xef", b"\xef\xbb", b"\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xff", b"\xfe", b"\x00\n"),
    *(b" ", b" ", b"\t", b"\x0b", b"\x0c", b"\x00", b"\x1c", b"\x1f", b"\x85", b"\xc2\x85", b"\xc2\xa0"),
    *(b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xe3\x80\x80", b"\xe2\x80\x8b", b"\xef\xbf\xbf", b"\xef\xbf\xbd"),
    *(b"a", b"a", b"bc", b"a word", b"\xc3\xa4", b"\xe6\xbc\xa2", b"\xf0\x9f\x98\x80", b"\xcc\x81"),
    *(b"\xc3", b"\xe6\xbc", b"\xf0\x9f", b"\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xf5", b"\x7f"),
]
ANY_BYTES = (
    st.lists(st.sampled_from(ATOMS) | st.binary(min_size=1, max_size=3), max_size=40)
    .map(b"".join)
    .filter(lambda data: contradiction(data, LINES) is None)
)
LIMITS = st.builds(BlockLimits, st.integers(1, 40), st.integers(1, 30), st.integers(1, 6), st.integers(3, 10))
PLENTY = BlockLimits(1 << 30, 1 << 30, 1 << 30, 128)


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a file is cut up, and how many of its bytes come at once."""

    limits: BlockLimits = PLENTY
    slice_bytes: int = 1 << 20
    chunk_bytes: int = 1 << 20


CUTS = st.builds(Cut, LIMITS, st.integers(1, 40) | st.just(1 << 20), st.integers(1, 40) | st.just(1 << 20))


@dataclasses.dataclass(frozen=True)
class Record:
    """A record as the reference has it: bytes [begin, stop) of the file and the number of its first line."""

    line: int
    begin: int
    stop: int
    raw: bytes

    @property
    def text(self) -> str | None:
        """None where the bytes are no UTF-8."""
        try:
            return self.raw.decode()
        except UnicodeDecodeError:
            return None


def plain_lines(data: bytes) -> list[Record]:
    """The file's lines; [begin, stop) without byte order mark and line end, as `raw`."""
    lines, begin = [], 0
    for number, line in enumerate(data.split(b"\n")):
        is_last = begin + len(line) == len(data)
        if is_last and not line:
            break
        text_begin = begin + (len(MARK) if number == 0 and line.startswith(MARK) else 0)
        stop = begin + len(line)
        if not is_last and stop > text_begin and line.endswith(b"\r"):
            stop -= 1
        lines.append(Record(number, text_begin, stop, data[text_begin:stop]))
        begin += len(line) + 1
    return lines


def plain_paragraphs(data: bytes) -> list[Record]:
    """Runs of lines that are not blank."""
    found: list[Record] = []
    after_blank = True
    for line in plain_lines(data):
        if not line.raw.strip(BLANKS):
            after_blank = True
        elif after_blank:
            found.append(line)
            after_blank = False
        else:
            first = found.pop()
            found.append(Record(first.line, first.begin, line.stop, data[first.begin : line.stop]))
    return found


def plain_file(data: bytes) -> list[Record]:
    begin = len(MARK) if data.startswith(MARK) else 0
    return [Record(0, begin, len(data), data[begin:])] if data else []


PLAIN = {"line": plain_lines, "paragraph": plain_paragraphs, "file": plain_file}
RECORDS = st.sampled_from(sorted(PLAIN))


def expected_text(record: Record, kind: str) -> str | None:
    """What is embedded of a record; None where it is rejected."""
    return record.text.replace("\r\n", "\n") if kind == "paragraph" and record.text is not None else record.text


def is_utf16(data: bytes) -> bool:
    return data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))  # the last one is of UTF-32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all examples, which write over one another."""
    return tmp_path_factory.mktemp("any")


def read(path: Path, cut: Cut, **how: Any) -> list[Any]:
    with chunks_of(cut.chunk_bytes):
        return read_file(path, cut.limits, slice_bytes=cut.slice_bytes, **how)


def write_plain(folder: Path, data: bytes) -> Path:
    path = folder / "any.txt"
    path.write_bytes(data)
    return path


def write_gzip(folder: Path, data: bytes, seam: int) -> Path:
    """Two members, stored as they are: so the bytes come in the pieces in which the file is read."""
    path = folder / "any.txt.gz"
    path.write_bytes(b"".join(gzip.compress(part, 0) for part in (data[:seam], data[seam:])))
    return path


def line_number(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place)


def check_blocks(items: Sequence[Any], data: bytes, kind: str) -> None:
    """The blocks follow one another without gap or overlap, and say of themselves what is true."""
    position = None
    for item in items:
        assert isinstance(item, TextBlock)
        block = item.files[0]
        assert block.first_byte < block.end_byte or not data
        assert block.first_byte == (position or 0)
        assert block.first_line == line_number(data, block.first_byte)
        assert block.first_byte == 0 or data[block.first_byte - 1 : block.first_byte] == b"\n"
        assert block.num_lines == len(plain_lines(data[block.first_byte : block.end_byte]))
        assert metrics.unbalanced(item.counts) is None
        position = block.end_byte
    assert (position or 0) == len(data)
    assert [item.files[0].is_last for item in items] == [False] * (len(items) - 1) + [True] * bool(items)


def check_records(items: Sequence[TextBlock], expected: Sequence[Record], kind: str, *, keep_blank: bool) -> None:
    """Each record comes once: as a text, as a reject or counted as blank."""
    texts = [(record.line, expected_text(record, kind)) for record in expected]
    accepted = [(line, text) for line, text in texts if text is not None and (keep_blank or text.strip())]
    assert texts_of(items) == accepted
    rejected = [(r.line, r.begin, r.raw) for r in expected if r.text is None]
    assert [(r.line, r.byte_offset, r.raw) for item in items for r in item.rejected] == rejected
    counts = metrics.total([item.counts for item in items])
    of_kind = (counts.get(metrics.RECORDS, 0), counts.get(metrics.EMBEDDED, 0), counts.get(metrics.REJECTED, 0))
    assert of_kind == (len(expected), len(accepted), len(rejected))
    assert counts.get(metrics.BLANK, 0) == len(expected) - len(accepted) - len(rejected)


def is_full(lengths: Sequence[int], limits: BlockLimits) -> bool:
    tokens = sum(min(2 + length // 4, limits.max_seq_length) for length in lengths)
    return sum(lengths) >= limits.text_bytes or tokens >= limits.token_rows or len(lengths) >= limits.text_rows


def lengths_in(item: TextBlock, data: bytes, kind: str) -> list[int]:
    """Bytes of each record of a block, to where the next one begins; blank lines at the file's start do not count."""
    block = item.files[0]
    lines = range(block.first_line, block.first_line + block.num_lines)
    begins = [data.rfind(b"\n", 0, record.begin) + 1 for record in PLAIN[kind](data) if record.line in lines]
    places = [*begins, block.end_byte]
    return [end - begin for begin, end in itertools.pairwise(places)]


@settings(max_examples=150)
@given(data=ANY_BYTES, cut=CUTS, kind=RECORDS, keep_blank=st.booleans(), seam=st.none() | st.integers(0, 60))
@example(data=b"\xef\xbb\xbf\na", cut=Cut(slice_bytes=3), kind="paragraph", keep_blank=False, seam=None)
@example(
    data=b"\xef\xbb\xbf    \na", cut=Cut(slice_bytes=6, chunk_bytes=4), kind="paragraph", keep_blank=False, seam=None
)
@example(data=b"\xff\xfe\n\na", cut=Cut(slice_bytes=1), kind="paragraph", keep_blank=False, seam=None)
def test_every_record_comes_once(
    folder: Path, data: bytes, cut: Cut, kind: str, keep_blank: bool, seam: int | None
) -> None:
    """Of a plain file, or of a compressed one with a member that ends at `seam`."""
    path = write_plain(folder, data) if seam is None else write_gzip(folder, data, seam)
    how = {"record": kind, "blank": "keep" if keep_blank else "skip"}
    items = read(path, cut, **how)
    if is_utf16(data):
        assert [type(item) for item in items] == [InputFile]
        return
    check_blocks(items, data, kind)
    check_records(items, PLAIN[kind](data), kind, keep_blank=keep_blank)
    for item in items if seam is None else ():
        assert read_block(item.files, RecordFormat(**how)).texts.equals(item.texts)


@settings(max_examples=66)
@given(data=ANY_BYTES, limits=LIMITS, one=st.integers(1, 40), other=st.integers(1, 40), kind=RECORDS)
def test_blocks_do_not_depend_on_chunks(
    folder: Path, data: bytes, limits: BlockLimits, one: int, other: int, kind: str
) -> None:
    path = write_plain(folder, data)
    first, second = (read(path, Cut(limits, 20, chunk_bytes), record=kind) for chunk_bytes in (one, other))
    if not is_utf16(data):
        assert [item.files[0] for item in first] == [item.files[0] for item in second]


@settings(max_examples=66)
@given(data=ANY_BYTES, cut=CUTS, kind=st.sampled_from(["line", "paragraph"]), seam=st.integers(0, 60))
def test_a_block_ends_with_the_record_that_fills_it_or_before(
    folder: Path, data: bytes, cut: Cut, kind: str, seam: int
) -> None:
    plain = read(write_plain(folder, data), cut, record=kind)
    packed = read(write_gzip(folder, data, seam), cut, record=kind)
    if is_utf16(data):
        return
    for item in plain + packed:
        assert not is_full(lengths_in(item, data, kind)[:-1], cut.limits)


@settings(max_examples=66)
@given(data=ANY_BYTES, cut=CUTS, kind=RECORDS, packed=st.booleans(), pick=st.randoms(use_true_random=False))
def test_what_is_done_comes_as_its_commit_and_nothing_else(
    folder: Path, data: bytes, cut: Cut, kind: str, packed: bool, pick: Any
) -> None:
    path = write_gzip(folder, data, 7) if packed else write_plain(folder, data)
    if is_utf16(data):
        return
    items = read(path, cut, record=kind)
    done = [pick.random() < 0.5 for _ in items]
    kept = [item for item, is_done in zip(items, done, strict=True) if is_done]
    pick.shuffle(kept)
    again = read(path, cut, record=kind, done=kept)
    assert len(again) == len(items)
    for item, is_done, now in zip(items, done, again, strict=True):
        if is_done:
            assert isinstance(now, Commit)
            assert now.files == counted_files(item)
        else:
            assert isinstance(now, TextBlock)
            assert now.files == item.files
            assert texts_of([now]) == texts_of([item])
            assert now.rejected == item.rejected


@settings(max_examples=66)
@given(data=ANY_BYTES, cut=CUTS, kind=RECORDS, place=st.integers(0, 80), gone=st.integers(0, 9), new=ANY_BYTES)
def test_commits_of_changed_file_have_equal_texts(
    folder: Path, data: bytes, cut: Cut, kind: str, place: int, gone: int, new: bytes
) -> None:
    changed = data[:place] + new[:9] + data[place + gone :]
    if is_utf16(data) or is_utf16(changed) or contradiction(changed, LINES):
        return
    before = read(write_plain(folder, data), cut, record=kind)
    path = write_plain(folder, changed)
    fresh = read(path, cut, record=kind)
    items = read(path, cut, record=kind, done=before)
    decoded = {(item.files[0].first_byte == 0, item.files[0].sha256): item for item in before}
    assert [dataclasses.replace(item.files[0], counts={}) for item in items] == [item.files[0] for item in fresh]
    for item, expected in zip(items, fresh, strict=True):
        if isinstance(item, Commit):
            (own,) = item.files
            of_old = decoded[own.first_byte == 0, own.sha256]
            moved = own.first_line - of_old.files[0].first_line
            assert item.files == counted_files(expected)
            assert [(line + moved, text) for line, text in texts_of([of_old])] == texts_of([expected])
        else:
            assert texts_of([item]) == texts_of([expected])


@settings(max_examples=66)
@given(files=st.lists(ANY_BYTES.filter(bool), min_size=2, max_size=6), cut=CUTS, kind=RECORDS, keep_blank=st.booleans())
def test_files_read_together_equal_files_read_alone(folder, files, cut, kind, keep_blank):
    """Each text with its place in its own file, each reject, and the counts of each file."""
    how = {"record": kind, "blank": "keep" if keep_blank else "skip"}
    paths = [folder / f"{number}.txt" for number in range(len(files))]
    alone: dict[str, list[Any]] = {}
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
        alone[str(path)] = read(path, cut, **how)
    first, *others = storage.find_files([str(path) for path in paths])
    together = Slice(first, 0, first.size, 0, others=tuple(others))
    with chunks_of(cut.chunk_bytes):
        items = list(read_blocks(together, cut.limits, RecordFormat(**how)))

    found = {path: Found() for path in alone}
    for item in items:
        if isinstance(item, InputFile):
            found[item.path].skipped.append(item)
            continue
        assert len({*item.line.tolist()}) == len(item.line)
        numbers, lines = (values.tolist() for values in item.file_lines(item.line))
        for number, line, text in zip(numbers, lines, item.texts.to_pylist(), strict=True):
            found[item.files[number].file.path].texts.append((line, text))
        for number, block in enumerate(item.files):
            found[block.file.path].add({name: int(values[number]) for name, values in item.counts.items()})
        for reject in item.rejected:
            found[reject.file].rejects.append(reject)
    for path, expected in alone.items():
        blocks = [item for item in expected if isinstance(item, TextBlock)]
        skipped = [item for item in expected if isinstance(item, InputFile)]
        assert found[path].skipped == skipped
        if not skipped:
            assert found[path].texts == texts_of(blocks)
            assert found[path].rejects == [reject for block in blocks for reject in block.rejected]
            assert found[path].counts == metrics.total([block.counts for block in blocks])


@dataclasses.dataclass
class Found:
    """What the blocks have of one file."""

    texts: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    rejects: list[Any] = dataclasses.field(default_factory=list)
    skipped: list[InputFile] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, counts: dict[str, int]) -> None:
        self.counts = metrics.total([self.counts, counts])
