"""Modules in the current folder are data: no process imports them unless PYTHONPATH names the folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from job_service import external, job_service, worker_pool
from repository import DATA
from workplace import Workplace

import layerbeam

# Python imports none of these before the first line of `python -m layerbeam`.
NAMES = ("__future__", "argparse", "json", "logging", "queue", "random", "signal", "socket", "tempfile", "token")


@pytest.fixture
def place(workplace: Workplace) -> Workplace:
    workplace.prepare("a bank\nthe river\n")
    for name in NAMES:
        workplace.write(
            f"{name}.py", f"open({str(workplace.folder / 'imported')!r}, 'a').write('{name} ')\nraise OSError\n"
        )
    return workplace


def started(place: Workplace, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=place.folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert not (place.folder / "imported").exists(), (place.folder / "imported").read_text()
    return done


@pytest.mark.slow
def test_runs_and_checks(place):
    for arguments in (("run", "c.yaml", "--workers=1"), ("verify", "out"), ("plan", "c.yaml")):
        done = started(place, *place.command(*arguments))
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_as_a_module_and_with_worker_processes(place):
    features = ["corpus", "features", "-1", str(DATA / "google_uncased"), "32", "8"]
    for arguments in (["run", "c.yaml"], ["extract-features", *features]):
        done = started(place, sys.executable, "-m", "layerbeam", *arguments, "--processes=2")
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_run_from_python(place):
    assert len(layerbeam.run("c.yaml")["tokens"]) > 0
    assert not (place.folder / "imported").exists()


@pytest.mark.slow
def test_submission(place, tmp_path_factory):
    apart = tmp_path_factory.mktemp("apart")
    where = [f"--input={place.folder}/corpus/*", f"--output={place.folder}/out"]
    with job_service(apart) as server, worker_pool(apart) as pool:
        done = started(place, *place.command("run", "c.yaml", *where, *external(server, pool)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 2), pytest.param(":/nowhere", 0, marks=pytest.mark.slow)])
def test_splitter_is_found_by_pythonpath_only(workplace, path, status):
    """An empty entry is the current folder."""
    workplace.write("corpus/a.txt", "a bank\nthe river\n")
    workplace.write("splitter.py", "def split(text):\n    return [(0, len(text))]\n")
    workplace.configure(input={"unit": "sentence", "sentences": "splitter:split"})
    done = started(workplace, *workplace.command("run", "c.yaml", "--processes=2"), PYTHONPATH=path)
    assert done.returncode == status, done.stderr
