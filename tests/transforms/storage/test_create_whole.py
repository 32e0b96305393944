"""A local file that is created once, complete or not at all."""

from __future__ import annotations

import errno
import io
import os

import pytest
from object_store import created_at_once

from layerbeam.transforms import storage
from layerbeam.transforms.storage import files


def test_a_file_is_created_once(tmp_path):
    path = str(tmp_path / "out/file")
    created = created_at_once(path, [bytes([number]) * 1000 for number in range(8)])
    assert created.count(True) == 1
    assert storage.read_bytes(path) == bytes([created.index(True)]) * 1000
    assert os.listdir(tmp_path / "out") == ["file"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_a_disk_without_links_creates_it_too(tmp_path, monkeypatch, number):
    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    path = str(tmp_path / "file")
    assert storage.create_if_absent(path, b"first")
    assert not storage.create_if_absent(path, b"second")
    assert storage.read_bytes(path) == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def link(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="Input/output error"):
        storage.create_if_absent(str(tmp_path / "file"), b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_loses_bytes_creates_nothing(tmp_path, monkeypatch):
    class Lossy(io.FileIO):
        def write(self, data: bytes) -> int:
            return super().write(data[:-3]) + 3

    monkeypatch.setattr(files, "open", Lossy, raising=False)
    with pytest.raises(OSError, match="only 7 of 10 bytes were written"):
        storage.create_if_absent(str(tmp_path / "file"), b"some bytes")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_created_once(tmp_path):
    assert storage.create_if_absent(str(tmp_path / "_SUCCESS"), b"")
    assert storage.create_if_absent(str(tmp_path / "_SUCCESS"), b"")
    assert os.listdir(tmp_path) == ["_SUCCESS"]


def test_folder_removed_by_another_program_is_recreated(tmp_path, monkeypatch):
    make, removed = os.makedirs, []

    def make_and_lose(path: str, **named: bool) -> None:
        make(path, **named)
        if len(removed) < 3:
            removed.append(os.rmdir(path))

    monkeypatch.setattr(os, "makedirs", make_and_lose)
    assert storage.create_if_absent(str(tmp_path / "_runs/1.json"), b"x")
    assert os.listdir(tmp_path / "_runs") == ["1.json"]
    assert len(removed) == 3
