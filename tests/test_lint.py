"""`make lint` rejects code that would run code from data, and actions that can change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

REFUSED = {
    "import pickle": "TID251",
    "from dill import loads": "TID251",
    "yaml.load(text, yaml.Loader)": "S506",
    "subprocess.run(text, shell=True)": "S602",
    "os.system(text)": "S605",
    "eval(text)": "S307",
    "exec(text)": "S102",
    "tarfile.open(text).extractall()": "S202",
    "assert text": "S101",
}


@pytest.fixture(scope="module")
def findings() -> set[tuple[int, str]]:
    """(line, rule) of ruff's findings in the lines above, as a module of the pipeline."""
    code = "".join(f"{line}\n" for line in ["import os, subprocess, tarfile, yaml", *REFUSED])
    lint = ["-m", "ruff", "check", "--output-format=json", "--no-cache", "--stdin-filename=pipeline/new.py", "-"]
    done = subprocess.run([sys.executable, *lint], input=code, cwd=ROOT, capture_output=True, text=True, check=False)
    return {(finding["location"]["row"], finding["code"]) for finding in json.loads(done.stdout)}


@pytest.mark.parametrize(("number", "code"), [*enumerate(REFUSED.values(), start=2)], ids=list(REFUSED))
def test_ruff_rejects_line(findings, number, code):
    assert (number, code) in findings


@pytest.mark.parametrize(("version", "status"), [("3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", 0), ("v7", 14)])
def test_zizmor_rejects_an_action_that_is_not_pinned_by_commit(tmp_path, version, status):
    workflow = tmp_path / ".github" / "workflows" / "new.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text(
        "name: new\non: push\npermissions: {}\njobs:\n  one:\n    runs-on: ubuntu-24.04\n    steps:\n"
        f"      - uses: actions/checkout@{version}\n        with:\n          persist-credentials: false\n"
    )
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--quiet", ".github"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout
