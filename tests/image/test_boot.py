"""Workers started as in an image, without Docker: Beam's job service, a worker pool, and `boot` for each worker.

They run in the environment that the Dockerfile's steps created. The repository cannot be imported there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port, wait_until_open
from repository import ROOT
from workplace import CommandResult, Workplace

BUILT = ROOT / ".venv-image"
BOOT = Path(__file__).with_name("boot.py")
JOB_SERVICE = "apache_beam.runners.portability.local_job_service_main"
POOL = "apache_beam.runners.worker.worker_pool_main"
OWN = ("layerbeam",)


@pytest.fixture
def image() -> Path:
    """The environment of the image."""
    return BUILT / "image" / "python"


@pytest.fixture
def bare(image: Path, tmp_path: Path) -> Path:
    """The same environment without layerbeam, made of links: installing TensorFlow again takes minutes."""
    folder = tmp_path / "bare"
    subprocess.run([image / "bin" / "python", "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for entry in (image / packages.relative_to(folder)).iterdir():
        if not entry.name.startswith(OWN):
            (packages / entry.name).symlink_to(entry)
    return folder


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A job service and one worker pool, with the options for `layerbeam run`."""

    job_port: int
    pool_port: int

    @property
    def options(self) -> list[str]:
        return [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{self.job_port}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{self.pool_port}",
        ]


@contextlib.contextmanager
def cluster(environment: Path, boot: Path, folder: Path) -> Iterator[Cluster]:
    """A cluster whose workers run in this environment. Logs: job_service.log and pool.log in the folder."""
    folder.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    # Beam's own boot would create an environment that sees the base Python, not this environment.
    clean |= {"TMPDIR": str(folder), "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT": "1"}
    inside = clean | {"PATH": f"{environment / 'bin'}:{clean['PATH']}"}
    with contextlib.ExitStack() as stack:

        def start(command: list[str], log: str, port: int, env: dict[str, str]) -> None:
            file = stack.enter_context(open(folder / log, "wb"))
            process = subprocess.Popen(command, cwd=folder, env=env, stdout=file, stderr=file)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            wait_until_open(port, process, folder / log)

        job_port, pool_port = free_port(), free_port()
        start([sys.executable, "-m", JOB_SERVICE, f"--port={job_port}"], "job_service.log", job_port, clean)
        pool = [f"--service_port={pool_port}", f"--container_executable={boot}"]
        start([str(environment / "bin" / "python"), "-m", POOL, *pool], "pool.log", pool_port, inside)
        yield Cluster(job_port, pool_port)


@pytest.fixture
def boot(request: pytest.FixtureRequest) -> Path:
    """The stand-in, or another program given by --boot."""
    return Path(request.config.getoption("boot") or BOOT).resolve()


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


def run(workplace: Workplace, *options: str) -> CommandResult:
    return workplace.start("run", "c.yaml", *options)


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


def test_image_contains_nothing_of_repository(image, tmp_path):
    names = ("layerbeam", "layerbeam.transforms", "layerbeam.pipeline")
    show = f"import {', '.join(names)}; print({', '.join(f'{name}.__file__' for name in names)})"
    clean = {"PATH": "/usr/bin:/bin"}
    command = [image / "bin" / "python", "-c", show]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 3
    assert all(Path(path).is_relative_to(image) for path in done.stdout.split())


def test_image_workers_write_same_bytes(workplace, image, boot):
    prepare(workplace)
    workplace.run("--output", "local")
    with cluster(image, boot, workplace.folder / "cluster") as started:
        done = run(workplace, *started.options)
    assert done.status == 0, done.err
    assert len(listed(workplace, "local")) > 3 * 3 + 1  # three files in three views, and a file in two slices
    assert listed(workplace, "out") == listed(workplace, "local")
    assert (workplace.folder / "out" / "_SUCCESS").exists()


def test_staged_wheel_writes_same_bytes(workplace, bare, boot, wheel):
    prepare(workplace)
    workplace.run("--output", "local")
    with cluster(bare, boot, workplace.folder / "cluster") as started:
        done = run(workplace, *started.options, f"--extra_package={wheel}")
    assert done.status == 0, done.err
    assert listed(workplace, "out") == listed(workplace, "local")


def test_worker_without_wheel_names_missing_package(workplace, bare, boot):
    prepare(workplace)
    with cluster(bare, boot, workplace.folder / "cluster") as started:
        done = run(workplace, *started.options)
    assert done.status == 1
    assert "ModuleNotFoundError: No module named 'layerbeam'" in done.err
    assert not (workplace.folder / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    "module",
    [
        "layerbeam/transforms/write/block.py",
        "layerbeam/pipeline/output/manifest.py",
        "layerbeam/transforms/encoders/network.py",
    ],
)
def test_wheel_without_module_fails(workplace, bare, boot, wheel, tmp_path, module):
    """Workers import the last module late, when they start to encode."""
    prepare(workplace)
    broken = without(wheel, module, tmp_path)
    with cluster(bare, boot, workplace.folder / "cluster") as started:
        done = run(workplace, *started.options, f"--extra_package={broken}")
    assert done.status == 1
    assert f"No module named '{module.removesuffix('.py').replace('/', '.')}'" in done.err
    assert not (workplace.folder / "out" / "_SUCCESS").exists()
