"""A local file that is created once, complete or not at all."""

from __future__ import annotations

import errno
import io
import os
import threading

import pytest

from layerbeam.transforms import storage
from layerbeam.transforms.storage import files


def test_a_file_is_created_once(tmp_path):
    path, temporary = str(tmp_path / "out/file"), str(tmp_path / "_tmp")
    created, barrier = [], threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if storage.create_whole(path, bytes([number]) * 1000, temporary=temporary):
            created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert storage.read_bytes(path) == bytes(created) * 1000
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_a_disk_without_links_creates_it_too(tmp_path, monkeypatch, number):
    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    path, temporary = str(tmp_path / "file"), str(tmp_path / "_tmp")
    assert storage.create_whole(path, b"first", temporary=temporary)
    assert not storage.create_whole(path, b"second", temporary=temporary)
    assert storage.read_bytes(path) == b"first"
    assert os.listdir(temporary) == []


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def link(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="Input/output error"):
        storage.create_whole(str(tmp_path / "file"), b"x", temporary=str(tmp_path / "_tmp"))
    assert [path.name for path in tmp_path.rglob("*")] == ["_tmp"]


def test_a_disk_that_loses_bytes_creates_nothing(tmp_path, monkeypatch):
    class Lossy(io.FileIO):
        def write(self, data: bytes) -> int:
            return super().write(data[:-3]) + 3

    monkeypatch.setattr(files, "open", Lossy, raising=False)
    with pytest.raises(OSError, match="only 7 of 10 bytes were written"):
        storage.create_whole(str(tmp_path / "file"), b"some bytes", temporary=str(tmp_path / "_tmp"))
    assert [path.name for path in tmp_path.rglob("*")] == ["_tmp"]


def test_an_empty_file_needs_no_other_folder(tmp_path):
    assert storage.create_whole(str(tmp_path / "_SUCCESS"), b"", temporary=str(tmp_path / "_tmp"))
    assert os.listdir(tmp_path) == ["_SUCCESS"]
