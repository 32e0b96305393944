"""Draws: random bytes of what is left to do, each read with the range around it as a run reads it.

The files lie one after the other on a line, and the draws are spread evenly over it. A range is a part of a plain file,
row groups of Parquet, some files of a pack, or the next text from the start of what one thread reads alone: a
compressed file, a CSV file, a file of which `input.limit` leaves the first records. Input that fits in the budget is
read whole.
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

_COMPRESSION = 4  # bytes of text per byte of a compressed file, before anything is read
_MOST_COMPRESSION = 16  # a file with more of them is not read whole
_RECORD_BYTES = 256  # of a file of which only some records are read
_PACKED_FILES = 64  # of a pack that a draw reads
# So much text of a compressed file says how much there is in all. Small reads tell closely how many stored bytes gave
# it: each gives up to 2 MiB in Zstandard, 46 MB in bzip2.
_UNPACKED_BYTES, _STORED_READ_BYTES = 1 << 20, 1 << 6
_READERS = 8  # threads that wait for object stores
# Multiples of it, modulo 1, are spread evenly, however many they are.
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True)
class Budget:
    """The limits of a sample: bytes of text and files.

    `range_bytes`: of a draw; None: of a slice of the run. `seconds`: so long, draws are read; and until they have
    `least_bytes`.
    """

    text_bytes: int
    files: int
    range_bytes: int | None = None
    seconds: float = math.inf
    least_bytes: int = 1 << 20


@dataclasses.dataclass(frozen=True)
class Draw:
    """What was read of a range.

    `size`: bytes of text, as expected before it was read; `found`: as read. `hits`: how many draws it counts for; its
    size, if all is read. `slices`: its share of the slices of its file. `is_cut_off`: whether there is more of it.
    `skipped`: the files that cannot be read.
    """

    files: tuple[str, ...]
    is_compressed: bool
    size: float
    found: float
    hits: float
    slices: float = 1.0
    blocks: tuple[TextBlock, ...] = ()
    is_cut_off: bool = False
    skipped: tuple[InputFile, ...] = ()


def has_records(work: FileToRead, record_format: RecordFormat) -> bool:
    """Whether a file can have records. An empty one has none, but is not valid as a compressed or Parquet file."""
    return bool(work.file.size) or storage.is_compressed(work.file.path) or record_format.format == "parquet"


def bytes_left(work: FileToRead) -> int:
    """The stored bytes that are left to do of a file and of those packed with it, at least 1."""
    size = work.file.size + sum(file.size for file in work.others)
    if work.max_records is not None:
        return max(min(size, work.max_records * _RECORD_BYTES), 1)
    return max(size if storage.is_compressed(work.file.path) else size - work.done.num_bytes, 1)


class Sampling:
    """Draws of what is left to do in some files.

    `is_whole`: all of it is read. `plain_bytes`, `compressed_bytes`: of text, as expected, in files of either sort.
    `num_slices`: those of all files.
    """

    def __init__(self, job: Job, files: Sequence[FileToRead], budget: Budget, seed: int) -> None:
        self._job, self._range_bytes = job, budget.range_bytes or job.limits.text_bytes
        works = [work for work in join_small_files(files, job.limits, job.records) if has_records(work, job.records)]
        works = [work for work in works if not self._is_cut(work) or len(_gaps(work))]
        works.sort(key=_kind)  # the draws are spread evenly over each kind, too
        self.plain_bytes = sum(_size(work) for work in works if not _kind(work))
        self.compressed_bytes = sum(_size(work) for work in works if _kind(work))
        self.num_slices = sum(map(self._num_slices, works))
        num_files = sum(1 + len(work.others) for work in works)
        self.is_whole = num_files <= budget.files and self.plain_bytes + self.compressed_bytes <= budget.text_bytes
        rng = np.random.default_rng(seed)
        # Files, each with the places that were drawn, from 0 to 1 in what is left to do of it; () for all.
        self._to_read: list[tuple[FileToRead, tuple[float, ...]]]
        if self.is_whole:
            self._to_read = [(works[number], ()) for number in rng.permutation(len(works)).tolist()]
        else:
            self._to_read = list(self._draw(works, budget, float(rng.random())))

    def _draw(
        self, works: list[FileToRead], budget: Budget, start: float
    ) -> Iterator[tuple[FileToRead, tuple[float, ...]]]:
        """So many draws that the budget is read. Those that read the same are one."""
        sizes = np.array([_size(work) for work in works], float)
        all_files = np.array([1 + len(work.others) for work in works])
        num_files, shares = np.minimum(all_files, _PACKED_FILES), sizes / sizes.sum()
        read_bytes = float(shares @ np.minimum(sizes * num_files / all_files, self._range_bytes))
        most = max(budget.files / float(shares @ num_files), 2)
        num_draws = int(np.clip(budget.text_bytes / read_bytes, 2, most))
        ends = np.cumsum(sizes)
        points = (start + GOLDEN_RATIO * np.arange(num_draws)) % 1 * ends[-1]
        drawn = np.minimum(np.searchsorted(ends, points, side="right"), len(works) - 1)
        within = np.clip(1 - (ends[drawn] - points) / sizes[drawn], 0, 1 - 1e-12)
        together = collections.defaultdict[tuple[int, int], list[float]](list)
        for index, place in zip(drawn.tolist(), within.tolist(), strict=True):
            work = works[index]
            at = self._range_at(work, place)[0] if self._is_cut(work) else int(place * _step(work))
            together[index, at].append(place)
        for (index, _), places in together.items():
            yield works[index], tuple(places)

    def read(self) -> Generator[Draw, None, None]:
        """What the draws read, in a random order, ahead of the caller by some threads."""
        readers = ThreadPoolExecutor(_READERS)
        ahead = collections.deque[Future[list[Draw]]]()
        try:
            for work, places in self._to_read:
                ahead.append(readers.submit(self._read_places, work, places))
                if len(ahead) > _READERS:
                    yield from ahead.popleft().result()
            for draws in ahead:
                yield from draws.result()
        finally:
            readers.shutdown(cancel_futures=True)

    def _read_places(self, work: FileToRead, places: tuple[float, ...]) -> list[Draw]:
        size = _size(work)
        nothing = Draw((work.file.path,), bool(_kind(work)), size, size, len(places) or size)
        try:
            # A Parquet file without row groups has no part.
            return [draw for part in self._parts(work, places) for draw in self._read(work, *part)] or [nothing]
        except OSError as error:
            unreadable = InputFile.unreadable(work.file.path, storage.reason_of(error))
            return [dataclasses.replace(nothing, skipped=(unreadable,))]

    def _parts(self, work: FileToRead, places: tuple[float, ...]) -> Iterator[tuple[Slice, float, float, int]]:
        """(what to read, the text that is expected there, its bytes in the file, how many of the places are there)."""
        if self._job.records.format == "parquet" and work.max_records is None:
            groups = parquet.find_pieces(work.file, self._range_bytes, self._job.records)
            ranges = [(start, end, left) for start, end, _ in groups if (left := _left_in(work, start, end))]
            ends = np.cumsum([left for *_, left in ranges])
            drawn = np.searchsorted(ends, np.array(places) * ends[-1:], side="right").tolist() if ranges else []
            hits = collections.Counter(drawn) if places else dict.fromkeys(range(len(ranges)), 0)
            for number, count in hits.items():
                start, end, left = ranges[number]
                yield Slice(work.file, start, end, 0), bytes_left(work) * left / int(ends[-1]), left, count
        elif self._is_cut(work):
            for start, end in [self._range_at(work, places[0])] if places else _gaps(work).tolist():
                yield Slice(work.file, start, end, 0), end - start, end - start, len(places)
        elif work.others and places:
            files = (work.file, *work.others)
            first, *others = files[int(places[0] * _step(work)) :: _step(work)]
            pack = Slice(first, 0, first.size, 0, others=tuple(others))
            yield pack, _size(work) * (1 + len(others)) / len(files), pack.size, len(places)
        else:
            _, first_byte, last = next(cut_file(work, max(work.file.size, 1), self._job.records))
            whole = Slice(work.file, first_byte, last, 0, work.max_records, others=work.others)
            yield whole, _size(work), bytes_left(work), len(places)

    def _read(self, work: FileToRead, slice_: Slice, size: float, left: float, num_places: int) -> Iterator[Draw]:
        """The draws of a slice: each read on where the one before it ended."""
        if slice_.start > 0 and self._job.records.format != "parquet":
            refuse_other_content(read_head(slice_.file.path), self._job.records)
        most = num_places * self._range_bytes or max(_UNPACKED_BYTES, _MOST_COMPRESSION * left)
        draws, skipped = collections.defaultdict[int, list[TextBlock]](list), list[InputFile]()
        read, text, records, share = 0, 0, 0, 1.0
        for item in read_blocks(slice_, self._job.limits, self._job.records):
            if isinstance(item, InputFile):
                skipped.append(item)
                continue
            block = cast(TextBlock, item)  # no commit is looked up
            first, end = block.files[0].first_byte, block.files[-1].end_byte
            if first < end and not _left_in(work, first, end):
                continue
            draws[int(read / most * num_places)].append(block)
            read += max(end - first, block.texts.nbytes)  # a dictionary of Parquet holds much text in few bytes
            text, records = text + block.num_bytes, records + block.total(metrics.RECORDS)
            if read >= most:
                share = _share_read(work, slice_, text, records, end, left)
                break
        hits, size = num_places or size, size * min(share, 1.0)
        is_as_expected = skipped or work.max_records is not None or self._job.records.format == "parquet"
        found = size if is_as_expected else text
        for blocks in draws.values() or [[]]:
            part = sum(block.num_bytes for block in blocks) / text if text else 1 / max(len(draws), 1)
            num_slices = len(blocks) if work.others else part * size / _size(work) * self._num_slices(work)
            yield Draw(
                files=tuple(file.path for file in (slice_.file, *slice_.others)),
                is_compressed=bool(_kind(work)),
                size=size * part,
                found=found * part,
                hits=hits / max(len(draws), 1),
                slices=num_slices,
                blocks=tuple(blocks),
                is_cut_off=share < 1,
                skipped=tuple(skipped),
            )
            skipped = []

    def _range_at(self, work: FileToRead, place: float) -> tuple[int, int]:
        """The range of a plain file that holds a place: what is left of it is cut into equal ones."""
        gaps = _gaps(work)
        ends = np.cumsum(gaps[:, 1] - gaps[:, 0])
        point = int(place * ends[-1])
        number = int(np.searchsorted(ends, point, side="right"))
        start, end = gaps[number].tolist()
        length, inside = end - start, point - (int(ends[number]) - (end - start))
        num_ranges = -(-length // self._range_bytes)
        at = inside * num_ranges // length
        return start + at * length // num_ranges, start + (at + 1) * length // num_ranges

    def _num_slices(self, work: FileToRead) -> int:
        """The slices that a file is cut into, as far as its size tells."""
        return -(-bytes_left(work) // self._range_bytes) if self._is_cut(work) else 1

    def _is_cut(self, work: FileToRead) -> bool:
        """Whether a file is cut into ranges of bytes, whatever it holds."""
        records, is_whole = self._job.records, work.max_records is None and not work.others
        return is_whole and not _kind(work) and INPUT_FORMATS[records.format].is_seekable(records)


def _kind(work: FileToRead) -> str:
    """The ending of a compressed file that is read to its end, else nothing."""
    is_compressed = work.max_records is None and storage.is_compressed(work.file.path)
    return os.path.splitext(work.file.path)[1] if is_compressed else ""


def _size(work: FileToRead) -> int:
    """The bytes of text that are left to do of a file, as expected."""
    return bytes_left(work) * (_COMPRESSION if _kind(work) else 1)


def _step(work: FileToRead) -> int:
    """A draw reads every n-th file of a pack: this is n."""
    return -(-(1 + len(work.others)) // _PACKED_FILES)


def _gaps(work: FileToRead) -> Int64Array:
    """int64 [G, 2]: the ranges of a file that no committed block covers."""
    edges = np.concatenate([[0], work.done.ranges.ravel(), [work.file.size]]).reshape(-1, 2)
    return np.asarray(edges[edges[:, 0] < edges[:, 1]], np.int64)


def _left_in(work: FileToRead, start: int, end: int) -> int:
    """The bytes of a range that no committed block covers."""
    starts, ends = work.done.ranges.T
    return end - start - int((np.minimum(ends, end) - np.maximum(starts, start)).clip(0).sum())


def _share_read(work: FileToRead, slice_: Slice, text: int, records: int, end: int, left: float) -> float:
    """The share of what is left to do of a slice that so much text and so many records are.

    `left`: its bytes in the file. `end`: where the text ends in that of the file.
    """
    if slice_.max_records is not None:
        return records / max(slice_.max_records - work.done.records, 1)
    if _kind(work):
        return text / max(_unpacked_bytes(slice_.file, end) - work.done.num_bytes, 1)
    return text / left


def _unpacked_bytes(file: InputFile, position: int) -> float:
    """The bytes of text in a compressed file, as compressed as its text up to this position, or a little more."""
    unpacked = 0
    with storage.open_binary(file.path) as opened:
        small_reads = SimpleNamespace(read=lambda size: opened.read(min(size, _STORED_READ_BYTES)))
        for data in storage.read_chunks(cast(BinaryIO, small_reads), file.path):
            unpacked += len(data)
            if unpacked >= max(position, _UNPACKED_BYTES):
                return unpacked / opened.tell() * file.size
    return unpacked
