"""The wheel in an image contains the whole package, whichever way it is built."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from container import Container
from repository import DATA, ROOT, tracked

from layerbeam import __version__

INFO = f"layerbeam-{__version__}.dist-info"


def installed(path: str) -> str:
    """The path in the wheel of a file of the repository."""
    return path if path.startswith("layerbeam/") else f"layerbeam/{path}"


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_wheel_contains_every_file_of_packages(wheel):
    assert wheel.name == f"layerbeam-{__version__}-py3-none-any.whl"
    files = {installed(name): ROOT / name for name in tracked("layerbeam", "pipeline", "transforms")}
    assert {"layerbeam/py.typed", "layerbeam/transforms/encoders/source.py"} <= set(files)
    found = content(wheel)
    assert sorted(name for name in found if not name.startswith(INFO)) == sorted(files)
    assert all(found[name] == path.read_bytes() for name, path in files.items())
    assert found[f"{INFO}/entry_points.txt"] == b"[console_scripts]\nlayerbeam = layerbeam.__main__:main\n"
    assert found[f"{INFO}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_wheel_from_source_distribution_is_the_same(wheel, tmp_path):
    source = tmp_path / "source"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, check=True)
    archive = tmp_path / f"layerbeam-{__version__}.tar.gz"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        tmp_path,
    ]
    subprocess.run([*pip, archive], cwd=tmp_path, check=True)
    assert content(tmp_path / wheel.name) == content(wheel)


RIGHT = [f"--version={__version__}", "--apache-beam=2.77.0", "--python=3.11", "--tensorflow=2.21.0", "--device=cpu"]


def check(image: Container, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The image's own check."""
    return image.run("python", "-m", "layerbeam.pipeline.remote.image_check", *arguments, **variables)


def messages_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("worker image: ")]


def test_check_accepts_right_labels_and_model(image):
    done = check(image, *RIGHT, f"--model={DATA / 'hf_uncased'}")
    assert (done.returncode, messages_of(done)) == (0, [])


def test_check_rejects_wrong_labels_and_missing_model(image):
    wrong = ["--version=9.9", "--apache-beam=2.76.0", "--python=2.7", "--tensorflow=2.20.0", "--device=gpu"]
    done = check(image, *wrong, "--model=nowhere")
    assert done.returncode == 1
    printed = messages_of(done)
    assert printed[:5] == [
        f"worker image: label version: 9.9, but installed is {__version__}",
        "worker image: label apache-beam: 2.76.0, but installed is 2.77.0",
        "worker image: label tensorflow: 2.20.0, but installed is 2.21.0",
        "worker image: label python: 2.7, but installed is 3.11",
        "worker image: label device: gpu, but installed is cpu",
    ]
    assert printed[5].startswith("worker image: nowhere: there is no such folder")
    assert len(printed) == 6


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (True, "layerbeam/transforms/write/word_types.py: is missing"),
        (False, "layerbeam.transforms.write: cannot be imported"),
    ],
)
def test_check_names_missing_module(image, wheel, tmp_path, listed, message):
    """Whether the file was lost later or was never in the wheel."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    (tmp_path / "layerbeam/transforms/write/word_types.py").unlink()
    record = tmp_path / INFO / "RECORD"
    if not listed:
        record.write_text("".join(line for line in record.read_text().splitlines(True) if "word_types" not in line))
    done = check(image, *RIGHT, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert any(line.startswith(f"worker image: {message}") for line in messages_of(done))
