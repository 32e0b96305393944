"""Job server, master and workers on hosts of their own, which share one folder and nothing else.

Beam's `boot` starts the workers and installs what is staged.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster import cluster
from corpora import random_lines
from engine import Engine
from repository import DATA

# What a user's own package has.
MODULE = """
import re


def split(text):
    return [found.span() for found in re.finditer(r"[^.]+[.]?", text)]
"""


@pytest.fixture(params=["flink", "spark"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with cluster(request.param, tmp_path / "cluster", apart=True) as made:
        yield Engine(made, tmp_path)


def write_wheel(folder: Path) -> Path:
    """A wheel of the module `own_splitter`."""
    path = folder / "own_splitter-1-py3-none-any.whl"
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: own-splitter\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("own_splitter.py", MODULE)
        for name, text in info.items():
            wheel.writestr(f"own_splitter-1.dist-info/{name}", text)
    return path


def test_workers_get_the_package_that_is_staged(engine, tmp_path, monkeypatch):
    """The job server writes staged files below --artifacts-dir, on the disk that the hosts share."""
    (tmp_path / "corpus.txt").write_bytes(b"\n".join(line.encode() + b". End." for line in random_lines(300, seed=1)))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_splitter.py").write_text(MODULE)
    settings = {
        "input": {
            "files": [str(tmp_path / "corpus.txt")],
            "slice_bytes": 3000,
            "unit": "sentence",
            "sentences": "own_splitter:split",
        },
        "encoder": {"handle": str(DATA / "hf_uncased")},
        "views": {"sentences": {"level": "text", "layers": [-1]}},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))  # of the runs' own programs; the cluster runs already
    engine.run("local")
    engine.on_engine("apart", f"--extra_package={write_wheel(tmp_path)}")
    assert engine.files("apart") == engine.files("local")
