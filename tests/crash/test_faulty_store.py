"""Disks and stores that fail by a seeded plan: a run that is restarted until it ends loses and duplicates nothing."""

from __future__ import annotations

import collections
import contextlib
import errno
import faulthandler
import gzip
import hashlib
import io
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import random_lines
from drive import driving
from flaky_filesystem import SCHEME, FaultyFileSystem, Plan
from workplace import Workplace

from layerbeam import transforms
from layerbeam.pipeline.config import job
from layerbeam.transforms import storage
from layerbeam.transforms.storage import files, listing

KINDS = ("open", "read", "create", "write", "close", "truncate", "list", "stat", "delete", "delay")
VIEWS = {
    "tokens": {"level": "token", "layers": [-1]},
    "texts": {"level": "text", "layers": [2], "format": "jsonl"},
    "types": {"level": "word_type", "layers": [1]},
}
MAX_STARTS = 60


@pytest.fixture(scope="module")
def encoders() -> dict[str, Any]:
    """Each encoder, loaded once for all runs of this file."""
    return {}


@pytest.fixture
def prepared(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, encoders: dict[str, Any], plan: int
) -> Iterator[Workplace]:
    """About 20 blocks of lines, plain and compressed, some of them blank, some rejected; two of three plans drive."""
    lines = [line.encode() for line in random_lines(200)]
    lines[30::50] = [b"no \xff text"] * len(lines[30::50])
    workplace.write("corpus/a.txt", b"\n".join(lines))
    workplace.write("corpus/b.txt.gz", gzip.compress("\n".join(random_lines(60, seed=1)).encode(), mtime=0))
    workplace.write("corpus/c.txt", "one line\n")
    logging.disable(logging.CRITICAL)  # as in the command's own process
    monkeypatch.setattr(time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.02)))
    load = job.Job.load_encoder
    monkeypatch.setattr(
        job.Job, "load_encoder", lambda job: encoders.setdefault("small", None) or _keep(encoders, load(job))
    )
    with driving(arithmetic=True) if plan % 3 else contextlib.nullcontext():
        yield workplace
    logging.disable(logging.NOTSET)


def _keep(encoders: dict[str, Any], encoder: Any) -> Any:
    encoders["small"] = encoder
    return encoder


def fault_rates(plan: int) -> Plan:
    """Faults of some kinds, rare or frequent, 25 at most: after that the disk works."""
    random = np.random.default_rng(plan)
    kinds = [str(kind) for kind in random.choice(KINDS, int(random.integers(1, 5)), replace=False)]
    rates = {kind: float(random.choice([0.01, 0.05, 0.3])) for kind in kinds}
    return Plan(plan, rates, faults=25)


def check_listed_parts(out: Path) -> None:
    """After a run has ended: each listed part is whole, no line is in two of them, and there is no other part."""
    listed = [json.loads(line) for line in (out / "parts.jsonl").read_text().splitlines()]
    paths = set()
    for commit in listed:
        for part in commit["parts"].values():
            data = (out / part["path"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (part["bytes"], part["sha256"]), part
            paths.add(part["path"])
    blocks = [(own["file"]["path"], own["first_line"]) for commit in listed for own in commit["files"]]
    assert len(blocks) == len(set(blocks))
    folders = ("tokens", "texts", "types", "_word_types/types", "rejects")
    there = {f"{folder}/{path.name}" for folder in folders for path in (out / folder).glob("*")}
    without_rows = {view for view in VIEWS if not any(path.startswith(f"{view}/") for path in paths)}
    assert {path for path in there if not path.startswith(tuple(f"{view}/empty." for view in without_rows))} == paths


def run_until_done(prepared: Workplace, out: str) -> collections.Counter[int]:
    """Restarts the run until it ends; returns the exit statuses."""
    statuses: collections.Counter[int] = collections.Counter()
    while sum(statuses.values()) < MAX_STARTS:
        status = start(prepared, out)
        statuses[status] += 1
        assert status in (0, 1, 2, 3)
        folder = Path(out.removeprefix(SCHEME))
        if status in (0, 3):
            check_listed_parts(folder)
            assert (folder / "_SUCCESS").exists() == (status == 0)
        if status == 0:
            return statuses
    raise AssertionError(f"not done after {statuses}")


def start(prepared: Workplace, out: str, *beam_options: str) -> int:
    from layerbeam.pipeline.cli.main import main

    for record in Path(out.removeprefix(SCHEME), "_runs").glob("*"):
        os.utime(record, (1, 1))  # as if it had been silent for long
    status = main(["run", "c.yaml", "--output", out, *beam_options], version="test")
    _, err = prepared._capture()
    assert "Traceback" not in err
    while has_busy_thread():
        time.sleep(0.01)  # the command's own process would have ended this thread
    return status


def has_busy_thread() -> bool:
    """Whether a thread left by the runner is still processing a block."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)  # `sys._current_frames` of running threads has crashed Python 3.11
        file.seek(0)
        threads = file.read().split("\n\n")
    own = f'File "{os.path.dirname(transforms.__file__)}'
    return any(own in frames and not frames.startswith("Current thread") for frames in threads)


def test_flaky_store_loses_and_duplicates_nothing(prepared, plan, monkeypatch):
    monkeypatch.setattr(FaultyFileSystem, "plan", Plan())
    root = f"{SCHEME}{prepared.folder}"
    prepared.configure(input={"files": [f"{root}/corpus/*"], "slice_bytes": 1500, "max_reject_rate": 1.0}, views=VIEWS)
    assert start(prepared, f"{root}/undisturbed") == 0
    faulty = fault_rates(plan)
    monkeypatch.setattr(FaultyFileSystem, "plan", faulty)
    statuses = run_until_done(prepared, f"{root}/out")
    monkeypatch.setattr(FaultyFileSystem, "plan", Plan())
    assert prepared.files() == prepared.files("undisturbed")
    print(f"plan {plan}: {faulty.shares}, {len(faulty.happened)} faults, statuses {dict(statuses)}")


def test_flaky_service_loses_and_duplicates_nothing(prepared, plan, request, monkeypatch):
    """Two answers of a hundred fail, and these requests are repeated: the first run ends well."""
    kind = ("gs", "s3")[plan % 2]
    service = request.getfixturevalue({"gs": "google", "s3": "s3"}[kind])
    root = f"{kind}://out"
    for path in (prepared.folder / "corpus").iterdir():
        with storage.write_atomically(f"{root}/corpus/{path.name}") as file:
            file.write(path.read_bytes())
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(seconds / 50))
    prepared.configure(input={"files": [f"{root}/corpus/*"], "slice_bytes": 1500, "max_reject_rate": 1.0}, views=VIEWS)
    trees = []
    for name in ("undisturbed", "out"):
        assert start(prepared, f"{root}/{name}", *service.options) == 0
        paths = [path for path in storage.list_tree(f"{root}/{name}") if not path.startswith("_runs/")]
        trees.append({path: storage.read_bytes(f"{root}/{name}/{path}") for path in paths})
        service.faults.befall(0.02, seed=plan)
    assert trees[1] == trees[0]
    assert len(trees[0]) > 30
    print(f"plan {plan}, {kind}: {dict(service.faults.happened)}")


class FaultyDisk:
    """Replaces the module `os` and `open` in `layerbeam.transforms.storage`, and fails by the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def replace(self, source: str, target: str) -> None:
        self._plan.step("close", target)
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        self._plan.step("close", target)
        os.link(source, target)

    def remove(self, path: str) -> None:
        self._plan.step("delete", path)
        os.remove(path)

    def scandir(self, path: str) -> Iterator[Any]:
        self._plan.step("list", path)
        return os.scandir(path)

    def stat(self, path: str) -> os.stat_result:
        self._plan.step("stat", path)
        return os.stat(path)

    def open_file(self, path: str, mode: str, **named: Any) -> Any:
        self._plan.step("create" if mode != "rb" else "open", path)
        file = _FaultyFile(path, mode, self._plan, **named)
        return io.BufferedReader(file) if mode == "rb" else file


class _FaultyFile(io.FileIO):
    def __init__(self, path: str, mode: str, plan: Plan, **named: Any) -> None:
        super().__init__(path, mode, **named)
        self._plan, self._written = plan, 0

    def readinto(self, buffer: Any) -> int:
        self._plan.step("read", str(self.name))
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._plan.step("read", str(self.name))
        return super().readall()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._plan.strikes("write", str(self.name)):
            super().write(view[: len(view) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(view) and self._plan.strikes("truncate", str(self.name)):
            return super().write(view[: len(view) // 2]) * 0 + len(view)
        return super().write(view)


def test_flaky_disk_loses_and_duplicates_nothing(prepared, plan, monkeypatch):
    prepared.configure(input={"slice_bytes": 1500, "max_reject_rate": 1.0}, views=VIEWS)
    assert start(prepared, "undisturbed") == 0
    faulty = fault_rates(1000 + plan)
    with monkeypatch.context() as patch:
        disk = FaultyDisk(faulty)
        for module in (files, listing):  # all of the package that touch a disk
            patch.setattr(module, "os", disk)
            patch.setattr(module, "open", disk.open_file, raising=False)
        statuses = run_until_done(prepared, "out")
    assert prepared.files() == prepared.files("undisturbed")
    print(f"plan {plan}: {faulty.shares}, {len(faulty.happened)} faults, statuses {dict(statuses)}")
