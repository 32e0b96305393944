"""Power cuts: ext4 on a loop device forgets what it has not put on the disk. As root on Linux; skipped elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpora import random_lines
from workplace import Workplace

VIEWS = {"t": {"level": "token", "layers": [-1, 0]}, "s": {"level": "text", "layers": [1], "format": "tfrecord"}}
# EXT4_IOC_SHUTDOWN of Linux's fs/ext4/ext4.h, without writing the journal: what a power cut does.
_SHUTDOWN, _WITHOUT_JOURNAL = 0x8004587D, struct.pack("I", 2)


class Disk:
    """A file system of its own, mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.image = folder, folder.with_suffix(".image")
        folder.mkdir()
        with self.image.open("wb") as image:
            image.truncate(200 << 20)
        try:
            subprocess.run(["mkfs.ext4", "-q", self.image], check=True, capture_output=True)
            self.mount()
            self.cut()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this machine lets nobody mount a disk and cut it off: {getattr(error, 'stderr', error)!r}")

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self.image, self.folder], check=True, capture_output=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", self.folder], check=False, capture_output=True)

    def put_names(self, folder: str) -> None:
        """What may be on the disk a few seconds later: the names in a folder, not yet what the files hold."""
        with self._open(folder) as file:
            os.fsync(file)

    def cut(self) -> None:
        """The disk as it is after a power cut at this moment."""
        with self._open() as file:
            fcntl.ioctl(file, _SHUTDOWN, _WITHOUT_JOURNAL)
        subprocess.run(["umount", self.folder], check=True, capture_output=True)
        self.mount()

    @contextlib.contextmanager
    def _open(self, folder: str = ".") -> Iterator[int]:
        file = os.open(self.folder / folder, os.O_RDONLY)
        try:
            yield file
        finally:
            os.close(file)


@pytest.fixture
def disks(workplace: Workplace) -> Iterator[list[Disk]]:
    disks = []
    with contextlib.ExitStack() as stack:
        for name in ("disk", "other"):
            disks.append(Disk(workplace.folder / name))
            stack.callback(disks[-1].unmount)
        yield disks


def configure(workplace: Workplace) -> None:
    workplace.write("corpus/a.txt", "\n".join(random_lines(1500)))
    workplace.configure(input={"slice_bytes": 3000}, output={"path": "disk/out"}, views=VIEWS)


def test_after_success_all_parts_are_whole(workplace, disks):
    configure(workplace)
    disk, other = disks
    workplace.write("corpus/0.txt", "the first line\n")
    workplace.run("--input", "corpus/0.txt")
    shutil.move("disk/out/s", "other/s")
    os.symlink(workplace.folder / "other/s", "disk/out/s")
    workplace.run()
    files = workplace.files("disk/out")
    assert len(list(Path("disk/out/t").iterdir())) > 30
    disk.put_names("out")
    other.put_names("s")
    for each in disks:
        each.cut()
    assert os.path.exists("disk/out/_SUCCESS")
    assert workplace._call("verify", "disk/out", "--checksums", status=0).out.endswith("pass\n")
    assert workplace.files("disk/out") == files
    assert "nothing to do" in workplace.run().err


def test_a_run_that_a_power_cut_ends_is_resumed(workplace, disks, soak):
    configure(workplace)
    workplace.drive("--output", "undisturbed")
    for commits in range(1, 34, 2 if soak else 16):
        process = workplace.at_work(output="disk/out", commits=commits)
        if commits % 4 == 1:
            disks[0].put_names("out/_commits")
        process.kill()
        process.communicate()
        disks[0].cut()
        workplace.drive()
        assert workplace.files("disk/out") == workplace.files("undisturbed")
        subprocess.run(["rm", "-r", "disk/out"], check=True)
