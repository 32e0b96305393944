"""A random sample of a corpus: chunks from which the contents of all input files are estimated.

One chunk is drawn in each of equal strata of all that is left to do, with the files in the order of their sizes. Half
of a chunk's probability is by its bytes, and half is the same for each chunk, so that many small files count. A record
belongs to the chunk that holds its first byte, as in `layerbeam.transforms.slice.slices`.

* Text and JSON Lines: a chunk is up to 32 KiB anywhere in a file.
* Files that are one record each: a chunk is a file.
* Compressed files and CSV files are one chunk each, read at the start only; the compression ratio gives the amount of
  text in the rest.
* A file of which `input.limit` leaves the first records is one chunk.
* Parquet files are one chunk each, read at the start of row groups only; the footer gives the size of the rest.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from layerbeam.pipeline.config.job import Job
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import Int64Array, Slice, TextBlock
from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.input.content import read_head, refuse_other_content
from layerbeam.transforms.input.parquet import find_pieces
from layerbeam.transforms.input.records import UnreadableFileError
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.slice.slices import FileToRead

CHUNK_BYTES = 1 << 15
_UNPACKED_BYTES = 2 << 20  # tells the compression ratio: a block of bzip2 is up to 900 kB
_STORED_READ_BYTES = 1 << 6  # up to 2 MiB of text in Zstandard, 46 MB in bzip2
_RECORD_BYTES = 256  # of a limited file, whose share of the sample it decides
_NO_LIMIT = 1 << 60
_NO_LIMITS = BlockLimits(_NO_LIMIT, _NO_LIMIT, _NO_LIMIT, _NO_LIMIT)
_READERS = 8  # threads that wait for object stores


@dataclasses.dataclass(frozen=True)
class Budget:
    """Approximate upper limits of a sample: bytes of text, and chunks."""

    text_bytes: int
    chunks: int


@dataclasses.dataclass
class Chunk:
    """A sampled piece of a file. `block`: its texts; None if there are none. `problem`: why the file cannot be read.

    `weight`: how many such chunks the corpus has. `sizes`: what it represents of the totals that `draw` returns. The
    rest is counted by `layerbeam.pipeline.run.estimate`. `lengths`: the tokens of each text with [CLS] and [SEP],
    before truncation. `forms`: the word types of each view that has them.
    """

    path: str
    weight: float
    sizes: npt.NDArray[np.float64]
    block: TextBlock | None
    problem: str | None
    statistics: dict[str, float] = dataclasses.field(default_factory=dict)
    lengths: Int64Array = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    reject_reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    forms: dict[str, set[str]] = dataclasses.field(default_factory=dict)

    def __getitem__(self, statistic: str) -> float:
        return self.statistics.get(statistic, 0.0)


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Bytes of a file with nothing done in them, cut into chunks of equal size. `end`: None for the whole file."""

    work: FileToRead
    start: int
    end: int | None

    @property
    def size(self) -> int:
        size = self.work.file.size
        if self.work.max_records is not None:
            size = min(size, self.work.max_records * _RECORD_BYTES)
        return (size if self.end is None else self.end) - self.start

    @property
    def num_chunks(self) -> int:
        return 1 if self.end is None else -(-self.size // CHUNK_BYTES)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(stored bytes that any part can be read of, other stored bytes, chunks)."""
        return (0, self.size, 1) if self.end is None else (self.size, 0, self.num_chunks)


def draw(
    job: Job, files: Sequence[FileToRead], budget: Budget, seed: int
) -> tuple[list[Chunk], npt.NDArray[np.float64]]:
    """(chunks of these files, all of them if the budget allows; the totals of what they represent).

    The same seed gives the same chunks.
    """
    pieces = [piece for file in sorted(files, key=lambda file: file.file.size) for piece in _pieces(job, file)]
    sizes_of_pieces = np.array([piece.sizes for piece in pieces], float).reshape(-1, 3)
    if not pieces:
        return [], sizes_of_pieces.sum(axis=0)
    rng = np.random.default_rng(seed)
    sizes, counts = np.array([(piece.size, piece.num_chunks) for piece in pieces]).T
    probabilities = (sizes / max(sizes.sum(), 1) + counts / counts.sum()) / 2
    probabilities /= probabilities.sum()
    shares: dict[tuple[int, int], float]  # by piece and chunk
    if sizes.sum() <= budget.text_bytes and counts.sum() <= budget.chunks:
        whole = zip((probabilities / counts).tolist(), counts.tolist(), strict=True)
        shares = {(index, number): share for index, (share, count) in enumerate(whole) for number in range(count)}
    else:
        chunk_bytes = sizes / counts if job.records.is_whole_file else np.minimum(sizes / counts, CHUNK_BYTES)
        num_draws = int(np.clip(budget.text_bytes / (probabilities * chunk_bytes).sum(), 2, budget.chunks))
        points = (np.arange(num_draws) + rng.random(num_draws)) / num_draws
        ends = np.cumsum(probabilities)
        drawn = np.searchsorted(ends[:-1], points, side="right")
        inside = 1 - (ends[drawn] - points) / probabilities[drawn]
        numbers = np.clip(inside * counts[drawn], 0, counts[drawn] - 1).astype(int)
        hits = collections.Counter(zip(drawn.tolist(), numbers.tolist(), strict=True))
        shares = {chunk: count / num_draws for chunk, count in hits.items()}

    def read(chunk: tuple[int, int], share: float, offset: float) -> list[Chunk]:
        index, number = chunk
        weight = float(share * counts[index] / probabilities[index])
        represented = weight * sizes_of_pieces[index] / counts[index]
        path = pieces[index].work.file.path
        part = Budget(max(int(budget.text_bytes * share), CHUNK_BYTES), max(int(budget.chunks * share), 1))
        blocks, problem, scale = _read_piece(job, pieces[index], number, part, offset)
        if not blocks:
            return [Chunk(path, weight, represented, None, problem)]
        length = max(sum(map(_length, blocks)), 1)
        return [Chunk(path, weight * scale, represented * _length(b) / length, b, problem) for b in blocks]

    with ThreadPoolExecutor(_READERS) as readers:
        found = readers.map(read, shares.keys(), shares.values(), rng.random(len(shares)).tolist())
        return [chunk for chunks in found for chunk in chunks], sizes_of_pieces.sum(axis=0)


def _pieces(job: Job, work: FileToRead) -> Iterator[_Piece]:
    """What no commit covers of a file; all of a file of which no single chunk can be read."""
    size, is_packed = work.file.size, job.records.format == "parquet" or storage.is_compressed(work.file.path)
    if is_packed or job.records.is_whole_file or job.records.is_delimited or work.max_records is not None:
        if size or is_packed:  # an empty file has no record, but is not valid as a compressed or Parquet file
            yield _Piece(work, 0, None)
        return
    position = 0
    for first, end in [*work.done.ranges.tolist(), (size, size)]:
        if first > position:
            yield _Piece(work, position, first)
        position = max(position, end)


def _read_piece(
    job: Job, piece: _Piece, number: int, budget: Budget, offset: float
) -> tuple[list[TextBlock], str | None, float]:
    """(blocks of a chunk, why its file cannot be read, how many times as much is left to do).

    `offset`: from 0 to 1, says which row groups of a Parquet file are read.
    """
    file, blocks, max_records = piece.work.file, list[TextBlock](), piece.work.max_records
    slices, total, max_bytes = [Slice(file, 0, None, 0, max_records=max_records)], 0, budget.text_bytes
    try:
        if piece.end is not None:
            start, end = (piece.start + piece.size * index // piece.num_chunks for index in (number, number + 1))
            slices = [Slice(file, start, end, 0)]
            if start > 0:
                refuse_other_content(read_head(file.path), job.records)
        if piece.end is not None or job.records.is_whole_file:
            _read_blocks(job, slices[0], _NO_LIMITS, _NO_LIMIT, blocks)
            return blocks, None, 1.0
        if max_records is not None:
            limits = dataclasses.replace(job.limits, text_bytes=min(job.limits.text_bytes, max(max_bytes, CHUNK_BYTES)))
            _read_blocks(job, slices[0], limits, max_bytes, blocks)
            read = sum(block.total(metrics.RECORDS) for block in blocks)
            return blocks, None, max(max_records - piece.work.done.records, 0) / max(read, 1)
        if job.records.format == "parquet":
            groups = list(find_pieces(file, 1, job.records))
            total = groups[-1][1] if groups else 0
            mean = max(min(total // max(len(groups), 1), CHUNK_BYTES), 1)
            count = min(len(groups), budget.chunks, budget.text_bytes // mean)
            chosen = [groups[int((index + offset) * len(groups) / count)] for index in range(count)]
            slices = [Slice(file, start, end, 0) for start, end, _ in chosen]
        else:
            with contextlib.suppress(OSError):  # raised again below, after the blocks before the damage
                total = _decompressed_bytes(file)
            max_bytes = max_bytes if total else _UNPACKED_BYTES
        for slice_ in slices:
            size = max_bytes // len(slices)
            # Blocks before damage are cut as in a run.
            limits = dataclasses.replace(job.limits, text_bytes=min(job.limits.text_bytes, max(size, CHUNK_BYTES)))
            _read_blocks(job, slice_, limits, size, blocks)
        read = sum(map(_length, blocks))
        if job.records.format != "parquet":
            total = read if read < max_bytes else max(total, read)
    except OSError as error:
        return blocks, storage.reason_of(error), 1.0
    left = total - piece.work.done.num_bytes
    return blocks, None, max(left, 0) / max(read, 1)


def _read_blocks(job: Job, slice_: Slice, limits: BlockLimits, max_bytes: int, blocks: list[TextBlock]) -> None:
    """Append the first blocks of a slice, until they have `max_bytes`. Raises UnreadableFileError after the blocks."""
    for item in read_blocks(slice_, limits, job.records):
        if isinstance(item, InputFile):
            raise UnreadableFileError(item.problem)
        blocks.append(cast(TextBlock, item))  # the slice has no commits
        max_bytes -= text_bytes(blocks[-1], parquet=job.records.format == "parquet")
        if max_bytes <= 0:
            break


def text_bytes(block: TextBlock, *, parquet: bool) -> int:
    """Decompressed bytes that the block was read from; of Parquet the bytes of its texts."""
    return int(pc.binary_length(block.texts).to_numpy().sum()) if parquet else _length(block)


def _length(block: TextBlock) -> int:
    return block.block.end_byte - block.block.first_byte


def _decompressed_bytes(file: InputFile) -> int:
    """The text in a compressed file, by the compression ratio at its start."""
    unpacked = position = 0
    with storage.open_binary(file.path) as opened:
        # Small reads: the position then tells closely how many stored bytes gave this much text.
        small_reads = SimpleNamespace(read=lambda size: opened.read(min(size, _STORED_READ_BYTES)))
        for data in storage.read_chunks(cast(BinaryIO, small_reads), file.path):
            if unpacked >= _UNPACKED_BYTES and position < opened.tell():
                break
            unpacked, position = unpacked + len(data), opened.tell()
        return file.size * unpacked // max(position, 1)
