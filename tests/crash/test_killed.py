"""A run that is killed again and again, at any step, ends with the bytes of an undisturbed run."""

from __future__ import annotations

import collections
import gzip
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from corpora import random_lines
from workplace import THREE_VIEWS, Workplace

HOOK = Path(__file__).parent / "hook"


@pytest.fixture
def corpus(workplace: Workplace, soak: bool) -> Workplace:
    """At least 200 blocks of lines, some compressed, blank or rejected; `undisturbed` is their output."""
    for name in "ab":
        lines = [line.encode() for line in random_lines(4000 if soak else 1500, seed=ord(name))]
        lines[100::200] = [b"no \xff text"] * len(lines[100::200])
        workplace.write(f"corpus/{name}.txt", b"\n".join(lines))
    workplace.write("corpus/c.txt.gz", gzip.compress("\n".join(random_lines(300, seed=9)).encode(), mtime=0))
    workplace.configure(views=THREE_VIEWS, input={"slice_bytes": 1500})
    workplace.drive("--output", "undisturbed")
    assert len((workplace.folder / "undisturbed/parts.jsonl").read_text().splitlines()) > 200
    return workplace


def start(workplace: Workplace, *arguments: str, kill_at: str = "") -> subprocess.Popen:
    environment = os.environ | {
        "PYTHONPATH": str(HOOK),
        "KILL_AT": kill_at,
        "KILL_LOG": str(workplace.folder / "killed.txt"),
    }
    return subprocess.Popen(
        workplace.command("run", "c.yaml", *arguments),
        cwd=workplace.folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(workplace: Workplace, *arguments: str, kill_at: str) -> tuple[int, str]:
    """(exit status, standard error) of a run that is killed at this step, or ends if it never reaches it."""
    with start(workplace, *arguments, kill_at=kill_at) as process:
        _, err = process.communicate(timeout=120)
    return process.returncode, err


def killed_at_any_time(workplace: Workplace, random: np.random.Generator) -> tuple[int, str]:
    """Killed while it starts, or a moment after its first commit."""
    commits = workplace.folder / "out/_commits"
    before: set[str] | None = set(os.listdir(commits)) if commits.exists() else set()
    until = time.monotonic() + (random.uniform(0.2, 5) if random.random() < 0.5 else 60)
    with start(workplace) as process:
        while time.monotonic() < until and process.poll() is None:
            if before is not None and commits.exists() and not set(os.listdir(commits)) <= before:
                until, before = min(until, time.monotonic() + random.uniform(0, 0.1)), None
            time.sleep(0.001)
        process.kill()
        _, err = process.communicate()
    return process.returncode, err


def check_listed_parts(workplace: Workplace) -> None:
    """After any kill: no line is listed twice, and `_SUCCESS` exists only if the output is complete."""
    out = workplace.folder / "out"
    parts = out / "parts.jsonl"
    lines = parts.read_text().splitlines() if parts.exists() else []
    blocks = [(own["file"]["path"], own["first_line"]) for line in lines for own in json.loads(line)["files"]]
    assert len(blocks) == len(set(blocks))
    if (out / "_SUCCESS").exists():
        same = workplace.files("undisturbed")
        assert {name: workplace.files()[name] for name in same} == same


def test_driver_killed_repeatedly(corpus, soak):
    random = np.random.default_rng()
    rounds = {"block": 36, "finish": 12, "any time": 12} if soak else {"block": 4, "finish": 2, "any time": 1}
    log = corpus.folder / "killed.txt"
    kills = collections.Counter()
    for phase in random.permutation(["any time"] * rounds["any time"] + ["block"] * rounds["block"]):
        if phase == "block":
            status, err = killed(corpus, kill_at=f"block {random.integers(1, 12)}")
        else:
            status, err = killed_at_any_time(corpus, random)
        assert status == -signal.SIGKILL, err
        kills[str(phase)] += 1
        check_listed_parts(corpus)
    for number in range(rounds["finish"]):
        # The first steps delete `_SUCCESS` and write index, table and manifest; many others delete commits.
        status, err = killed(corpus, kill_at=f"finish {random.integers(1, 7 if number % 2 else 40)}")
        assert status in (0, -signal.SIGKILL), err
        kills["finish"] += status != 0
        check_listed_parts(corpus)
    assert killed(corpus, kill_at="")[0] == 0
    assert corpus.files() == corpus.files("undisturbed")
    where = log.read_text().splitlines()
    assert sum(line.startswith("block") for line in where) == rounds["block"] >= sum(kills.values()) / 2
    assert not soak or any("_commits" in line for line in where), where
    print(dict(kills), *where, sep="\n")


def test_worker_killed_repeatedly(corpus, soak):
    """Beam alone would wait for the worker forever; here the run ends with status 1, and the next one resumes."""
    random = np.random.default_rng()
    for _ in range(12 if soak else 2):
        number = random.integers(1, 12)
        status, err = killed(corpus, "--processes", "2", kill_at=f"block {number} worker_process")
        assert status == 1, err
        assert err.splitlines()[-1] == (
            "layerbeam: a worker process was killed by SIGKILL (out of memory? give fewer --processes); completed "
            "blocks are kept: run the same command again to resume"
        )
        check_listed_parts(corpus)
    assert killed(corpus, "--processes", "2", kill_at="")[0] == 0
    assert corpus.files() == corpus.files("undisturbed")
    pids = subprocess.run(
        ["pgrep", "-f", "layerbeam.pipeline.run.worker_process"], capture_output=True, text=True, check=False
    )
    folders = [os.readlink(f"/proc/{pid}/cwd") for pid in pids.stdout.split() if os.path.exists(f"/proc/{pid}/cwd")]
    assert str(corpus.folder) not in folders  # other tests have workers too


def test_small_files_and_compressed_ones(workplace, soak):
    """Killed in blocks of several files and of a .zst, and later at the end of a run that copies rows."""
    for number in range(70):
        workplace.write(f"corpus/{number:02}.txt", f"the river {number}\nand the bank of it\n" * (1 + number % 3))
    with pa.output_stream(str(workplace.folder / "corpus/z.txt.zst"), compression="zstd") as file:
        file.write("\n".join(random_lines(300)).encode())
    views = {"tokens": {"level": "token", "layers": [-1, 0]}, "texts": {"level": "text", "layers": [2]}}
    workplace.configure(views=views, input={"slice_bytes": 2_000})
    workplace.drive("--output", "undisturbed")
    for number in range(1, 14) if soak else (2, 6):
        status, err = killed(workplace, kill_at=f"block {number}")
        assert status == -signal.SIGKILL, err
        check_listed_parts(workplace)
    assert killed(workplace, kill_at="")[0] == 0
    assert workplace.files() == workplace.files("undisturbed")
    for number in (1, 2, 40):
        workplace.write(f"corpus/{number:02}.txt", "changed\n")
    (workplace.folder / "corpus/60.txt").unlink()
    workplace.drive("--prune-missing", "--output", "undisturbed")
    for number in range(1, 20) if soak else (1, 3):
        status, err = killed(workplace, "--prune-missing", kill_at=f"finish {number}")
        assert status in (0, -signal.SIGKILL), err
    assert killed(workplace, "--prune-missing", kill_at="")[0] == 0
    assert workplace.files() == workplace.files("undisturbed")


def test_nights_of_edits(workplace, soak):
    """Killed at any step, also of copies, and edited again before the next attempt."""
    pick = random.Random(None if soak else 0)
    lines = random_lines(600, seed=pick.randrange(1000))
    workplace.prepare("\n".join(lines), views=THREE_VIEWS, input={"slice_bytes": 1500})
    workplace.drive()
    name, kills = "a.txt", 0
    for night in range(30 if soak else 2):
        for _ in range(pick.randint(1, 3)):
            place, size = pick.randrange(len(lines)), pick.choice((0, 1, 60))
            lines[place : place + size] = pick.choice(
                ([f"night {night}"], [], lines[-40:], random_lines(9, seed=night))
            )
        os.remove(f"corpus/{name}")
        name = pick.choice((name, f"{night}.txt"))
        workplace.write(f"corpus/{name}", "\n".join(lines))
        for phase, most in (("block", 12), ("finish", 20)):
            status, err = killed(workplace, "--prune-missing", kill_at=f"{phase} {pick.randint(1, most)}")
            assert status in (0, -signal.SIGKILL), err
            kills += status != 0
        if night % 2:
            assert killed(workplace, "--prune-missing", kill_at="")[0] == 0
            workplace.assert_equals_fresh()
    assert not soak or kills > 20
    print(kills, "kills")
