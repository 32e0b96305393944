from __future__ import annotations

from corpora import UNLIMITED, read_file

from layerbeam.transforms import storage
from layerbeam.transforms.commits import SkippedFile
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.slice.slices import FileToRead, number_slices, scan_range


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
    assert left_out == SkippedFile(str(path), "No such file or directory")
