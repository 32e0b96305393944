from __future__ import annotations

import apache_beam as beam
import pytest
from corpora import UNLIMITED, read_file

from layerbeam.pipeline.run.engines import local_runner
from layerbeam.transforms import storage
from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice import FindFiles, SliceFiles, _Number
from layerbeam.transforms.slice import slices as module
from layerbeam.transforms.slice.slices import (
    FileToRead,
    LineCount,
    RangeScan,
    cut_file,
    number_slices,
    scan_range,
    stretch_of,
)


@pytest.fixture
def three_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGES_TOGETHER", 3)


def test_a_small_file_is_work_for_all_workers(corpus):
    path = corpus(b"".join(b"line %d\n" % number for number in range(100)))
    (file,) = storage.find_files([str(path)])
    limits = BlockLimits(100, 1 << 30, 1 << 30, 128)
    slices = list(number_slices([scan_range(FileToRead(file), 0, file.size, limits)]))
    assert len(slices) == 8
    blocks = [list(read_blocks(slice_, limits)) for slice_ in slices]
    assert [len(of_slice) for of_slice in blocks] == [1] * 8
    assert [block.block for (block,) in blocks] == [block.block for block in read_file(path, limits)]


def test_vanished_file_is_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n")
    (file,) = storage.find_files([str(path)])
    path.unlink()
    (left_out,) = number_slices([scan_range(FileToRead(file), 0, 2, UNLIMITED)])
    assert left_out == InputFile.unreadable(str(path), "No such file or directory")


def test_a_huge_file_is_numbered_stretch_by_stretch(tmp_path, three_together):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {number}\n" for number in range(400)))
    (file,) = storage.find_files([str(path)])
    limits = BlockLimits(100, 1 << 30, 1 << 30, 128)
    scans = [scan_range(*range_, limits) for range_ in cut_file(file, 100)]
    whole = list(number_slices(scans))
    stretches: dict[int, list[RangeScan]] = {}
    count = LineCount()
    for scan in reversed(scans):
        stretch, is_huge = stretch_of(file, scan.start, 100)
        assert is_huge
        stretches.setdefault(stretch, []).append(scan)
        count.update(LineCount.of(stretch, scan))
    assert len(stretches) > 10
    found = [slice_ for stretch, ranges in stretches.items() for slice_ in number_slices(ranges, stretch, count)]
    assert sorted(found, key=lambda slice_: slice_.start) == whole
    count.problem = "Permission denied"
    skipped = [item for stretch, ranges in stretches.items() for item in number_slices(ranges, stretch, count)]
    assert skipped == [InputFile.unreadable(str(path), "Permission denied")]


def test_slices_do_not_depend_on_how_ranges_are_grouped(tmp_path, three_together):
    for name, lines in (("a", 400), ("b", 2), ("c", 0)):
        (tmp_path / f"{name}.txt").write_text("".join(f"line {number}\n" for number in range(lines)))
    found = []
    for huge_files in (True, False):
        local = local_runner([])
        with beam.Pipeline(runner=local.runner, options=local.options) as pipeline:
            stage = SliceFiles(BlockLimits(100, 1 << 30, 1 << 30, 128), RecordFormat(), huge_files=huge_files)
            slices, _ = pipeline | FindFiles(f"{tmp_path}/*.txt") | stage
            lines = slices | beam.Map(repr)
            _ = lines | beam.io.WriteToText(f"{tmp_path}/{huge_files}", num_shards=1, shard_name_template="")
        found.append(sorted((tmp_path / str(huge_files)).read_text().splitlines()))
    assert len(found[0]) > 30
    assert found[0] == found[1]


def test_large_slices_of_a_bundle_come_first():
    """The local runner deals them to its workers one by one."""
    number = _Number(SliceFiles(BlockLimits(text_bytes=100)))
    number.start_bundle()
    for size in (10, 90, 20, 89, 80):
        file = InputFile(f"{size}.txt", size, 0.0)
        scan = RangeScan(FileToRead(file), 0, ((0, size, 1),))
        assert list(number.process(((file.path.encode(), 0), [scan]), {})) == []
    assert [value.value.file.size for value in number.finish_bundle()] == [90, 89, 80, 20, 10]
