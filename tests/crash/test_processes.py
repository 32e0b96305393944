"""`--processes N`: workers in their own processes write the same bytes; if one dies, the run ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from corpora import random_lines
from workplace import Workplace

from layerbeam.pipeline.run import engines, worker_process

SLICE_BYTES = 1000
# The command, on a machine where processes would share a GPU.
ONE_ENCODER = """
import sys
from layerbeam.__main__ import main
from layerbeam.pipeline.run import encoder_process
encoder_process.is_needed = lambda device: True
sys.exit(main())
"""
BLOCKS_BEGUN = Path(__file__).parent / "blocks_begun"


def prepared(workplace: Workplace) -> None:
    workplace.prepare("\n".join(random_lines(1500)), input={"slice_bytes": SLICE_BYTES})


@pytest.fixture
def one_encoder(workplace, monkeypatch):
    """A prepared folder, whose commands have one process that encodes for the workers."""
    prepared(workplace)
    monkeypatch.setattr(workplace, "command", lambda *arguments: [sys.executable, "-c", ONE_ENCODER, *arguments])
    return workplace


def children(workplace: Workplace, kind: str = "(worker|encoder)_process") -> list[int]:
    """Processes of runs in this test's folder."""
    found = subprocess.run(
        ["pgrep", "-f", rf"layerbeam\.pipeline\.run\.{kind}"], capture_output=True, text=True, check=False
    )
    pids = [int(pid) for pid in found.stdout.split()]
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and _folder(pid) == str(workplace.folder)]


def _folder(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def wait_for_workers(workplace: Workplace, process: subprocess.Popen[str]) -> None:
    while len(children(workplace)) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)


def assert_workers_end(workplace: Workplace) -> None:
    """No worker is left after a few seconds: a worker that loads the encoder may notice only after loading."""
    until = time.monotonic() + 20
    while children(workplace):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_processes_write_same_bytes(workplace):
    prepared(workplace)
    # A user's own package of this name must not matter.
    workplace.write("pipeline/__init__.py", "raise ImportError('not this one')")
    workplace.run("--output", "threads")
    done = workplace.start("run", "c.yaml", "--processes", "2")
    assert done.status == 0
    lines = (r"loading Apache Beam and TensorFlow \.\.\.", "to write: .*", r"\d+%: .*", r"\d+\.\d s .*with 2 workers")
    assert re.fullmatch(rf"(\d\d:\d\d:\d\d ({'|'.join(lines)})\n){{3,}}", done.err)
    assert workplace.files() == workplace.files("threads")
    record = json.loads((workplace.folder / "out/_runs/1.json").read_text())
    assert (record["processes"], record["workers"]) == (2, 2)
    assert record["peak_memory_bytes"] > 600e6  # including the workers


def test_killed_worker_ends_run_and_next_run_resumes(workplace):
    prepared(workplace)
    with workplace.at_work("--processes", "2") as process:
        os.kill(max(children(workplace)), signal.SIGKILL)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert err.splitlines()[-1] == (
        "layerbeam: a worker process was killed by SIGKILL (out of memory? give fewer --processes); completed "
        "blocks are kept: run the same command again to resume"
    )
    assert "Traceback" not in err
    assert_workers_end(workplace)
    assert "out: unfinished: failed" in workplace.show().out
    workplace.run()
    workplace.run("--output", "threads")
    assert workplace.files() == workplace.files("threads")


def test_killed_worker_costs_at_most_one_block_per_thread(workplace, monkeypatch):
    """The whole run ends with the worker, so the other worker loses its current block, too: one block each, no more."""
    prepared(workplace)
    log = workplace.folder / "begun.txt"
    monkeypatch.setenv("BLOCKS_BEGUN", str(log))
    monkeypatch.setenv("PYTHONPATH", str(BLOCKS_BEGUN), prepend=os.pathsep)
    with workplace.at_work("--processes", "2", commits=20) as process:
        os.kill(max(children(workplace)), signal.SIGKILL)
        process.communicate(timeout=240)
    assert process.returncode == 1
    assert_workers_end(workplace)
    commits = [path for path in (workplace.folder / "out/_commits").glob("*.json") if path.stat().st_size]
    scanned = -(-(workplace.folder / "corpus/a.txt").stat().st_size // SLICE_BYTES)
    begun = len(log.read_text().splitlines()) - scanned
    workplace.run()
    encoded_again = json.loads((workplace.folder / "out/_runs/2.json").read_text())["counts"]["blocks_written"]
    blocks = len((workplace.folder / "out/parts.jsonl").read_text().splitlines())
    assert blocks > 100
    assert 20 <= len(commits) < blocks  # in the middle of the run
    assert encoded_again == blocks - len(commits)  # no committed block
    twice = begun - len(commits)
    assert 0 <= twice <= 2  # processes, each with one block


def test_workers_do_not_outlive_a_killed_driver(workplace):
    """Not even while nobody asks for its status: who reads its output to the end would wait for them."""
    prepared(workplace)
    with workplace.at_work("--processes", "2") as process:
        wait_for_workers(workplace, process)
        process.kill()
        assert_workers_end(workplace)
        assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is not None  # a zombie until here


def test_worker_of_a_driver_that_died_before():
    """Its parent is another process, as after the death of its own, although the number is that of a live process."""
    command = worker_process.worker_command(verbose=False)
    assert subprocess.run(["sh", "-c", f"({command}); exit $?"], timeout=240, check=False).returncode == 1


@pytest.mark.parametrize(("commits", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_signal_to_process_group_interrupts(workplace, commits, number):
    """So Ctrl-C and a service manager send it: also while the workers start, for which Beam waits."""
    prepared(workplace)
    with workplace.at_work("--processes", "2", commits=commits, new_session=True) as process:
        wait_for_workers(workplace, process)
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    assert err.splitlines()[-1].startswith("layerbeam: interrupted; completed blocks are kept")
    assert "Traceback" not in err
    assert_workers_end(workplace)
    assert "out: unfinished: interrupted" in workplace.show().out


def test_one_process_that_encodes_writes_same_bytes(one_encoder):
    one_encoder.run("--output", "threads")
    with one_encoder.at_work("--processes", "2") as process:
        encoders, workers = children(one_encoder, "encoder_process"), children(one_encoder, "worker_process")
        assert process.wait(timeout=240) == 0
    assert (len(encoders), len(workers)) == (1, 2)
    assert_workers_end(one_encoder)
    assert one_encoder.files() == one_encoder.files("threads")
    threads, processes = (
        json.loads((one_encoder.folder / name / "_runs/1.json").read_text())["counts"] for name in ("threads", "out")
    )
    for name in ("encoded_tokens", "padded_tokens", "blocks_written"):
        assert processes[name] == threads[name]
    assert processes["forward_microseconds"] > 0


def test_death_of_the_process_that_encodes_ends_run_and_next_run_resumes(one_encoder):
    with one_encoder.at_work("--processes", "2") as process:
        os.kill(*children(one_encoder, "encoder_process"), signal.SIGKILL)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert err.splitlines()[-1] == (
        "layerbeam: the process that encodes was killed by SIGKILL (out of memory? give fewer --processes); completed "
        "blocks are kept: run the same command again to resume"
    )
    assert "Traceback" not in err
    assert_workers_end(one_encoder)
    one_encoder.run()
    one_encoder.run("--output", "threads")
    assert one_encoder.files() == one_encoder.files("threads")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_process_that_encodes_does_not_outlive_its_run(one_encoder, number):
    """Neither if the driver alone is killed, nor if all of its processes get a signal."""
    with one_encoder.at_work("--processes", "2", new_session=True) as process:
        assert len(children(one_encoder, "encoder_process")) == 1
        (os.kill if number == signal.SIGKILL else os.killpg)(process.pid, number)
        _, err = process.communicate(timeout=240)
        assert_workers_end(one_encoder)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in err


def test_error_of_the_process_that_encodes_is_that_of_the_run(workplace, monkeypatch):
    """Processes of a run with `device: gpu` have one."""
    workplace.prepare("a line\n", encoder={"device": "gpu"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = workplace.start("run", "c.yaml", "--processes", "2")
    assert done.status == 1
    failed, hint = done.err.splitlines()[-2:]
    assert failed.startswith("layerbeam: failed: DeviceError: encoder.device: gpu, and TensorFlow")
    assert hint.startswith("layerbeam: completed blocks are kept")


def test_threads_are_divided_among_processes():
    four = engines.local_runner([], workers=4, processes=2)
    assert (four.workers, four.threads) == (2, 2)
    assert engines.local_runner([], workers=1, processes=3).threads == 1
    assert engines.local_runner([], workers=3).workers == 3
