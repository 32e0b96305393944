"""Slices of the input drawn at random, and read as a run reads them.

Points are spread over the bytes that are left to do, with the files in their order; each point draws the slice that
holds it. Compressed files are drawn apart from the others, because a byte of them stands for more text. Input that fits
in the budget is read whole.

What one thread reads alone (a compressed file, a CSV file, a large row group, a file of which `input.limit` leaves the
first records) is read from its start, a slice's worth of text for each point.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from layerbeam.pipeline.config.job import Job
from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Int64Array, Slice, TextBlock
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.input import INPUT_FORMATS, parquet
from layerbeam.transforms.input.content import read_head, refuse_other_content
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, cut_file, join_small_files

PLAIN, PACKED, LIMITED = "plain", "packed", "limited"  # kinds of files; others are the endings of compressed ones
_COMPRESSION = 4  # bytes of text per byte of a compressed file, before anything is read
_RECORD_BYTES = 256  # of a file of which only some records are read
_PACKED_FILES = 64  # of a pack that are read, unless all of the input is
_STORED_READ_BYTES = 1 << 6  # up to 2 MiB of text in Zstandard, 46 MB in bzip2
# The least text that is read of a compressed file: how much of it that is, is known the better the more was read.
_COMPRESSED_BYTES = 1 << 20
_READERS = 8  # threads that wait for object stores
# Multiples of it, modulo 1, are spread evenly, however many they are.
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True)
class Budget:
    """The limits of a sample: bytes of text and files.

    `slice_bytes`: of a slice, if not all is read; None: as in the run. `seconds`: so long, slices are read; and until
    they have `least_bytes`.
    """

    text_bytes: int
    files: int
    slice_bytes: int | None = None
    seconds: float = math.inf
    least_bytes: int = 1 << 20


@dataclasses.dataclass(frozen=True)
class Draw:
    """Slices of one file to read: those that hold `points`, from 0 to 1 in what is left to do; None: all of them.

    `text_bytes`: the most to read of a slice, for each point.
    """

    order: float
    kind: str
    work: FileToRead
    points: tuple[float, ...] | None
    text_bytes: float


@dataclasses.dataclass(frozen=True)
class SampledSlice:
    """The blocks that were read of a slice.

    `points`: how many drew it; 0 if all slices are read. `size`: its stored bytes that are left to do. `slices`: its
    share of the slices of its file, by bytes. `scale`: how many times as much is left to do in it as was read.
    `skipped`: the files that cannot be read.
    """

    kind: str
    files: tuple[str, ...]
    points: int
    size: float
    slices: float
    blocks: tuple[TextBlock, ...] = ()
    scale: float = 1.0
    skipped: tuple[InputFile, ...] = ()


@dataclasses.dataclass(frozen=True)
class Total:
    """The stored bytes that are left to do in all files of a kind, and the slices that these are cut into."""

    size: int
    slices: int


def has_slices(work: FileToRead, record_format: RecordFormat) -> bool:
    """Whether a file can have records. An empty one has none, but is not valid as a compressed or Parquet file."""
    return bool(work.file.size) or storage.is_compressed(work.file.path) or record_format.format == "parquet"


def draw_slices(
    job: Job, files: Sequence[FileToRead], budget: Budget, seed: int
) -> tuple[list[Draw], dict[str, Total]]:
    """(what to read, in a random order; what is left to do, by kind of file)."""
    kinds: dict[str, list[FileToRead]] = collections.defaultdict(list)
    for work in join_small_files(files, job.limits, job.records):
        if has_slices(work, job.records):
            kinds[_kind_of(work)].append(work)
    slice_bytes = budget.slice_bytes or job.limits.text_bytes
    totals = {
        kind: Total(sum(map(bytes_left, works)), sum(_num_slices(job, work, slice_bytes) for work in works))
        for kind, works in kinds.items()
    }
    texts = {kind: total.size * (_COMPRESSION if kind.startswith(".") else 1) for kind, total in totals.items()}
    num_files = sum(1 + len(work.others) for works in kinds.values() for work in works)
    is_whole = num_files <= budget.files and sum(texts.values()) <= budget.text_bytes
    rng = np.random.default_rng(seed)
    draws: list[Draw] = []
    for kind, works in kinds.items():
        share = budget.text_bytes * texts[kind] / sum(texts.values())
        if is_whole:
            # A file that expands further than most is read at its start only.
            most = max(slice_bytes, 4 * texts[kind])
            draws += [Draw(float(rng.random()), kind, work, None, most) for work in works]
        else:
            draws += _draw_points(job, kind, works, share, budget, float(rng.random()))
    return sorted(draws, key=lambda draw: draw.order), totals


def _draw_points(
    job: Job, kind: str, works: list[FileToRead], share: float, budget: Budget, start: float
) -> Iterator[Draw]:
    """The draws of one kind of files, so many that about `share` bytes of text are read. Points in one slice meet."""
    slice_bytes = budget.slice_bytes or job.limits.text_bytes
    sizes = np.array([bytes_left(work) for work in works], float)
    all_files = np.array([1 + len(work.others) for work in works])
    num_files = np.minimum(all_files, _PACKED_FILES)
    # What a point reads: large files have more points, and of a pack some files are read.
    read_bytes = float((sizes * np.minimum(sizes * num_files / all_files, slice_bytes)).sum() / sizes.sum())
    read_files = float((sizes * num_files).sum() / sizes.sum())
    num_points = int(np.clip(share / read_bytes, 2, max(budget.files / read_files, 2)))
    ends = np.cumsum(sizes)
    places = (start + GOLDEN_RATIO * np.arange(num_points)) % 1 * ends[-1]
    drawn = np.minimum(np.searchsorted(ends, places, side="right"), len(works) - 1)
    within = np.clip(1 - (ends[drawn] - places) / sizes[drawn], 0, 1 - 1e-12)
    together: dict[tuple[int, int], list[tuple[float, float]]] = collections.defaultdict(list)
    for number, (index, point) in enumerate(zip(drawn.tolist(), within.tolist(), strict=True)):
        place = int(point * sizes[index] / slice_bytes) if _is_cut(job, works[index]) else 0
        together[index, place].append((number / num_points, point))
    for (index, _), points in together.items():
        yield Draw(points[0][0], kind, works[index], tuple(point for _, point in points), slice_bytes)


def read_slices(job: Job, draws: Sequence[Draw], budget: Budget) -> Generator[SampledSlice, None, None]:
    """The slices of these draws, in their order, read ahead by some threads."""
    slice_bytes = budget.slice_bytes or job.limits.text_bytes
    readers = ThreadPoolExecutor(_READERS)
    ahead = collections.deque[Future[list[SampledSlice]]]()
    try:
        for draw in draws:
            ahead.append(readers.submit(_read_draw, job, draw, slice_bytes))
            if len(ahead) > _READERS:
                yield from ahead.popleft().result()
        for slices in ahead:
            yield from slices.result()
    finally:
        readers.shutdown(cancel_futures=True)


def _read_draw(job: Job, draw: Draw, slice_bytes: int) -> list[SampledSlice]:
    work, found = draw.work, list[SampledSlice]()
    try:
        ranges, sizes = _ranges_of(job, work, None if draw.points is None else slice_bytes)
    except OSError as error:
        unreadable = InputFile.unreadable(work.file.path, storage.reason_of(error))
        path, size, points = (work.file.path,), float(bytes_left(work)), len(draw.points or ())
        return [SampledSlice(draw.kind, path, points, size, 1, skipped=(unreadable,))]
    places = np.array(draw.points or ()) * sizes.sum()
    hits = collections.Counter(np.searchsorted(np.cumsum(sizes), places, side="right").tolist() if ranges else ())
    for number in range(len(ranges)) if draw.points is None else sorted(hits):
        size = float(sizes[number])
        slice_ = Slice(work.file, *ranges[number], 0, work.max_records, others=work.others)
        step = -(-len(slice_.others) // (_PACKED_FILES * hits[number])) if hits else 1
        packed = slice_.others[int((draw.points or (0,))[0] * step) :: step or 1]
        part = dataclasses.replace(slice_, others=packed)
        blocks, scale, skipped = _read_slice(job, work, part, draw.text_bytes * max(hits[number], 1))
        files = tuple(file.path for file in (part.file, *packed))
        scale *= slice_.size / max(part.size, 1) if packed else 1
        share = size / bytes_left(work) * _num_slices(job, work, slice_bytes)
        found.append(SampledSlice(draw.kind, files, hits[number], size, share, tuple(blocks), scale, tuple(skipped)))
    return found


def _ranges_of(
    job: Job, work: FileToRead, slice_bytes: int | None
) -> tuple[list[tuple[int, int | None]], npt.NDArray[np.float64]]:
    """The ranges of a file with something left to do, and the stored bytes that are left in each.

    Those of a file of many gigabytes are larger, so that they are at most 65,536. `slice_bytes`: None: what is left to
    do between blocks that are done, or the slices of a Parquet file.
    """
    if job.records.format == "parquet" and work.max_records is None:
        piece_bytes = slice_bytes or job.limits.text_bytes
        ranges: list[tuple[int, int | None]] = [
            (start, end) for start, end, _ in parquet.find_pieces(work.file, piece_bytes, job.records)
        ]
    elif slice_bytes is None and _is_cut(job, work):
        edges = [0, *work.done.ranges.ravel().tolist(), work.file.size]
        ranges = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
    else:
        most = max(slice_bytes, work.file.size >> 16) if slice_bytes else max(work.file.size, 1)
        ranges = [(start, end) for _, start, end in cut_file(work, most, job.records)]
    sizes = np.ones(len(ranges))
    if not work.others and all(end for _, end in ranges):
        sizes = _left_between(work, *np.array(ranges, np.int64).reshape(-1, 2).T).astype(np.float64)
    left = np.flatnonzero(sizes > 0)
    sizes = sizes[left] * (bytes_left(work) / max(sizes.sum(), 1))
    return ranges if len(left) == len(ranges) else [ranges[number] for number in left], sizes


def _left_between(work: FileToRead, start: Int64Array, end: Int64Array) -> Int64Array:
    """The bytes of each range that no committed block covers."""
    done = work.done.ranges
    before = np.append(0, np.cumsum(done[:, 1] - done[:, 0]))

    def done_before(place: Int64Array) -> Int64Array:
        number = np.searchsorted(done[:, 0], place, side="right")
        beyond = np.where(number > 0, np.append(done[:, 1], 0)[number - 1] - place, 0)
        return np.asarray(before[number] - beyond.clip(0), np.int64)

    return end - start - (done_before(end) - done_before(start))


def _read_slice(
    job: Job, work: FileToRead, slice_: Slice, most: float
) -> tuple[list[TextBlock], float, list[InputFile]]:
    """(blocks with up to `most` bytes of text, how many times as much is left to do, files that cannot be read)."""
    blocks, skipped, done = list[TextBlock](), list[InputFile](), work.done.ranges
    read = 0
    if slice_.end is None:
        most = max(most, _COMPRESSED_BYTES)
    try:
        if slice_.start > 0 and job.records.format != "parquet":
            refuse_other_content(read_head(slice_.file.path), job.records)
    except OSError as error:
        return [], 1.0, [InputFile.unreadable(slice_.file.path, storage.reason_of(error))]
    for item in read_blocks(slice_, job.limits, job.records):
        if isinstance(item, InputFile):
            skipped.append(item)
            continue
        block = cast(TextBlock, item)  # no commit is looked up
        first, end = block.files[0].first_byte, block.files[-1].end_byte
        if not ((done[:, 0] <= first) & (end <= done[:, 1])).any():
            blocks.append(block)
            read += max(end - first, block.texts.nbytes)  # a dictionary of Parquet holds much text in few bytes
        if read >= most:
            return blocks, _scale(work, slice_, blocks, end), skipped
    return blocks, 1.0, skipped


def _scale(work: FileToRead, slice_: Slice, blocks: Sequence[TextBlock], position: int) -> float:
    """How many times as much is left to do in a slice as in these blocks of it. `position`: where reading ended."""
    if slice_.max_records is not None:
        records = sum(block.total(metrics.RECORDS) for block in blocks)
        return max(slice_.max_records - work.done.records, 1) / max(records, 1)
    read = sum(block.num_bytes for block in blocks)
    if slice_.end is None:
        left = position / _stored_share(slice_.file, position) - work.done.num_bytes
    else:
        left = int(_left_between(work, np.array([slice_.start]), np.array([slice_.end]))[0])
    return max(left / max(read, 1), 1.0)


def _stored_share(file: InputFile, text_bytes: int) -> float:
    """The share of a compressed file that holds its first bytes of text."""
    with storage.open_binary(file.path) as opened:
        # Small reads: the position then tells closely how many stored bytes gave this much text.
        small_reads = SimpleNamespace(read=lambda size: opened.read(min(size, _STORED_READ_BYTES)))
        unpacked = 0
        for data in storage.read_chunks(cast(BinaryIO, small_reads), file.path):
            unpacked += len(data)
            if unpacked >= text_bytes:
                break
        return min(opened.tell() / max(file.size, 1) * text_bytes / max(unpacked, 1), 1.0) or 1.0


def _num_slices(job: Job, work: FileToRead, slice_bytes: int) -> int:
    """The slices that a file is cut into, as far as its size tells."""
    return -(-bytes_left(work) // slice_bytes) if _is_cut(job, work) else 1


def _is_cut(job: Job, work: FileToRead) -> bool:
    """Whether a file is cut into ranges of bytes, whatever it holds."""
    return _kind_of(work) == PLAIN and INPUT_FORMATS[job.records.format].is_seekable(job.records)


def _kind_of(work: FileToRead) -> str:
    if work.max_records is not None:
        return LIMITED
    if work.others:
        return PACKED
    return os.path.splitext(work.file.path)[1] if storage.is_compressed(work.file.path) else PLAIN


def bytes_left(work: FileToRead) -> int:
    """The stored bytes that are left to do of a file and of those packed with it, at least 1."""
    size = work.file.size + sum(file.size for file in work.others)
    if work.max_records is not None:
        return max(min(size, work.max_records * _RECORD_BYTES), 1)
    return max(size if storage.is_compressed(work.file.path) else size - work.done.num_bytes, 1)
