from __future__ import annotations

import dataclasses

import pytest
from corpora import UNLIMITED, read_file

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import Slice
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.input.content import format_by_name
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice import SliceFiles, _Number
from layerbeam.transforms.slice.slices import FileToRead, RangeScan, number_slices, scan_range, share_slice

LIMITS = BlockLimits(100, 1 << 30, 1 << 30, 128)


def test_a_small_file_is_work_for_all_workers(corpus):
    path = corpus(b"".join(b"line %d\n" % number for number in range(100)))
    (file,) = storage.find_files([str(path)])
    slices = list(number_slices([scan_range(FileToRead(file), 0, file.size, LIMITS)], LIMITS))
    assert len(slices) == 11
    blocks = [list(read_blocks(slice_, LIMITS)) for slice_ in slices]
    assert [len(of_slice) for of_slice in blocks] == [1] * 11
    assert [block.files[0] for (block,) in blocks] == [block.files[0] for block in read_file(path, LIMITS)]


def test_vanished_file_is_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n")
    (file,) = storage.find_files([str(path)])
    path.unlink()
    (left_out,) = number_slices([scan_range(FileToRead(file), 0, 2, UNLIMITED)], UNLIMITED)
    assert left_out == InputFile.unreadable(str(path), "No such file or directory")


@pytest.mark.parametrize(
    ("slice_", "num_workers", "expected"),
    [
        (Slice(InputFile("a.txt.gz", 10, 0.0), 0, None, 0), 8, 1),
        (Slice(InputFile("a.txt.gz", 40, 0.0), 0, None, 0), 8, 4),  # a handful of blocks, for some of the workers
        (Slice(InputFile("a.txt.gz", 40, 0.0), 0, None, 0), 2, 2),
        (Slice(InputFile("a.txt.gz", 40, 0.0), 0, None, 0), 1, 1),
        (Slice(InputFile("a.txt.gz", 400, 0.0), 0, None, 0), 1, 2),
        (Slice(InputFile("a.txt.gz", 400, 0.0), 0, None, 0), 8, 8),
        (Slice(InputFile("a.txt.gz", 1 << 40, 0.0), 0, None, 0), 1, 64),
        (Slice(InputFile("a.txt.gz", 1 << 40, 0.0), 0, None, 0), 100, 64),
        (Slice(InputFile("a.parquet", 9000, 0.0), 5000, 5150, 9), 8, 1),
        (Slice(InputFile("a.parquet", 9000, 0.0), 0, 3200, 0), 1, 2),
        (Slice(InputFile("a.txt", 9000, 0.0), 0, 9000, 0), 8, 1),  # one long line
        (Slice(InputFile("a.csv", 9000, 0.0), 0, 9000, 0), 8, 1),
        (Slice(InputFile("a.txt", 100, 0.0), 0, 100, 0, others=(InputFile("b.txt", 900, 0.0),)), 8, 1),
    ],
)
def test_readers_of_what_one_thread_must_read(slice_, num_workers, expected):
    record_format = RecordFormat(format=format_by_name(slice_.file.path))
    shared = share_slice(slice_, LIMITS, record_format, num_workers)
    assert [one.reader for one in shared] == [(number, expected) for number in range(expected)]
    assert all(dataclasses.replace(one, reader=(0, 1)) == slice_ for one in shared)


def test_a_file_that_is_one_record_has_one_reader():
    slice_ = Slice(InputFile("a.txt.gz", 1 << 40, 0.0), 0, None, 0)
    assert share_slice(slice_, LIMITS, RecordFormat(record="file"), 8) == [slice_]


def test_large_slices_of_a_bundle_come_first():
    """The local runner deals them to its workers one by one."""
    number = _Number(SliceFiles(BlockLimits(text_bytes=100)))
    number.start_bundle()
    for size in (10, 90, 20, 89, 80):
        file = InputFile(f"{size}.txt", size, 0.0)
        scan = RangeScan(FileToRead(file), 0, ((0, size, 1),))
        assert list(number.process((file.path.encode(), [scan]))) == []
    assert [value.value.file.size for value in number.finish_bundle()] == [90, 89, 80, 20, 10]
