"""Flink, Spark, Beam's own job service and Prism write the bytes of a local run, also when workers are killed.

Each engine has its make target: test-flink, test-spark, test-pool, test-prism. With FEW=few they run twice: once with a
worker that is killed.
"""

from __future__ import annotations

import collections
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from cluster import cluster, get_json
from corpora import random_lines
from embed_ways import COLUMN, VIEW
from engine import Engine
from float_bounds import OF_TWO
from ports import is_open
from repository import DATA, ROOT
from workplace import THREE_VIEWS

import layerbeam

HOOK = Path(__file__).parent / "hook"
# One worker process serves all stages of a job: faster for short jobs, but a process that dies is not replaced.
ONE_WORKER_PROCESS = "--environment_cache_millis=5000"


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


def test_engine_writes_bytes_of_local_run(engine):
    engine.commits()
    # Only Flink's job server knows this option.
    of_engine = ["--execution_mode_for_batch=BATCH_FORCED"] if engine.cluster.engine == "flink" else []
    engine.on_engine("many", *of_engine, ONE_WORKER_PROCESS)
    assert engine.files("many") == engine.files("local")
    assert "_SUCCESS" in engine.files("many")
    of_nodes = collections.Counter(node for node, _, _ in engine.commits())
    assert sum(of_nodes.values()) == (
        0 if engine.cluster.engine == "prism" else engine.blocks
    )  # its workers are threads of the run's process
    if engine.cluster.engine in ("flink", "spark"):  # two nodes, and blocks of equal size
        assert len(of_nodes) == 2
        assert min(of_nodes.values()) > engine.blocks / 4
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


def check_output(engine: Engine, output: str, *, twice: int) -> None:
    """The bytes of the local run, and at most so many blocks encoded twice."""
    assert engine.blocks <= len(engine.commits()) <= engine.blocks + twice
    assert engine.files(output) == engine.files("local")


def interrupt(engine: Engine, output: str) -> None:
    """Start a run, and end its command by Ctrl-C when some of its blocks are written."""
    process = engine.start_and_wait(output)
    process.send_signal(signal.SIGINT)
    assert "interrupted; the job continues. To stop it: cancel layerbeam-" in engine.stderr_of(process, 130)


def start_job_server_again(engine: Engine) -> None:
    """It has forgotten its jobs."""
    engine.cluster.start("job_server", engine.cluster.commands["job_server"])
    (endpoint,) = (option for option in engine.cluster.options if option.startswith("--job_endpoint="))
    engine.cluster.wait("job server", lambda: is_open(int(endpoint.rpartition(":")[2])))


def check_resumed(engine: Engine, output: str, commits: list[tuple[int, int, str]]) -> None:
    """Only the blocks in hand at the kill, one on each of two nodes, were encoded again; the others were found."""
    assert engine.blocks <= len(commits) <= engine.blocks + 2
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
        if engine.cluster.engine == "flink":
            engine.wait_until(lambda: process.poll() is not None or engine.restarts() > 0)
            assert process.poll() is None
        engine.stderr_of(process, 0)
    commits = engine.commits()
    # Flink needs two nodes, so a third one takes part. On Spark the one that is left may do the rest.
    assert len({node for node, _, _ in commits}) in ((3,) if engine.cluster.engine == "flink" else (2, 3))
    check_resumed(engine, "killed-node", commits)
    assert engine.files("killed-node") == engine.files("local")


@killed
def test_run_ends_when_workers_die_repeatedly_and_resumes(engine):
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
def test_run_ends_when_pool_worker_is_killed_and_resumes(engine):
    """Beam's own job service does not replace it."""
    engine.commits()
    order = engine.kill("process", "20")
    assert "layerbeam: failed: " in engine.on_engine("killed", status=1)
    assert not order.exists()
    engine.on_engine("killed")
    check_output(engine, "killed", twice=2)


@pytest.mark.parametrize("engine", ["pool"], indirect=True)
def test_command_ends_when_grpc_threads_hold_locks(engine, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", engine.cluster.environment["PYTHONPATH"])
    monkeypatch.setenv("HOLD_GRPC_LOCKS", "1")
    engine.on_engine("locks")
    assert engine.files("locks") == engine.files("local")
    check_all_ways(engine, "ways-locks")


without_prism = pytest.mark.parametrize("engine", ["flink", "spark", "pool"], indirect=True)
flink = pytest.mark.parametrize("engine", ["flink"], indirect=True)
spark = pytest.mark.parametrize("engine", ["spark"], indirect=True)


@without_prism
def test_job_outlives_the_program_that_submitted_it(engine):
    with engine.start_and_wait("left") as process:
        process.kill()
    engine.wait_until(lambda: engine.state("left") != "submitted")
    assert engine.state("left") == "done"
    assert len(engine.commits()) == engine.blocks
    assert "nothing to do" in engine.on_engine("left")
    assert engine.files("left") == engine.files("local")


@flink
def test_stages_of_a_stream_write_the_same_bytes(engine):
    """Beam's runner for Flink 2 translates every pipeline like this one, and has no other way."""
    engine.commits()
    engine.on_engine("stream", "--streaming", ONE_WORKER_PROCESS)
    assert engine.files("stream") == engine.files("local")
    assert len({node for node, _, _ in engine.commits()}) == 2


@flink
def test_forced_start_beside_an_interrupted_job(engine):
    """The older job ends without an error, so its engine does not try it again."""
    interrupt(engine, "both")
    engine.cluster.stop("job_server")
    start_job_server_again(engine)
    assert "whose state is unknown" in engine.on_engine("both", status=4)
    engine.on_engine("both", "--force")
    assert engine.state("both", 1) in ("lost", "done")  # nobody could know of it, unless it ended before
    assert engine.state("both", 2) == "done"
    (master,) = (word for word in engine.cluster.commands["job_server"] if word.startswith("--flink-master="))
    url = f"http://{master.partition('=')[2]}/jobs/overview"
    jobs = [job["state"] for job in get_json(url)["jobs"] if "-both-" in job["name"]]
    assert {*jobs} == {"FINISHED"}
    check_output(engine, "both", twice=4)  # each of two jobs has a block in hand on each of two nodes


@spark
def test_second_job_is_refused_while_the_job_server_runs_one(engine):
    """Beam would let it fail, after its start has stopped the first one."""
    interrupt(engine, "both")
    assert "runs one job at a time, now layerbeam-" in engine.on_engine("both", "--force", status=4)
    engine.wait_until(lambda: engine.state("both") != "submitted")
    assert engine.state("both") == "done"
    check_output(engine, "both", twice=0)


@flink
def test_run_ends_when_job_manager_is_killed_and_resumes(engine):
    process = engine.start_and_wait("manager")
    engine.cluster.stop("jobmanager")
    engine.cluster.start("jobmanager", engine.cluster.commands["jobmanager"])
    assert "layerbeam: failed: " in engine.stderr_of(process, 1)
    engine.on_engine("manager")
    check_output(engine, "manager", twice=2)


@spark
def test_killed_master_does_not_end_the_run(engine):
    process = engine.start_and_wait("master")
    engine.cluster.stop("master")
    engine.stderr_of(process, 0)
    engine.cluster.start("master", engine.cluster.commands["master"])
    check_output(engine, "master", twice=0)


@killed
def test_killed_job_server_ends_the_command(engine):
    """Flink's job continues; Spark's has its driver in the job server."""
    process = engine.start_and_wait("server")
    engine.cluster.stop("job_server")
    assert "the job server does not answer, and its job may continue" in engine.stderr_of(process, 1)
    start_job_server_again(engine)
    if engine.cluster.engine == "flink":
        engine.wait_until(lambda: engine.state("server") != "submitted")
        assert engine.state("server") == "done"
    else:
        engine.on_engine("server", "--force")
    check_output(engine, "server", twice=2)


def test_all_ways_to_embed_in_other_pipelines(engine):
    check_all_ways(engine, "ways")


def check_all_ways(engine: Engine, output: str) -> None:
    """EmbedText (twice), EmbedRows, RunInference and MLTransform give the vectors of `layerbeam.encode`."""
    texts = [line for line in random_lines(40, seed=7) if line.strip()]
    encoder, folder = str(DATA / "hf_uncased"), engine.folder / output
    (engine.folder / "texts.json").write_text(json.dumps(texts))
    script = str(ROOT / "tests/support/embed_ways.py")
    command = [sys.executable, script, encoder, str(engine.folder / "texts.json"), str(folder)]
    command += [*engine.cluster.options, ONE_WORKER_PROCESS]
    engine.stderr_of(subprocess.Popen(command, stderr=subprocess.PIPE, text=True), 0)
    expected = layerbeam.encode(texts, encoder=encoder, views={"v": VIEW})["v"][COLUMN]
    (path,) = folder.glob("vectors-*")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("EmbedText", "across-bundles", "EmbedRows", "RunInference", "MLTransform"):
        numbers, vectors = zip(*sorted(pair for way, *pair in found if way == name), strict=True)
        assert numbers == tuple(range(len(texts))), name
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=OF_TWO, err_msg=name)
