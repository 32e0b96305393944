"""Flink, Spark, Beam's own job service and Prism write the bytes of a local run, also when workers are killed.

Each engine has its make target: test-flink, test-spark, test-pool, test-prism.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster import Cluster, cluster
from corpora import random_lines
from repository import DATA, ROOT
from workplace import THREE_VIEWS, tree_hashes

HOOK = Path(__file__).parent / "hook"
# No run here takes nearly as long; a run that hangs would never end.
TIMEOUT = 240
BLOCKS = 120
# One worker process serves all stages of a job: faster for short jobs, but a process that dies is not replaced.
ONE_WORKER_PROCESS = "--environment_cache_millis=5000"


@dataclasses.dataclass
class Engine:
    """A running cluster, a corpus, and the output of a local run over it."""

    cluster: Cluster
    folder: Path

    def start(self, output: str, *options: str, config: Path | None = None) -> subprocess.Popen[str]:
        """Start `layerbeam run` into a folder of that name."""
        given = ["run", str(config or self.folder / "c.yaml"), "--output", str(self.folder / output), *options]
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

    def run(self, output: str, *options: str, config: Path | None = None, status: int = 0) -> str:
        return self.stderr_of(self.start(output, *options, config=config), status)

    def on_engine(self, output: str, *options: str, config: Path | None = None, status: int = 0) -> str:
        return self.run(output, *self.cluster.options, *options, config=config, status=status)

    def files(self, output: str) -> dict[str, str]:
        return tree_hashes(self.folder / output)

    def commits(self) -> list[tuple[int, int, str]]:
        """(node, process, name) of each commit since the last call."""
        noted = self.folder / "noted" / "commits"
        lines = noted.read_text().splitlines() if noted.exists() else []
        noted.unlink(missing_ok=True)
        return [(int(node), int(process), name) for node, process, name in map(str.split, lines)]

    def kill(self, what: str, order: str) -> Path:
        """Request that the hook kills a `process` or a `node`."""
        path = self.folder / "noted" / f"kill-{what}"
        path.write_text(order)
        return path


@pytest.fixture(scope="module", params=["flink", "spark", "pool", "prism"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp(request.param)
    for number in range(12):
        path = folder / "corpus" / f"{number:02}.txt"
        path.parent.mkdir(exist_ok=True)
        lines = [line.encode() for line in random_lines(150, seed=number)]
        path.write_bytes(b"\n".join([*lines[:70], b"no \xff text", *lines[70:]]))
    settings = {
        "input": {"files": [str(folder / "corpus" / "*.txt")], "slice_bytes": 1500},
        "encoder": {"handle": str(DATA / "hf_uncased")},
        "views": THREE_VIEWS,
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(settings))
    (folder / "noted").mkdir()
    hooked = {
        "PYTHONPATH": os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "COMMITS_NOTED": str(folder / "noted"),
    }
    with cluster(request.param, folder / "cluster", environment=hooked) as made:
        started = Engine(made, folder)
        started.run("local")
        yield started


killed = pytest.mark.parametrize("engine", ["flink", "spark"], indirect=True)


def test_demo(engine):
    demo = ["--input", str(ROOT / "configs/demo/*.txt")]
    config = ROOT / "configs/demo.yaml"
    engine.on_engine("demo", *demo, ONE_WORKER_PROCESS, config=config)
    engine.run("local-demo", *demo, config=config)
    assert engine.files("demo") == engine.files("local-demo")
    assert "_SUCCESS" in engine.files("demo")


def test_engine_writes_bytes_of_local_run(engine):
    engine.commits()
    engine.on_engine("many", ONE_WORKER_PROCESS)
    assert engine.files("many") == engine.files("local")
    of_nodes = collections.Counter(node for node, _, _ in engine.commits())
    assert sum(of_nodes.values()) == (
        0 if engine.cluster.engine == "prism" else BLOCKS
    )  # its workers are threads of the run's process
    if engine.cluster.engine in ("flink", "spark"):  # two nodes, and blocks of equal size
        assert len(of_nodes) == 2
        assert min(of_nodes.values()) > BLOCKS / 4
    assert "nothing to do" in engine.on_engine("many")
    assert engine.commits() == []


def test_one_compressed_file_is_encoded_by_all_nodes(engine):
    """One of them reads it."""
    lines = b"\n".join(path.read_bytes() for path in sorted((engine.folder / "corpus").iterdir()))
    (engine.folder / "one.txt.gz").write_bytes(gzip.compress(lines))
    one = ["--input", str(engine.folder / "one.txt.gz")]
    engine.run("local-one", *one)
    engine.commits()
    engine.on_engine("one", *one, ONE_WORKER_PROCESS)
    assert engine.files("one") == engine.files("local-one")
    of_nodes = collections.Counter(node for node, _, _ in engine.commits())
    if engine.cluster.engine in ("flink", "spark"):
        assert len(of_nodes) == 2
        assert min(of_nodes.values()) > sum(of_nodes.values()) / 4


def check_resumed(engine: Engine, output: str, commits: list[tuple[int, int, str]]) -> None:
    """Only the blocks in hand at the kill, one on each of two nodes, were encoded again; the others were found."""
    assert BLOCKS <= len(commits) <= BLOCKS + 2
    counts = json.loads((engine.folder / output / "_runs/1.json").read_text())["counts"]
    assert counts["blocks_found_own_attempt"] > 0


@killed
def test_killed_worker_process_is_replaced(engine):
    engine.commits()
    order = engine.kill("process", "20")
    engine.on_engine("killed-process")
    assert not order.exists()
    commits = engine.commits()
    assert len({process for _, process, _ in commits}) > 2
    check_resumed(engine, "killed-process", commits)
    assert engine.files("killed-process") == engine.files("local")


@killed
def test_killed_node_is_replaced(engine):
    engine.commits()
    order = engine.kill("node", "20")
    with engine.start("killed-node", *engine.cluster.options) as process:
        while order.exists():
            assert process.poll() is None, engine.stderr_of(process, 0)
            time.sleep(0.05)
        engine.cluster.replace_dead_workers()
        engine.stderr_of(process, 0)
    commits = engine.commits()
    # Flink needs two nodes, so a third one takes part. On Spark the one that is left may do the rest.
    assert len({node for node, _, _ in commits}) in ((3,) if engine.cluster.engine == "flink" else (2, 3))
    check_resumed(engine, "killed-node", commits)
    assert engine.files("killed-node") == engine.files("local")


@killed
def test_workers_that_die_repeatedly_end_run_and_next_run_resumes(engine):
    order = engine.kill("process", "5 always")
    try:
        err = engine.on_engine("dying", ONE_WORKER_PROCESS, status=1)
    finally:
        order.unlink()
    assert "layerbeam: failed: " in err
    committed = set(os.listdir(engine.folder / "dying" / "_commits"))
    assert committed
    engine.commits()
    engine.on_engine("dying", ONE_WORKER_PROCESS)
    assert engine.files("dying") == engine.files("local")
    assert not committed & {name for _, _, name in engine.commits()}


@pytest.mark.parametrize("engine", ["pool"], indirect=True)
def test_killed_worker_of_a_pool_ends_the_run_and_the_next_run_resumes(engine):
    """Beam's own job service does not replace it."""
    engine.commits()
    order = engine.kill("process", "20")
    assert "layerbeam: failed: " in engine.on_engine("killed", status=1)
    assert not order.exists()
    engine.on_engine("killed")
    assert BLOCKS <= len(engine.commits()) <= BLOCKS + 2
    assert engine.files("killed") == engine.files("local")
