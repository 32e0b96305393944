"""SIGINT and SIGTERM at any moment end a run soon, quietly and with their status; the next one resumes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from corpora import random_lines
from job_service import external, job_service, worker_pool
from workplace import THREE_VIEWS, Workplace

# Twice what is promised: other tests may load the machine.
SECONDS = 20
END_OF_SUMMARY = ": later runs add to them\n"  # in a log


@contextlib.contextmanager
def arguments_of(mode: str, workplace: Workplace) -> Iterator[list[str]]:
    if mode != "remote":
        yield ["--processes", "2"] if mode == "processes" else []
        return
    apart = workplace.folder.with_name("apart")
    apart.mkdir()
    with job_service(apart) as server, worker_pool(apart) as pool:
        yield [*external(server, pool), "--cancel-on-interrupt"]


def start(workplace: Workplace, arguments: list[str]) -> subprocess.Popen[str]:
    """A run, from the moment when the code of the command has begun."""
    where = [f"--input={workplace.folder}/corpus/*", f"--output={workplace.folder}/out"]
    command = workplace.command("run", "c.yaml", *where, *arguments)
    with open(workplace.folder / "printed.txt", "w") as printed:  # not a pipe, which would stay open until workers end
        process = subprocess.Popen(command, cwd=workplace.folder, stdout=printed, stderr=printed, text=True)
    while not catches(process.pid, signal.SIGTERM):
        assert process.poll() is None
        time.sleep(0.001)
    return process


def catches(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        return any(line.startswith("SigCgt:") and int(line[7:], 16) >> (number - 1) & 1 for line in status)


def processes_in(workplace: Workplace) -> list[str]:
    """Processes whose current folder is this one."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/cwd") == str(workplace.folder) and int(pid) != os.getpid():
                found.append(pid)
    return found


@pytest.mark.parametrize("mode", ["threads", "processes", "remote"])
def test_a_signal_at_any_moment_ends_the_run(workplace, soak, mode):
    workplace.prepare("\n".join(random_lines(2000)), views=THREE_VIEWS, input={"slice_bytes": 1500})
    workplace.drive("--input", f"{workplace.folder}/corpus/*", "--output", "undisturbed")
    assert len((workplace.folder / "undisturbed/parts.jsonl").read_text().splitlines()) > 50
    out, table = workplace.folder / "out", []
    with arguments_of(mode, workplace) as arguments:
        began = time.monotonic()
        process = start(workplace, arguments)
        assert process.wait() == 0
        duration = time.monotonic() - began
        shutil.rmtree(out)
        while len(table) < (20 if soak else 2):
            moment, number = random.uniform(0, duration), random.choice([signal.SIGINT, signal.SIGTERM])
            process = start(workplace, arguments)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            process.send_signal(number)
            if random.random() < 0.3:  # an impatient second one
                process.send_signal(number)
            sent = time.monotonic()
            process.wait(60)
            seconds = time.monotonic() - sent
            until = time.monotonic() + SECONDS
            while (left := processes_in(workplace)) and time.monotonic() < until:
                time.sleep(0.05)
            printed = (workplace.folder / "printed.txt").read_text()
            row = (mode, f"{moment:.1f} s", number.name, process.returncode, f"{seconds:.1f} s", len(left))
            assert not left, (row, printed)
            assert "Traceback" not in printed, row
            # The run was over already. Python takes its handlers away while it ends.
            if process.returncode in (0, -number) and printed.endswith(END_OF_SUMMARY):
                shutil.rmtree(out)
                duration = min(duration, moment)
                continue
            assert process.returncode == 128 + number, (row, printed)
            assert seconds < SECONDS, row
            assert "layerbeam: interrupted" in printed.splitlines()[-1], (row, printed)
            table.append(row)
        assert start(workplace, arguments).wait() == 0
    assert workplace.files() == workplace.files("undisturbed")
    print(*table, sep="\n")


def test_a_signal_at_the_first_moment_ends_the_run(workplace):
    workplace.prepare("one line")
    for number in (signal.SIGINT, signal.SIGTERM) * 5:
        process = start(workplace, [])
        process.send_signal(number)
        assert process.wait() == 128 + number
        assert (workplace.folder / "printed.txt").read_text() == "layerbeam: interrupted\n"
    assert not (workplace.folder / "out").exists()
