"""Containers of the image as workers: Beam's job service, the image's entry point as a worker pool, and runs.

The submitting program is in a container, too, so its Python is the image's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from container import Container, container
from ports import free_port, wait_until_open
from repository import ROOT
from workplace import Workplace

JOB_SERVICE = "apache_beam.runners.portability.local_job_service_main"
POOL_PORT = 50000  # of `boot --worker_pool`


@pytest.fixture(scope="module")
def bare(image: Container) -> Iterator[Container]:
    """The image without layerbeam."""
    with container("layerbeam:cpu", image.shared) as made:
        done = made.run("pip", "uninstall", "--quiet", "--yes", "layerbeam")
        assert done.returncode == 0, done.stderr
        yield made


@contextlib.contextmanager
def cluster(image: Container, workers: Container, folder: Path) -> Iterator[list[str]]:
    """A job service and a pool of these workers; gives the options of a run. Logs: in the folder."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:

        def start(command: list[str], log: str, port: int) -> None:
            file = stack.enter_context(open(folder / log, "wb"))
            process = subprocess.Popen(command, stdout=file, stderr=file)
            stack.callback(process.wait)
            stack.callback(process.kill)
            wait_until_open(port, process, folder / log)

        port = free_port()
        start(image.command("python", "-m", JOB_SERVICE, f"--port={port}"), "job_service.log", port)
        start(workers.command(*workers.settings["Entrypoint"], "--worker_pool"), "pool.log", POOL_PORT)
        yield [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{port}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{POOL_PORT}",
        ]


def run(image: Container, workers: Container, workplace: Workplace, *options: str) -> subprocess.CompletedProcess[str]:
    """`layerbeam run` in a container, on these workers."""
    with cluster(image, workers, workplace.folder / "cluster") as places:
        done = image.run("layerbeam", "run", "c.yaml", *places, *options, folder=workplace.folder)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def prepare(workplace: Workplace) -> None:
    """The demo's corpus and views of several levels and formats, with absolute paths."""
    for file in (ROOT / "configs" / "demo").glob("*.txt"):
        workplace.write(f"corpus/{file.name}", file.read_bytes())
    workplace.configure(
        input={"files": [str(workplace.folder / "corpus/*")], "slice_bytes": 400},
        output={"path": str(workplace.folder / "out")},
        views={
            "tokens": {"level": "token", "layers": "all"},
            "texts": {"level": "text", "layers": [-1], "pooling": "mean", "format": "tfrecord"},
            "words": {"level": "word", "layers": [-1, -2], "combine": "sum", "format": "jsonl"},
        },
    )


def listed(workplace: Workplace, output: str) -> dict[str, str]:
    """SHA-256 of parts.jsonl and of each part that it lists."""
    folder = workplace.folder / output
    commits = map(json.loads, (folder / "parts.jsonl").read_text().splitlines())
    names = [part["path"] for commit in commits for part in commit["parts"].values()]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in [*names, "parts.jsonl"]}


def without(wheel: Path, module: str, folder: Path) -> Path:
    """The wheel without one module, which is removed from its list of files, too."""
    path = folder / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(path, "w") as cut:
        assert module in whole.namelist()
        for name in whole.namelist():
            if name.endswith("/RECORD"):
                lines = whole.read(name).decode().splitlines(keepends=True)
                cut.writestr(name, "".join(line for line in lines if not line.startswith(f"{module},")))
            elif name != module:
                cut.writestr(name, whole.read(name))
    return path


def test_image_imports_nothing_of_the_repository(image):
    names = ("layerbeam", "layerbeam.transforms", "layerbeam.pipeline")
    show = f"import {', '.join(names)}; print({', '.join(f'{name}.__file__' for name in names)})"
    done = image.run("python", "-c", show, folder=image.shared)
    assert len(done.stdout.split()) == 3, done.stderr
    assert all(path.startswith("/usr/local/lib/python3.11/") for path in done.stdout.split())


def test_workers_write_same_bytes(workplace, image):
    prepare(workplace)
    workplace.run("--output", "local")
    done = run(image, image, workplace)
    assert done.returncode == 0, done.stderr
    assert len(listed(workplace, "local")) > 3 * 3 + 1  # three files in three views, and a file in two slices
    assert listed(workplace, "out") == listed(workplace, "local")
    assert (workplace.folder / "out" / "_SUCCESS").exists()


def test_staged_wheel_writes_same_bytes(workplace, image, bare, wheel):
    prepare(workplace)
    workplace.run("--output", "local")
    done = run(image, bare, workplace, f"--extra_package={wheel}")
    assert done.returncode == 0, done.stderr
    assert listed(workplace, "out") == listed(workplace, "local")


def test_worker_without_wheel_names_missing_package(workplace, image, bare):
    prepare(workplace)
    done = run(image, bare, workplace)
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'layerbeam'" in done.stderr
    assert not (workplace.folder / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    "module",
    [
        "layerbeam/transforms/write/block.py",
        "layerbeam/pipeline/output/manifest.py",
        "layerbeam/transforms/encoders/network.py",
    ],
)
def test_wheel_without_module_fails(workplace, image, bare, wheel, tmp_path, module):
    """Workers import the last module late, when they start to encode."""
    prepare(workplace)
    broken = without(wheel, module, tmp_path)
    done = run(image, bare, workplace, f"--extra_package={broken}")
    assert done.returncode == 1
    assert f"No module named '{module.removesuffix('.py').replace('/', '.')}'" in done.stderr
    assert not (workplace.folder / "out" / "_SUCCESS").exists()
