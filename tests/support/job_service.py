"""Beam's own job service and worker pool, each in its own process: the nearest to a cluster that a test can start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ports import free_port, wait_until_open

BIN = Path(sys.executable).parent


@contextlib.contextmanager
def service(log: Path, *arguments: str, **environment: str) -> Iterator[str]:
    """A Beam server in its own process and folder; yields its host:port."""
    port = free_port()
    command = [sys.executable, "-m", *(argument.format(port=port) for argument in arguments)]
    # The pool starts `python` from PATH.
    env = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | environment
    with open(log, "w") as file:
        process = subprocess.Popen(command, cwd=log.parent, env=env, stdout=file, stderr=file, start_new_session=True)
    try:
        wait_until_open(port, process, log)
        yield f"localhost:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def job_service(folder: Path) -> Iterator[str]:
    name = "apache_beam.runners.portability.local_job_service_main"
    with service(folder / "log", name, "--port={port}") as endpoint:
        yield endpoint


@contextlib.contextmanager
def worker_pool(folder: Path, **environment: str) -> Iterator[str]:
    name = "apache_beam.runners.worker.worker_pool_main"
    with service(folder / "pool.log", name, "--service_port={port}", **environment) as endpoint:
        yield endpoint


def external(job_server: str, pool: str) -> list[str]:
    return [
        "--runner=PortableRunner",
        f"--job_endpoint={job_server}",
        "--environment_type=EXTERNAL",
        f"--environment_config={pool}",
    ]
