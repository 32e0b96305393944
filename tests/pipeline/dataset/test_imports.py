"""What reading a run imports, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from workplace import workplace_in


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one short file."""
    folder = tmp_path_factory.mktemp("finished")
    with workplace_in(folder) as place:
        place.prepare("one line\n")
        place.drive(arithmetic=True)
    return folder / "out"


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, check=False)


def test_what_is_imported(finished, tmp_path):
    heavy = "print([name for name in ('tensorflow', 'apache_beam', 'pyarrow', 'numpy') if name in sys.modules])"
    reading = f"layerbeam.open_run({str(finished)!r}).view('tokens').to_numpy('layer_1')"
    done = python(f"import sys, layerbeam; layerbeam.__version__; {heavy}; {reading}; {heavy}", tmp_path)
    assert done.stdout.splitlines() == ["[]", "['pyarrow', 'numpy']"]
    assert done.stderr == ""


def test_another_projects_pipeline(finished, tmp_path):
    for name in ("pipeline", "transforms"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not this one')")
    done = python(f"import layerbeam; print(len(layerbeam.open_run({str(finished)!r}).views))", tmp_path)
    assert (done.stdout, done.stderr) == ("1\n", "")
