"""A real file system that is too small, or may no longer be written: what is committed stays, the next run goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpora import random_lines
from workplace import Workplace


def mounted(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def place(workplace: Workplace) -> Iterator[Workplace]:
    """Some 60 blocks, 12 MB of parts, and `small/`: a file system of 4 MB."""
    folder = workplace.folder / "small"
    folder.mkdir()
    done = mounted(folder, "size=4m")
    if done.returncode:
        pytest.skip(f"a file system can be mounted by root only ({done.stderr.strip()})")
    workplace.write("corpus/a.txt", "\n".join(random_lines(1500)))
    workplace.configure(
        input={"slice_bytes": 3000}, output={"path": "small/out"}, views={"t": {"level": "token", "layers": [-1, 0]}}
    )
    workplace.run("--output", "undisturbed")
    yield workplace
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_that_grows(place):
    refused = place.run(status=2).err
    assert "output.path: small/out has 4.19 MB free, and this run writes about" in refused
    err = place.run("--force", status=1).err
    assert "layerbeam: failed: OSError: [Errno 28] No space left on device" in err
    assert err.splitlines()[-1].startswith("layerbeam: completed blocks are kept; rerun the same command to resume")
    before = list((place.folder / "small/out/_commits").iterdir())
    assert len(before) > 5
    place.run("--force", status=1)  # still full
    assert mounted(place.folder / "small", "remount", "size=64m").returncode == 0
    place.run()
    assert place.files("small/out") == place.files("undisturbed")


def test_a_disk_that_becomes_read_only(place):
    assert mounted(place.folder / "small", "remount", "size=64m").returncode == 0
    process = place.at_work(commits=3, output="small/out")
    while process.poll() is None and mounted(place.folder / "small", "remount", "ro").returncode:
        pass  # busy: a file is being written
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "Read-only file system" in err
    assert "Traceback" not in err
    assert "output.path: cannot write to small/out: Read-only file system" in place.run(status=2).err
    assert mounted(place.folder / "small", "remount", "rw,size=64m").returncode == 0
    place.run()
    assert place.files("small/out") == place.files("undisturbed")
