"""Runners with workers in other processes, on Beam's own job service, and the checks before a submission."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from job_service import external, job_service, worker_pool
from repository import DATA, ROOT
from workplace import Workplace

from layerbeam.pipeline.config import load
from layerbeam.pipeline.remote import preflight
from layerbeam.pipeline.run.engines import RemoteRunner, job_name

OTHER_BEAM = ROOT / "tests" / "other_beam"


@pytest.fixture(scope="module")
def job_server(tmp_path_factory) -> Iterator[str]:
    with job_service(tmp_path_factory.mktemp("job_server")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Iterator[str]:
    with worker_pool(tmp_path_factory.mktemp("pool")) as endpoint:
        yield endpoint


def prepare(workplace: Workplace, **sections: dict) -> list[str]:
    """Write a corpus of a few files and blocks; returns the arguments for input and output, with absolute paths."""
    for name in "abc":
        workplace.write(f"corpus/{name}.txt", "".join(f"{name} light shines in line {i}\n" for i in range(40)))
    workplace.configure(**sections | {"input": {"slice_bytes": 400} | sections.get("input", {})})
    return [f"--input={workplace.folder}/corpus/*", f"--output={workplace.folder}/out"]


def last_run(workplace: Workplace) -> dict:
    return json.loads(workplace.show("--json").out)["last_start"]


def state_at_end(workplace: Workplace) -> str:
    """Wait for the end of a submitted job."""
    deadline = time.monotonic() + 120
    while (state := last_run(workplace)["state"]) == "submitted":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return str(state)


@pytest.mark.slow
def test_portable_runner_writes_bytes_of_local_runner(workplace, job_server, pool):
    where = prepare(workplace)
    workplace.run(where[0], "--output", str(workplace.folder / "local"))
    err = workplace.run(*where, *external(job_server, pool)).err
    assert "submitted to PortableRunner as layerbeam-" in err
    assert workplace.files("out") == workplace.files("local")
    start = last_run(workplace)
    assert (start["state"], start["runner"], start["workers"]) == ("done", "PortableRunner", None)
    assert start["job"].startswith("job-")  # Beam's own job service numbers them
    assert "on PortableRunner; padding" in workplace.show().out
    assert "nothing to do" in workplace.run(*where, *external(job_server, pool)).err

    path, times = workplace.folder / "corpus/b.txt", (workplace.folder / "corpus/b.txt").stat()
    path.write_text(path.read_text().replace("light", "night"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "nothing to do" in workplace.run(*where, *external(job_server, pool)).err
    workplace.run(*where, *external(job_server, pool), "--reread")
    workplace.run(where[0], "--output", str(workplace.folder / "local"), "--reread")
    assert workplace.files("out") == workplace.files("local")
    assert sum("night" in token for token in workplace.rows()["token"].to_pylist()) > 0


@pytest.mark.slow
def test_a_run_that_nobody_waits_for_notes_its_own_end(workplace, job_server, pool):
    where = prepare(workplace, input={"max_reject_rate": 0.0})
    workplace.write("corpus/d.txt", b"one\n\xff\n")
    out = workplace.run(*where, *external(job_server, pool), "--no_wait_until_finish").out
    assert f"{workplace.folder}/out: unfinished: submitted, not ended yet" in out
    err = workplace.run(*where, status=4).err
    assert "out: run 1 is active in this folder, as job job-" in err
    assert "ING); wait for it, or stop it on the engine's page" in err  # STARTING or RUNNING
    assert state_at_end(workplace) == "incomplete"
    assert "1 of 122 records were rejected" in workplace.show().out


@pytest.mark.slow
def test_interrupt_while_waiting(workplace, job_server, pool):
    where = prepare(workplace)
    workplace.write("corpus/long.txt", "light shines in the darkness\n" * 4000)
    process = workplace.at_work(*where, *external(job_server, pool))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    *_, last = err.splitlines()
    assert last.startswith("layerbeam: interrupted; the job continues. To stop it: cancel layerbeam-")
    assert last.endswith(" on the engine's page")
    job = last_run(workplace)["job"]
    assert f"job       {job} on PortableRunner" in workplace.show().out
    err = workplace.run(*where, "--force", status=4).err
    assert f"is active in this folder, as job {job} on PortableRunner (RUNNING)" in err
    state_at_end(workplace)
    workplace.verify(status=0)


@pytest.mark.slow
def test_interrupt_that_cancels(workplace, job_server, pool):
    where = prepare(workplace)
    workplace.write("corpus/long.txt", "light shines in the darkness\n" * 4000)
    process = workplace.at_work(*where, *external(job_server, pool), "--cancel-on-interrupt")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == (
        "layerbeam: interrupted; completed blocks are kept: run the same command again to resume"
    )
    workplace.run(*where)
    workplace.verify(status=0)


class LostJobServer(grpc.RpcError):
    """What gRPC raises if nobody answers."""


@pytest.mark.parametrize(
    ("runner", "ends", "status", "state", "message"),
    [
        (
            "FlinkRunner",
            KeyboardInterrupt,
            130,
            "submitted",
            "check on its page that the job has ended, then run the same command",
        ),
        ("SparkRunner", KeyboardInterrupt, 130, "interrupted", "completed blocks are kept: run the same command again"),
        ("SparkRunner", LostJobServer, 1, "submitted", "the job server does not answer, and its job may continue"),
        ("FlinkRunner", RuntimeError, 1, "failed", "layerbeam: failed: RuntimeError"),
    ],
)
def test_record_of_a_job_that_may_continue_stays(workplace, monkeypatch, runner, ends, status, state, message):
    class Result:
        def wait_until_finish(self) -> None:
            if ends is KeyboardInterrupt:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            raise ends

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(beam.Pipeline, "run", lambda _: Result())
    where = prepare(workplace)
    arguments = [*where, f"--runner={runner}", "--job_endpoint=embed", "--parallelism=1"]
    assert message in workplace.run(*arguments, status=status).err
    assert last_run(workplace)["state"] == state
    again = workplace.run(*where, status=4) if state == "submitted" else None
    assert again is None or f"run 1 was submitted as a job on {runner}, whose state is unknown: nobody" in again.err


@pytest.mark.slow
def test_device_missing_on_worker(workplace, job_server, pool):
    where = prepare(workplace, encoder={"device": "gpu"})
    err = workplace.run(*where, *external(job_server, pool), status=1).err
    assert "layerbeam: failed: DeviceError: encoder.device: gpu, and TensorFlow 2." in err
    assert last_run(workplace)["state"] == "failed"


@pytest.mark.slow
def test_worker_with_other_beam_version(workplace, tmp_path, job_server):
    where = prepare(workplace)
    with worker_pool(tmp_path, PYTHONPATH=str(OTHER_BEAM)) as pool:
        err = workplace.run(*where, *external(job_server, pool), status=1).err
    assert "layerbeam: failed: VersionError: the worker " in err
    assert " has apache-beam 2.76.0 instead of 2.77" in err


def test_device_missing_on_this_machine(workplace):
    prepare(workplace, encoder={"device": "gpu"})
    assert "layerbeam: encoder.device: gpu, and TensorFlow " in workplace.run(status=2).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runner=flink", "--workers=2"], "--workers applies to the local runner only; use --parallelism with Fl"),
        (["--cancel-on-interrupt"], "--cancel-on-interrupt applies to jobs on other runners; Ctrl-C ends a local run"),
        (["--runner=PortableRunner"], "beam.job_endpoint: is missing; PortableRunner needs a job server's host:port"),
        (
            ["--runner=FlinkRunner"],
            "beam.job_endpoint: is missing; FlinkRunner needs a job server's host:port: --job_endpoint=..., or the "
            "path of its program: --flink_job_server_jar=... (docs/runners.md)\n",
        ),
        (["--runner=spark"], "beam.job_endpoint: is missing; SparkRunner needs a job server's host:port: --job_endpoi"),
        (["--runner=prism"], "beam.job_endpoint: is missing; PrismRunner needs a job server's host:port: --job_endpoi"),
        (["--runner=SparkRunner", "--job_endpoint=localhost:700000"], "beam.job_endpoint: localhost:700000: no job se"),
        (["--runner=SparkRunner", "--job_endpoint=here"], "beam.job_endpoint: here: is not of the form host:port"),
        (
            ["--runner=FlinkRunner", "--job_endpoint=localhost:1"],
            "beam.job_endpoint: localhost:1: no job server answers there (Connection refused); start it, or give its",
        ),
        (
            ["--runner=FlinkRunner", "--input=corpus/*", "--job_endpoint=embed"],
            "input.files: corpus/*: is relative to this program's current folder, and workers have another; give the",
        ),
        (
            ["--runner=FlinkRunner", "--set", "encoder.handle=encoder", "--job_endpoint=embed"],
            "encoder.handle: encoder: is relative, and workers have other current folders; give the absolute path",
        ),
        (["--set", "encoder.resource_hints={accelerator: a, min_ram: many}"], "encoder.resource_hints.min_ram: many: "),
        (["--set", "encoder.resource_hints={min_rma: 1GB}"], "encoder.resource_hints.min_rma: 1GB: "),
    ],
)
def test_invalid_options_are_refused_before_start(workplace, arguments, message):
    where = prepare(workplace)
    (workplace.folder / "encoder").symlink_to(DATA / "hf_uncased")
    assert f"layerbeam: {message}" in workplace.run(*where, *arguments, status=2).err
    assert not (workplace.folder / "out").exists()


def test_endpoint_that_is_not_a_job_server(workplace):
    """Such as the port of Flink's own page."""
    where = prepare(workplace)
    with socket.create_server(("localhost", 0)) as server:
        endpoint = f"localhost:{server.getsockname()[1]}"
        err = workplace.run(*where, "--runner=flink", f"--job_endpoint={endpoint}", status=2).err
    assert f"{endpoint}: no job server answers there (what listens there does not speak gRPC); start it, or" in err


def test_job_name_contains_folder():
    names = {job_name(path) for path in ("gs://b/out", "gs://b/out/", "gs://c/out", "gs://b/OUT", "/data/out")}
    assert len(names) == 4
    assert job_name("gs://b/" + "day " * 40).startswith("layerbeam-day-day-")
    assert len(job_name("gs://b/" + "day " * 40)) < 63


def test_flink_without_parallelism_is_reported(capsys):
    settings = {
        "input": {"files": ["/corpus/*"]},
        "views": {"v": {"level": "text", "layers": [-1]}},
        "output": {"path": "/out"},
    }
    checked = load.check(settings, source="c.yaml")
    warning = "beam.parallelism: not given; without it Flink uses one worker for everything: give --parallelism=N\n"
    for name, arguments, expected in (
        ("FlinkRunner", [], warning),
        ("FlinkRunner", ["--parallelism=2"], ""),
        ("SparkRunner", [], ""),
    ):
        options = PipelineOptions(["--job_endpoint=embed", *arguments])
        preflight.check(checked, RemoteRunner(name, options, None))
        assert capsys.readouterr().err == expected
