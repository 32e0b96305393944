"""Flink, Spark, Beam's own job service and Prism give the bytes of a local run, also when workers are killed.

Each engine by its make target: test-flink, test-spark, test-pool, test-prism.
"""

from __future__ import annotations

import collections
import dataclasses
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
# No run here takes nearly as long; one that hangs would for ever.
LONGEST = 240
BLOCKS = 120
# A worker process serves all stages of a job, not one: faster for short jobs, but one that dies is not replaced.
KEEP = "--environment_cache_millis=5000"


@dataclasses.dataclass
class Engine:
    """A cluster at work, a corpus, and what a local run makes of it."""

    cluster: Cluster
    folder: Path

    def start(self, output: str, *options: str, config: Path | None = None) -> subprocess.Popen[str]:
        """`layerbeam run` into a folder of that name."""
        given = ["run", str(config or self.folder / "c.yaml"), "--output", str(self.folder / output), *options]
        return subprocess.Popen(
            [sys.executable, "-m", "layerbeam", *given],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self, process: subprocess.Popen[str], status: int) -> str:
        """By a run that ends, with this status, and with no traceback."""
        try:
            _, said = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
            raise AssertionError(f"it hangs: {said[-3000:]}\n{self.cluster.logs()}") from None
        assert process.returncode == status, f"{said[-3000:]}\n{self.cluster.logs()}"
        assert "Traceback" not in said
        return said

    def run(self, output: str, *options: str, config: Path | None = None, status: int = 0) -> str:
        return self.said(self.start(output, *options, config=config), status)

    def on_engine(self, output: str, *options: str, config: Path | None = None, status: int = 0) -> str:
        return self.run(output, *self.cluster.options, *options, config=config, status=status)

    def files(self, output: str) -> dict[str, str]:
        return tree_hashes(self.folder / output)

    def commits(self) -> list[tuple[int, int, str]]:
        """(node, process, name) of each commit since this was last asked."""
        noted = self.folder / "noted" / "commits"
        lines = noted.read_text().splitlines() if noted.exists() else []
        noted.unlink(missing_ok=True)
        return [(int(node), int(process), name) for node, process, name in map(str.split, lines)]

    def kill(self, what: str, order: str) -> Path:
        """Let a `process` or a `node` be killed, as the hook says."""
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


def test_the_demo(engine):
    demo = ["--input", str(ROOT / "configs/demo/*.txt")]
    config = ROOT / "configs/demo.yaml"
    engine.on_engine("demo", *demo, KEEP, config=config)
    engine.run("local-demo", *demo, config=config)
    assert engine.files("demo") == engine.files("local-demo")
    assert "_SUCCESS" in engine.files("demo")


def test_the_bytes_of_a_local_run_and_nothing_to_do_after_it(engine):
    engine.commits()
    engine.on_engine("many", KEEP)
    assert engine.files("many") == engine.files("local")
    of_nodes = collections.Counter(node for node, _, _ in engine.commits())
    assert sum(of_nodes.values()) == (
        0 if engine.cluster.engine == "prism" else BLOCKS
    )  # it works in the run's process
    if engine.cluster.engine in ("flink", "spark"):  # two nodes, and blocks of equal size
        assert len(of_nodes) == 2
        assert min(of_nodes.values()) > BLOCKS / 4
    assert "nothing to do" in engine.on_engine("many")
    assert engine.commits() == []


@killed
def test_a_killed_worker_process_is_replaced(engine):
    engine.commits()
    order = engine.kill("process", "20")
    engine.on_engine("killed-process")
    assert not order.exists()
    assert len({process for _, process, _ in engine.commits()}) > 2
    assert engine.files("killed-process") == engine.files("local")


@killed
def test_a_killed_node_is_replaced(engine):
    engine.commits()
    order = engine.kill("node", "20")
    with engine.start("killed-node", *engine.cluster.options) as process:
        while order.exists():
            assert process.poll() is None, engine.said(process, 0)
            time.sleep(0.05)
        engine.cluster.replace_dead_workers()
        engine.said(process, 0)
    assert len({node for node, _, _ in engine.commits()}) == 3
    assert engine.files("killed-node") == engine.files("local")


@killed
def test_workers_that_die_again_and_again_end_the_run_and_the_next_one_goes_on(engine):
    order = engine.kill("process", "5 always")
    try:
        said = engine.on_engine("dying", KEEP, status=1)
    finally:
        order.unlink()
    assert "layerbeam: failed: " in said
    committed = set(os.listdir(engine.folder / "dying" / "_commits"))
    assert committed
    engine.commits()
    engine.on_engine("dying", KEEP)
    assert engine.files("dying") == engine.files("local")
    assert not committed & {name for _, _, name in engine.commits()}
