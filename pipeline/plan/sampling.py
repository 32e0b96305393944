"""A stratified random sample of a corpus: chunks from which the contents of all input files are estimated.

Files of one kind and similar size form a stratum, which gets a fraction of the budget by its bytes. A record belongs to
the chunk that holds its first byte, as in `layerbeam.transforms.slice.slices`.

* Text and JSON Lines: a chunk is 32 KiB anywhere in a file.
* Files that are one record each: a chunk is a file.
* Compressed files are read at the start only; the compression ratio there gives the amount of text in the rest.
* Parquet row groups are read at the start only; the footer gives the size of the rest.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import BinaryIO, Literal, cast

import numpy as np
import pyarrow.compute as pc

from layerbeam.pipeline.config.job import Job
from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Int64Array, Slice, TextBlock
from layerbeam.transforms.commits import SkippedFile
from layerbeam.transforms.input.lines import refuse_other_encoding
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, scan_range

Kind = Literal["ranges", "files", "compressed", "parquet"]

CHUNK_BYTES = 1 << 15
_NO_LIMIT = 1 << 60
_SIZE_CLASS = 4  # the largest file of a stratum is less than four times the smallest
_MIN_CHUNKS = 8  # of a stratum, to see how much its chunks differ
_UNPACKED_BYTES = 2 << 20  # tells the compression ratio: a block of bzip2 is up to 900 kB
_STORED_READ_BYTES = 1 << 12
_READERS = 8  # threads that wait for object stores


@dataclasses.dataclass(frozen=True)
class Budget:
    """Approximate upper limits of a sample: bytes of text, and chunks."""

    text_bytes: int
    chunks: int


@dataclasses.dataclass
class Chunk:
    """A sampled piece of a file. `block`: its texts; None if there are none. `problem`: why the file cannot be read.

    `size`: the amount of the stratum's `total` that it represents, which is `scale` times the amount read. The rest is
    counted by `layerbeam.pipeline.plan.estimate`. `weight`: how many such chunks the corpus has. `lengths`: the tokens
    of each text with [CLS] and [SEP], before truncation. `forms`: the word types of each view that has them.
    """

    path: str
    size: float
    block: TextBlock | None = None
    scale: float = 1.0
    problem: str | None = None
    weight: float = 0.0
    statistics: dict[str, float] = dataclasses.field(default_factory=dict)
    lengths: Int64Array = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    reject_reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    forms: dict[str, set[str]] = dataclasses.field(default_factory=dict)

    def __getitem__(self, statistic: str) -> float:
        return self.statistics.get(statistic, 0.0)


@dataclasses.dataclass(frozen=True)
class Stratum:
    """Files of one kind and similar size, with the chunks sampled from them.

    `total`: stored bytes still to do, or the number of files if each is a record.
    """

    kind: Kind
    files: list[FileToRead]
    total: float
    chunks: list[Chunk]

    @property
    def weight(self) -> float:
        """Sampling weight: how many chunks of the corpus each sampled chunk represents."""
        sampled = sum(chunk.size for chunk in self.chunks)
        return self.total / sampled if sampled else 0.0

    @property
    def fraction_read(self) -> float:
        """The part of `total` that was read, from 0 to 1."""
        read = sum(chunk.size / chunk.scale for chunk in self.chunks)
        return min(read / self.total, 1.0) if self.total else 1.0


def draw(job: Job, files: Sequence[FileToRead], budget: Budget, seed: int) -> list[Stratum]:
    """The strata of these files, with the chunks sampled from each. The same seed gives the same chunks."""
    groups: dict[tuple[Kind, int], list[FileToRead]] = collections.defaultdict(list)
    for file in files:
        kind = _kind_of(file.file.path, job.records)
        # An empty file has no record, but is not valid as a compressed or Parquet file.
        if file.file.size or kind == "parquet" or storage.is_compressed(file.file.path):
            groups[kind, int(math.log(max(file.file.size, 1), _SIZE_CLASS))].append(file)
    num_bytes = sum(file.file.size for file in files)
    fits = num_bytes <= budget.text_bytes and num_bytes // CHUNK_BYTES + len(files) <= budget.chunks
    strata = []
    with ThreadPoolExecutor(_READERS) as readers:
        sampler = _Sampler(job.records, job.limits, random.Random(seed), readers)  # noqa: S311 - not a secret
        for (kind, _), group in sorted(groups.items()):
            fraction = 1.0 if fits else sum(file.file.size for file in group) / max(num_bytes, 1)
            part = Budget(math.ceil(budget.text_bytes * fraction), math.ceil(budget.chunks * fraction))
            strata.append(sampler.draw(kind, group, part))
    return strata


def _kind_of(path: str, record_format: RecordFormat) -> Kind:
    if record_format.format == "parquet":
        return "parquet"
    if record_format.is_whole_file:
        return "files"
    return "compressed" if storage.is_compressed(path) else "ranges"


def _ranges_left(file: FileToRead) -> list[tuple[int, int]]:
    """The byte ranges of a file that no commit covers."""
    done = sorted((commit.block.first_byte, commit.block.end_byte) for commit in file.reusable_commits)
    left, position = [], 0
    for first, end in [*done, (file.file.size, file.file.size)]:
        if first > position:
            left.append((position, first))
        position = max(position, end)
    return left


def text_bytes(block: TextBlock, *, parquet: bool) -> int:
    """Decompressed bytes that the block was read from; of Parquet the bytes of its texts."""
    return int(pc.binary_length(block.texts).to_numpy().sum()) if parquet else _length(block)


def _length(block: TextBlock) -> int:
    return block.block.end_byte - block.block.first_byte


def _limits(block_bytes: int) -> BlockLimits:
    return BlockLimits(block_bytes, _NO_LIMIT, _NO_LIMIT, _NO_LIMIT)


@dataclasses.dataclass(frozen=True)
class _Sampler:
    """Samples files of each kind. `limits`: where the run cuts blocks."""

    record_format: RecordFormat
    limits: BlockLimits
    rng: random.Random
    readers: ThreadPoolExecutor

    def draw(self, kind: Kind, files: list[FileToRead], budget: Budget) -> Stratum:
        if kind == "ranges":
            return self._draw_ranges(files, budget)
        if kind == "files":
            mean = max(sum(file.file.size for file in files) / len(files), 1)
            slices = [Slice(files[i].file, 0, None, 0) for i in self._sample(len(files), budget, mean)]
            chunks = self.readers.map(self._read_chunk, slices, itertools.repeat(1))
            return Stratum("files", files, len(files), list(chunks))
        return self._draw_starts(kind, files, budget)

    def _sample(self, population: int, budget: Budget, chunk_bytes: float) -> list[int]:
        """Numbers below `population` in random order: as many chunks of this size as the budget allows."""
        least = _MIN_CHUNKS if chunk_bytes <= _UNPACKED_BYTES else 2  # a record may be a large file
        count = max(min(budget.chunks, math.ceil(budget.text_bytes / chunk_bytes)), least)
        return self.rng.sample(range(population), min(population, count))

    def _draw_ranges(self, files: list[FileToRead], budget: Budget) -> Stratum:
        ranges = [(file.file, start, end) for file in files for start, end in _ranges_left(file)]
        total = sum(end - start for _, start, end in ranges)
        ends = list(itertools.accumulate(-(-(end - start) // CHUNK_BYTES) for _, start, end in ranges))  # in chunks
        num_chunks = ends[-1] if ends else 0

        def read(index: int) -> Chunk:
            number = bisect_right(ends, index)
            file, first, last = ranges[number]
            start = first + (index - ends[number - 1] if number else index) * CHUNK_BYTES
            end = min(start + CHUNK_BYTES, last)
            try:
                if start > 0:
                    with storage.open_binary(file.path) as opened:
                        refuse_other_encoding(opened.read(4), self.record_format.encoding)
            except OSError as error:
                return Chunk(file.path, end - start, problem=storage.reason_of(error))
            return self._read_chunk(Slice(file, start, end, 0), end - start)

        sampled = self._sample(num_chunks, budget, max(total / max(num_chunks, 1), 1))
        return Stratum("ranges", files, total, list(self.readers.map(read, sorted(sampled))))

    def _read_chunk(self, slice_: Slice, size: float) -> Chunk:
        blocks, problem, _ = self._read_start(slice_, _limits(_NO_LIMIT))
        block = blocks[0] if blocks and problem is None else None
        return Chunk(slice_.file.path, size, block, problem=problem)

    def _read_start(
        self, slice_: Slice, limits: BlockLimits, max_bytes: int = _NO_LIMIT
    ) -> tuple[list[TextBlock], str | None, bool]:
        """(first blocks of a slice, until they have `max_bytes`; why it cannot be read; whether these are all)."""
        blocks: list[TextBlock] = []
        for item in read_blocks(slice_, limits, self.record_format):
            if isinstance(item, SkippedFile):
                return blocks, item.reason, True
            blocks.append(cast(TextBlock, item))  # the slice has no commits
            max_bytes -= text_bytes(blocks[-1], parquet=self.record_format.format == "parquet")
            if max_bytes <= 0:
                return blocks, None, False
        return blocks, None, True

    def _draw_starts(self, kind: Kind, files: list[FileToRead], budget: Budget) -> Stratum:
        sampled = [files[index] for index in self._sample(len(files), budget, CHUNK_BYTES)]
        each = Budget(max(budget.text_bytes // len(sampled), CHUNK_BYTES), budget.chunks // len(sampled))
        seeds = [self.rng.random() for _ in sampled]
        read = self._read_parquet if kind == "parquet" else self._read_compressed
        chunks = [chunk for found in self.readers.map(read, sampled, itertools.repeat(each), seeds) for chunk in found]
        # Positions count bytes of text in compressed files, stored bytes in Parquet.
        positions = sum(_length(chunk.block) * chunk.scale for chunk in chunks if chunk.block is not None)
        ratio = sum(chunk.size for chunk in chunks) / positions if positions else 1.0
        done = [sum(c.block.end_byte - c.block.first_byte for c in file.reusable_commits) for file in files]
        total = sum(max(file.file.size - size * ratio, 0.0) for file, size in zip(files, done, strict=True))
        return Stratum(kind, files, total, chunks)

    def _read_compressed(self, work: FileToRead, budget: Budget, _: float) -> list[Chunk]:
        """Chunks of the file's start."""
        file, slice_ = work.file, Slice(work.file, 0, None, 0)
        try:
            stored, unpacked, is_whole = unpack(file.path, max(_UNPACKED_BYTES, budget.text_bytes))
        except OSError as error:
            return self._read_damaged(slice_, budget, storage.reason_of(error))
        blocks, problem, is_all = self._read_start(slice_, _limits(CHUNK_BYTES), budget.text_bytes)
        if problem is not None:
            return self._read_damaged(slice_, budget, problem)
        if not blocks:
            return [Chunk(file.path, file.size)]
        text = unpacked if is_whole else file.size * unpacked / stored
        scale = 1.0 if is_all else max(text / sum(map(_length, blocks)), 1.0)
        return _chunks_of(file.path, file.size, blocks, scale)

    def _read_damaged(self, slice_: Slice, budget: Budget, problem: str) -> list[Chunk]:
        """The blocks before the damage, cut as in a run, which embeds them."""
        path, size = slice_.file.path, slice_.file.size
        blocks, _, _ = self._read_start(slice_, self.limits, max(_UNPACKED_BYTES, budget.text_bytes))
        return [*_chunks_of(path, size, blocks), Chunk(path, 0 if blocks else size, problem=problem)]

    def _read_parquet(self, work: FileToRead, budget: Budget, seed: float) -> list[Chunk]:
        """Chunks of the starts of random row groups."""
        path, size = work.file.path, work.file.size
        scanned = scan_range(work, 0, None, _limits(1), self.record_format)  # one piece per row group
        if scanned.problem is not None or not scanned.pieces:
            return [Chunk(path, size, problem=scanned.problem)]
        stored = scanned.pieces[-1][1] or 0
        mean = max(min(stored // len(scanned.pieces), CHUNK_BYTES), 1)
        count = min(len(scanned.pieces), max(min(budget.text_bytes // mean, budget.chunks), 2))
        blocks: list[TextBlock] = []
        for start, end, _ in random.Random(seed).sample(scanned.pieces, count):  # noqa: S311 - not a secret
            slice_ = Slice(work.file, start, end, 0)
            found, problem, _ = self._read_start(slice_, _limits(CHUNK_BYTES), budget.text_bytes // count)
            if problem is not None:
                return [Chunk(path, size, problem=problem)]
            blocks += found
        read = max(sum(map(_length, blocks)), 1)
        return _chunks_of(path, size, blocks, max(stored / read, 1.0))


def _chunks_of(path: str, size: int, blocks: list[TextBlock], scale: float = 1.0) -> list[Chunk]:
    """Chunks that together represent a whole file of this size, in proportion to their lengths."""
    total = sum(map(_length, blocks)) or 1
    return [Chunk(path, size * _length(block) / total, block, scale) for block in blocks]


def unpack(path: str, max_bytes: int) -> tuple[int, int, bool]:
    """(stored bytes, decompressed bytes, whether that is the whole file) of the start of a compressed file."""
    unpacked = 0
    with storage.open_binary(path) as file:
        # Small reads: the position then tells closely how many stored bytes gave this much text.
        small_reads = SimpleNamespace(read=lambda size: file.read(min(size, _STORED_READ_BYTES)))
        for data in storage.read_chunks(cast(BinaryIO, small_reads), path):
            unpacked += len(data)
            if unpacked >= max_bytes:
                return file.tell(), unpacked, False
        return file.tell(), unpacked, True
