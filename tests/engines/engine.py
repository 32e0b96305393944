"""Runs on a cluster, each in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from cluster import Cluster
from workplace import tree_hashes

# No run here takes nearly as long; a run that hangs would never end.
TIMEOUT = 240


@dataclasses.dataclass
class Engine:
    """A running cluster, and a folder with the configuration `c.yaml` and the outputs of runs."""

    cluster: Cluster
    folder: Path

    @property
    def blocks(self) -> int:
        """The blocks of the run into `local`. (A table of word types is a commit without files.)"""
        lines = (self.folder / "local/parts.jsonl").read_bytes().splitlines()
        return sum(bool(json.loads(line)["files"]) for line in lines)

    def start(self, output: str, *options: str) -> subprocess.Popen[str]:
        """Start `layerbeam run` into a folder of that name."""
        given = ["run", str(self.folder / "c.yaml"), "--output", str(self.folder / output), *options]
        return subprocess.Popen(
            [sys.executable, "-m", "layerbeam", *given],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stderr_of(self, process: subprocess.Popen[str], status: int) -> str:
        """Standard error of a run that ends with this status and without a traceback."""
        try:
            _, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            _, err = process.communicate()
            raise AssertionError(f"it hangs: {err[-3000:]}\n{self.cluster.logs()}") from None
        assert process.returncode == status, f"{err[-3000:]}\n{self.cluster.logs()}"
        assert "Traceback" not in err
        return err

    def run(self, output: str, *options: str, status: int = 0) -> str:
        return self.stderr_of(self.start(output, *options), status)

    def on_engine(self, output: str, *options: str, status: int = 0) -> str:
        return self.run(output, *self.cluster.options, *options, status=status)

    def files(self, output: str) -> dict[str, str]:
        return tree_hashes(self.folder / output)

    def commits(self) -> list[tuple[int, int, str]]:
        """(node, process, name) of the commit of each block of texts since the last call."""
        noted = self.folder / "noted" / "commits"
        lines = noted.read_text().splitlines() if noted.exists() else []
        noted.unlink(missing_ok=True)
        of_each = (line.split() for line in lines)
        return [(int(node), int(process), name) for node, process, name in of_each if name[:10] != "word_types"]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + TIMEOUT
        while not is_so():
            assert time.monotonic() < until, self.cluster.logs()
            time.sleep(0.1)

    def start_and_wait(self, output: str, *options: str) -> subprocess.Popen[str]:
        """A run on the engine that has written some of its blocks; earlier commits are forgotten."""
        self.commits()
        process = self.start(output, *self.cluster.options, *options)
        folder = self.folder / output / "_commits"
        self.wait_until(lambda: process.poll() is not None or (folder.is_dir() and len(os.listdir(folder)) >= 20))
        assert process.poll() is None, self.stderr_of(process, 0)
        return process

    def state(self, output: str, run: int = 1) -> str:
        """Of a run, by its record."""
        return str(json.loads((self.folder / output / f"_runs/{run}.json").read_text())["state"])

    def restarts(self) -> float:
        """Of Flink's jobs, as Prometheus gets them."""
        with urllib.request.urlopen(self.cluster.metrics["jobmanager"], timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        of_jobs = [line.split()[-1] for line in lines if line.startswith("flink_jobmanager_job_numRestarts{")]
        return max(map(float, of_jobs), default=0.0)

    def kill(self, what: str, order: str) -> Path:
        """Request that the hook kills a `process` or a `node`."""
        path = self.folder / "noted" / f"kill-{what}"
        path.write_text(order)
        return path
