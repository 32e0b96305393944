"""A real file system that is too small or becomes read-only: committed blocks are kept, the next run resumes."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpora import random_lines
from workplace import Workplace


def mounted(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def prepared(workplace: Workplace) -> Iterator[Workplace]:
    """About 60 blocks, 12 MB of parts, and `small/`: a file system of 4 MB."""
    folder = workplace.folder / "small"
    folder.mkdir()
    done = mounted(folder, "size=4m")
    if done.returncode:
        pytest.skip(f"a file system can be mounted by root only ({done.stderr.strip()})")
    workplace.write("corpus/a.txt", "\n".join(random_lines(1500)))
    workplace.configure(
        input={"slice_bytes": 3000}, output={"path": "small/out"}, views={"t": {"level": "token", "layers": [-1, 0]}}
    )
    workplace.drive("--output", "undisturbed")
    yield workplace
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_that_grows(prepared):
    refused = prepared.run(status=2).err
    assert "output.path: small/out has 4.19 MB free, and this run writes about" in refused
    err = prepared.run("--force", status=1).err
    assert "layerbeam: failed: OSError: [Errno 28] No space left on device" in err
    assert err.splitlines()[-1].startswith("layerbeam: completed blocks are kept; rerun the same command to resume")
    before = list((prepared.folder / "small/out/_commits").iterdir())
    assert len(before) > 5
    with (prepared.folder / "small" / "rest").open("wb", buffering=0) as rest, contextlib.suppress(OSError):
        while True:
            rest.write(bytes(512))
    err = prepared.run("--force", status=2).err
    assert err.endswith("layerbeam: output.path: cannot write to small/out: No space left on device\n")
    assert mounted(prepared.folder / "small", "remount", "size=64m").returncode == 0
    prepared.drive()
    assert prepared.files("small/out") == prepared.files("undisturbed")


def test_disk_that_becomes_read_only(prepared):
    assert mounted(prepared.folder / "small", "remount", "size=64m").returncode == 0
    process = prepared.at_work(commits=3, output="small/out")
    while process.poll() is None and mounted(prepared.folder / "small", "remount", "ro").returncode:
        time.sleep(0.01)  # busy: a file is being written
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1, err
    assert "Read-only file system" in err
    assert "Traceback" not in err
    assert "output.path: cannot write to small/out: Read-only file system" in prepared.run(status=2).err
    assert mounted(prepared.folder / "small", "remount", "rw,size=64m").returncode == 0
    prepared.drive()
    assert prepared.files("small/out") == prepared.files("undisturbed")
