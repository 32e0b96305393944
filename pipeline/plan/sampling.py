"""A sample of a corpus: records from places drawn at random, so that what is left to read can be told from them.

Files are put in strata by size, and places are shared out by bytes, so ten thousand small files, a few huge ones and
any mixture of them are all seen. Each record belongs to the place in which its first byte lies, as in
`layerbeam.transforms.slice.slices`: long records are neither drawn more often than short ones nor less.

* Text and JSON Lines: a place is 32 KiB of a file. Any part of a file is as likely as any other.
* A file that is one record: a place is a file.
* Compressed files are read from their beginning, and how much text is in the rest is told by what that unpacks to.
* Parquet: a place is the beginning of a row group, with the footer's account of the rest.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Literal, cast

import pyarrow.compute as pc

from layerbeam.pipeline.config.job import Job
from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.commits import SkippedFile
from layerbeam.transforms.input.lines import refuse_other_encoding
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, scan_range

Kind = Literal["ranges", "files", "beginnings", "row groups"]

PLACE_BYTES = 1 << 15
_NO_LIMIT = 1 << 60
# A stratum holds files of one to four times a size.
_SIZE_CLASS = 4
# At least two places tell how much places differ.
_FEWEST = 2
# What is decompressed to learn what the stored bytes unpack to; a block of bzip2 is up to 900 kB.
_UNPACKED_BYTES = 2 << 20
_STORED_READ = 1 << 12
# Places of one file where a file is not read from anywhere: what is wanted is to see many files.
_OF_A_FILE = 2
# Waiting for an object store, not computing.
_READERS = 8


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much is read at most, about: bytes of text, and places."""

    text_bytes: int
    places: int


@dataclasses.dataclass(frozen=True)
class Place:
    """What was drawn. `block`: its texts, None where there are none.

    `size`: how much of the stratum's `total` it stands for, `scale` times what was read of it.
    """

    path: str
    size: float
    block: TextBlock | None = None
    scale: float = 1.0
    left_out: str | None = None


@dataclasses.dataclass
class Stratum:
    """Files of like size, and the places drawn from them.

    `total`: bytes that are left to do (as stored), or files where each is a record. `stored_share`: stored bytes per
    byte of text.
    """

    kind: Kind
    files: list[FileToRead]
    total: float
    places: list[Place]
    stored_share: float = 1.0

    @property
    def weight(self) -> float:
        """How many like it each place has, itself and what it stands for included."""
        drawn = sum(place.size for place in self.places)
        return self.total / drawn if drawn else 0.0

    @property
    def share_read(self) -> float:
        """How much of `total` was read, from 0 to 1."""
        read = sum(place.size / place.scale for place in self.places)
        return min(read / self.total, 1.0) if self.total else 1.0


def draw(job: Job, files: Sequence[FileToRead], budget: Budget, seed: int) -> list[Stratum]:
    """The strata of these files, with the places drawn from each. The same seed draws the same places."""
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    groups: dict[tuple[Kind, int], list[FileToRead]] = collections.defaultdict(list)
    for file in files:
        kind = _kind_of(file, job.records)
        # What is empty is no record, and no compressed or Parquet file.
        if file.file.size or kind == "row groups" or storage.is_compressed(file.file.path):
            groups[kind, int(math.log(max(file.file.size, 1), _SIZE_CLASS))].append(file)
    sizes = [sum(file.file.size for file in group) for group in groups.values()]
    counts = [_num_places(kind, group) for (kind, _), group in groups.items()]
    strata = []
    with ThreadPoolExecutor(_READERS) as readers:
        for (key, group), size, count in sorted(
            zip(groups.items(), sizes, counts, strict=True), key=lambda it: it[0][0]
        ):
            share = size / max(sum(sizes), 1)
            if sum(counts) <= budget.places and sum(sizes) <= budget.text_bytes:
                part = Budget(budget.text_bytes, budget.places)
            else:
                # By bytes, which a huge file has, and by places, for small files may differ more than large ones.
                places = math.ceil(budget.places * (share + count / sum(counts)) / 2)
                part = Budget(math.ceil(budget.text_bytes * share), max(places, _FEWEST))
            strata.append(_DRAW[key[0]](job, group, part, rng, readers))
    return strata


def _num_places(kind: Kind, files: Sequence[FileToRead]) -> int:
    if kind in ("files", "beginnings"):
        return len(files)
    return sum(-(-file.file.size // PLACE_BYTES) for file in files)


def _kind_of(file: FileToRead, record_format: RecordFormat) -> Kind:
    if record_format.format == "parquet":
        return "row groups"
    if record_format.is_whole_file:
        return "files"
    return "beginnings" if storage.is_compressed(file.file.path) else "ranges"


def some_of(population: int, count: int, rng: random.Random) -> list[int]:
    """`count` of the numbers below `population`, any as likely as any other; all of them where it is fewer."""
    return list(range(population)) if count >= population else sorted(rng.sample(range(population), count))


def ranges_left(file: FileToRead) -> list[tuple[int, int]]:
    """The byte ranges of a file that no commit covers."""
    left, position = [], 0
    for first, end in sorted(_done(file)):
        if first > position:
            left.append((position, first))
        position = max(position, end)
    if position < file.file.size:
        left.append((position, file.file.size))
    return left


def _done(file: FileToRead) -> Iterator[tuple[int, int]]:
    return ((commit.block.first_byte, commit.block.end_byte) for commit in file.reusable_commits)


def _done_bytes(file: FileToRead) -> int:
    return sum(end - first for first, end in _done(file))


def read_place(
    slice_: Slice, limits: BlockLimits, record_format: RecordFormat, *, most: int = _NO_LIMIT
) -> tuple[list[TextBlock], str | None, bool]:
    """(the blocks of a slice until they have `most` bytes, what is wrong with the file, whether that was its end)."""
    blocks: list[TextBlock] = []
    size = 0
    for item in read_blocks(slice_, limits, record_format):
        if isinstance(item, SkippedFile):
            return blocks, item.reason, True
        blocks.append(cast(TextBlock, item))  # no commits were given
        size += text_bytes(blocks[-1], record_format)
        if size >= most:
            return blocks, None, False
    return blocks, None, True


def _limits(text_bytes: int) -> BlockLimits:
    return BlockLimits(text_bytes, _NO_LIMIT, _NO_LIMIT, _NO_LIMIT)


def _one_place(path: str, size: float, slice_: Slice, record_format: RecordFormat) -> Place:
    blocks, problem, _ = read_place(slice_, _limits(_NO_LIMIT), record_format)
    return Place(path, size, blocks[0] if blocks and problem is None else None, left_out=problem)


def _draw_ranges(
    job: Job, files: list[FileToRead], budget: Budget, rng: random.Random, readers: ThreadPoolExecutor
) -> Stratum:
    record_format = job.records
    ranges = [(file, *left) for file in files for left in ranges_left(file)]
    counts = [-(-(end - start) // PLACE_BYTES) for _, start, end in ranges]
    before = list(itertools.accumulate(counts, initial=0))
    total = sum(end - start for _, start, end in ranges)
    count = min(budget.places, math.ceil(budget.text_bytes / min(PLACE_BYTES, max(total / max(before[-1], 1), 1))))

    def read(index: int) -> Place:
        number = bisect.bisect_right(before, index) - 1
        file, first, end = ranges[number]
        start = first + (index - before[number]) * PLACE_BYTES
        end = min(start + PLACE_BYTES, end)
        path = file.file.path
        try:
            if start > 0:
                with storage.open_binary(path) as opened:
                    refuse_other_encoding(opened.read(4), record_format.encoding)
            return _one_place(path, end - start, Slice(file.file, start, end, 0), record_format)
        except OSError as error:
            return Place(path, end - start, left_out=storage.reason_of(error))

    drawn = some_of(before[-1], max(count, _FEWEST), rng)
    return Stratum("ranges", files, total, list(readers.map(read, drawn)))


def _draw_files(
    job: Job, files: list[FileToRead], budget: Budget, rng: random.Random, readers: ThreadPoolExecutor
) -> Stratum:
    record_format = job.records
    mean = sum(file.file.size for file in files) / len(files)
    drawn = some_of(len(files), max(min(budget.places, int(budget.text_bytes / mean)), _FEWEST), rng)

    def read(index: int) -> Place:
        file = files[index].file
        scanned = scan_range(files[index], 0, file.size, _limits(_NO_LIMIT), record_format)
        if scanned.problem is not None:
            return Place(file.path, 1, left_out=scanned.problem)
        return _one_place(file.path, 1, Slice(file, 0, None, 0), record_format)

    return Stratum("files", files, len(files), list(readers.map(read, drawn)))


def _draw_beginnings(
    job: Job, files: list[FileToRead], budget: Budget, rng: random.Random, readers: ThreadPoolExecutor
) -> Stratum:
    record_format = job.records
    drawn = [files[i] for i in some_of(len(files), max(budget.places // _OF_A_FILE, _FEWEST), rng)]
    most = max(budget.text_bytes // len(drawn), 2 * PLACE_BYTES)

    def read(file: FileToRead) -> tuple[list[Place], float | None]:
        path, size = file.file.path, file.file.size
        blocks, problem, is_all = read_place(
            Slice(file.file, 0, None, 0), _limits(PLACE_BYTES), record_format, most=most
        )
        try:
            stored, unpacked, ended = unpack(path, max(_UNPACKED_BYTES, most))
        except OSError as error:
            problem = problem or storage.reason_of(error)
        if problem is not None:  # the blocks before the damage are embedded, and they are those of the run
            blocks, _, _ = read_place(
                Slice(file.file, 0, None, 0), job.limits, record_format, most=max(_UNPACKED_BYTES, most)
            )
        damaged = [Place(path, 0 if blocks else size, left_out=problem)] if problem is not None else []
        if damaged:
            return _of_one_file(path, size, blocks) + damaged, None
        if not blocks:
            return [Place(path, size)], None
        text = unpacked if ended else size * unpacked / stored
        scale = 1.0 if is_all else max(text / sum(map(_length, blocks)), 1.0)
        return _of_one_file(path, size, blocks, scale), size / max(text, 1)

    results = list(readers.map(read, drawn))
    shares = [share for _, share in results if share is not None]
    share = sum(shares) / len(shares) if shares else 1.0
    total = sum(max(file.file.size - _done_bytes(file) * share, 0.0) for file in files)
    return Stratum("beginnings", files, total, [place for places, _ in results for place in places], share)


def text_bytes(block: TextBlock, record_format: RecordFormat) -> int:
    """Bytes that the block was read from, decompressed; of Parquet those of its texts."""
    return int(pc.binary_length(block.texts).to_numpy().sum()) if record_format.format == "parquet" else _length(block)


def _length(block: TextBlock) -> int:
    return block.block.end_byte - block.block.first_byte


def _of_one_file(path: str, size: int, blocks: list[TextBlock], scale: float = 1.0) -> list[Place]:
    """Places that stand for the whole file, by their lengths."""
    all_bytes = sum(map(_length, blocks)) or 1
    return [Place(path, size * _length(block) / all_bytes, block, scale) for block in blocks]


class _SmallReads:
    """A file read a little at a time: how much of it gave so much text is known closely."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.stored = 0

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, _STORED_READ))
        self.stored += len(data)
        return data


def unpack(path: str, most: int) -> tuple[int, int, bool]:
    """(stored bytes, bytes that they unpack to, whether that is all) of the beginning of a compressed file."""
    stored = unpacked = 0
    with storage.open_binary(path) as file:
        small = _SmallReads(file)
        for chunk in storage.read_chunks(cast(BinaryIO, small), path):
            stored, unpacked = small.stored, unpacked + len(chunk)
            if unpacked >= most:
                return stored, unpacked, False
    return small.stored, unpacked, True


def _draw_row_groups(
    job: Job, files: list[FileToRead], budget: Budget, rng: random.Random, readers: ThreadPoolExecutor
) -> Stratum:
    record_format = job.records
    drawn = [files[i] for i in some_of(len(files), max(budget.places // _OF_A_FILE, _FEWEST), rng)]
    of_each = max(min(budget.places, budget.text_bytes // PLACE_BYTES) // len(drawn), _FEWEST)
    seeds = [rng.random() for _ in drawn]

    def read(file: FileToRead, seed: float) -> list[Place]:
        path, size = file.file.path, file.file.size
        scanned = scan_range(file, 0, None, _limits(1), record_format)  # each row group by itself
        if scanned.problem is not None or not scanned.pieces:
            return [Place(path, size, left_out=scanned.problem)]
        blocks: list[TextBlock] = []
        chosen = some_of(len(scanned.pieces), of_each, random.Random(seed))  # noqa: S311
        most = max(budget.text_bytes // (len(drawn) * len(chosen)), 1)
        for index in chosen:
            start, end, _ = scanned.pieces[index]
            found, problem, _ = read_place(
                Slice(file.file, start, end, 0), _limits(PLACE_BYTES), record_format, most=most
            )
            if problem is not None:
                return [Place(path, size, left_out=problem)]
            blocks += found
        read_bytes = sum(map(_length, blocks))
        return _of_one_file(path, size, blocks, max((scanned.pieces[-1][1] or 0) / max(read_bytes, 1), 1.0))

    total = sum(max(file.file.size - _done_bytes(file), 0) for file in files)
    places = [place for found in readers.map(read, drawn, seeds) for place in found]
    blocks = [place.block for place in places if place.block is not None]
    share = sum(map(_length, blocks)) / max(sum(text_bytes(block, record_format) for block in blocks), 1)
    return Stratum("row groups", files, total, places, share or 1.0)


_DRAW: dict[Kind, Callable[..., Stratum]] = {
    "ranges": _draw_ranges,
    "files": _draw_files,
    "beginnings": _draw_beginnings,
    "row groups": _draw_row_groups,
}
