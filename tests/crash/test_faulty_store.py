"""Disks and stores that fail by a seeded plan: started again until it ends, a run loses and doubles nothing."""

from __future__ import annotations

import collections
import errno
import gzip
import hashlib
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import random_lines
from flaky_filesystem import SCHEME, FaultyFileSystem, Plan
from workplace import Workplace

from layerbeam import transforms
from layerbeam.pipeline.config import job
from layerbeam.pipeline.output import lock
from layerbeam.transforms.storage import atomic, files, listing

KINDS = ("open", "read", "create", "write", "close", "truncate", "list", "stat", "delete", "delay")
VIEWS = {
    "tokens": {"level": "token", "layers": [-1]},
    "texts": {"level": "text", "layers": [2], "format": "jsonl"},
    "types": {"level": "word_type", "layers": [1]},
}
MOST_STARTS = 60


@pytest.fixture(scope="module")
def encoders() -> dict[str, Any]:
    """The encoder, loaded once for all runs of this file."""
    return {}


@pytest.fixture
def place(workplace: Workplace, monkeypatch: pytest.MonkeyPatch, encoders: dict[str, Any]) -> Iterator[Workplace]:
    """Some 20 blocks of lines, plain and compressed, some blank, some rejected."""
    lines = [line.encode() for line in random_lines(200)]
    lines[30::50] = [b"no \xff text"] * len(lines[30::50])
    workplace.write("corpus/a.txt", b"\n".join(lines))
    workplace.write("corpus/b.txt.gz", gzip.compress("\n".join(random_lines(60, seed=1)).encode(), mtime=0))
    workplace.write("corpus/c.txt", "one line\n")
    logging.disable(logging.CRITICAL)  # as in a process of the command's own
    monkeypatch.setattr(lock, "_SETTLE_SECONDS", 0)
    monkeypatch.setattr(lock, "_DEAD_AFTER_SECONDS", 0)
    load = job.Job.load_encoder
    monkeypatch.setattr(
        job.Job, "load_encoder", lambda job: encoders.setdefault("small", None) or _keep(encoders, load(job))
    )
    yield workplace
    logging.disable(logging.NOTSET)


def _keep(encoders: dict[str, Any], encoder: Any) -> Any:
    encoders["small"] = encoder
    return encoder


def shares(plan: int) -> Plan:
    """Faults of some kinds, seldom or often, 25 at most: then the disk is mended."""
    random = np.random.default_rng(plan)
    kinds = [str(kind) for kind in random.choice(KINDS, int(random.integers(1, 5)), replace=False)]
    rates = {kind: float(random.choice([0.01, 0.05, 0.3])) for kind in kinds}
    return Plan(plan, rates, faults=25)


def check_what_is_listed(out: Path) -> None:
    """Of a run that has ended: each part listed is whole, no line is in two of them, no other part is there."""
    listed = [json.loads(line) for line in (out / "parts.jsonl").read_text().splitlines()]
    paths = set()
    for commit in listed:
        for part in commit["parts"].values():
            data = (out / part["path"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (part["bytes"], part["sha256"]), part
            paths.add(part["path"])
    blocks = [(commit["block"]["file"]["path"], commit["block"]["first_line"]) for commit in listed]
    assert len(blocks) == len(set(blocks))
    folders = ("tokens", "texts", "_word_types/types", "rejects")
    there = {f"{folder}/{path.name}" for folder in folders for path in (out / folder).glob("*")}
    without_rows = {view for view in VIEWS if not any(path.startswith(f"{view}/") for path in paths)}
    assert {path for path in there if not path.startswith(tuple(f"{view}/empty." for view in without_rows))} == paths


def run_until_done(place: Workplace, out: str) -> collections.Counter[int]:
    """Start again and again; the statuses on the way."""
    statuses: collections.Counter[int] = collections.Counter()
    while sum(statuses.values()) < MOST_STARTS:
        status = start(place, out)
        statuses[status] += 1
        assert status in (0, 1, 2, 3)
        folder = Path(out.removeprefix(SCHEME))
        if status in (0, 3):
            check_what_is_listed(folder)
            assert (folder / "_SUCCESS").exists() == (status == 0)
        if status == 0:
            return statuses
    raise AssertionError(f"not done after {statuses}")


def start(place: Workplace, out: str) -> int:
    from layerbeam.pipeline.cli.main import main

    status = main(["run", "c.yaml", "--output", out], version="test")
    _, err = place._capture()
    assert "Traceback" not in err
    while any_thread_at_work():
        time.sleep(0.01)  # the end of the command's own process would have ended it
    return status


def any_thread_at_work() -> bool:
    """Whether a thread that the runner has left behind is still in a block."""
    for thread, frame in sys._current_frames().items():
        while thread != threading.main_thread().ident and frame is not None:
            if frame.f_code.co_filename.startswith(os.path.dirname(transforms.__file__)):
                return True
            frame = frame.f_back
    return False


def test_a_store_that_fails(place, plan, monkeypatch):
    monkeypatch.setattr(FaultyFileSystem, "plan", Plan())
    root = f"{SCHEME}{place.folder}"
    place.configure(input={"files": [f"{root}/corpus/*"], "slice_bytes": 1500}, views=VIEWS)
    assert start(place, f"{root}/undisturbed") == 0
    faulty = shares(plan)
    monkeypatch.setattr(FaultyFileSystem, "plan", faulty)
    statuses = run_until_done(place, f"{root}/out")
    monkeypatch.setattr(FaultyFileSystem, "plan", Plan())
    assert place.files() == place.files("undisturbed")
    print(f"plan {plan}: {faulty.shares}, {len(faulty.happened)} faults, statuses {dict(statuses)}")


class FaultyDisk:
    """Replaces the module `os` and `open` in `layerbeam.transforms.storage`, and fails by the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def replace(self, source: str, target: str) -> None:
        self._plan.step("close", target)
        os.replace(source, target)

    def remove(self, path: str) -> None:
        self._plan.step("delete", path)
        os.remove(path)

    def scandir(self, path: str) -> Iterator[Any]:
        self._plan.step("list", path)
        return os.scandir(path)

    def stat(self, path: str) -> os.stat_result:
        self._plan.step("stat", path)
        return os.stat(path)

    def open(self, path: str, mode: str) -> Any:
        self._plan.step("create" if mode != "rb" else "open", path)
        return _FaultyFile(path, mode, self._plan)


class _FaultyFile(io.FileIO):
    def __init__(self, path: str, mode: str, plan: Plan) -> None:
        super().__init__(path, mode)
        self._plan, self._written = plan, 0

    def readinto(self, buffer: Any) -> int:
        self._plan.step("read", str(self.name))
        return super().readinto(buffer)

    def read(self, size: int = -1) -> bytes:
        self._plan.step("read", str(self.name))
        return super().readall() if size < 0 else super().read(size)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._plan.strikes("write", str(self.name)):
            super().write(view[: len(view) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(view) and self._plan.strikes("truncate", str(self.name)):
            return super().write(view[: len(view) // 2]) * 0 + len(view)
        return super().write(view)


def test_a_disk_that_fails(place, plan, monkeypatch):
    place.configure(input={"slice_bytes": 1500}, views=VIEWS)
    assert start(place, "undisturbed") == 0
    faulty = shares(1000 + plan)
    with monkeypatch.context() as patch:
        disk = FaultyDisk(faulty)
        for module in (atomic, files, listing):  # all of the package that touch a disk
            patch.setattr(module, "os", disk)
            patch.setattr(module, "open", disk.open, raising=False)
        statuses = run_until_done(place, "out")
    assert place.files() == place.files("undisturbed")
    print(f"plan {plan}: {faulty.shares}, {len(faulty.happened)} faults, statuses {dict(statuses)}")
