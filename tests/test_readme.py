"""The snippets of the README do what it says, on what the demo writes."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT

from pipeline import config
from pipeline.cli import main

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").symlink_to(ROOT / "configs")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["run", "configs/demo.yaml"], version="test") == 0
        (more,) = re.findall(r"^    layerbeam (run configs/demo.yaml --output .*)$", README, re.MULTILINE)
        assert main(shlex.split(more), version="test") == 0
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.splitlines()[0][2:])
def test_snippet_runs(demo, snippet, monkeypatch):
    monkeypatch.chdir(demo)
    names: dict = {}
    exec(snippet, names)
    stated = re.search(r"vectors = .*# \[(\d+), (\d+)\]", snippet)
    if stated:
        assert names["vectors"].shape == (int(stated[1]), int(stated[2]))
        assert names["vectors"].dtype == np.float32
    else:
        assert len(names["nearest"]) == 5
        assert 1 > names["nearest"][0][1] > names["nearest"][4][1]


def test_the_configuration_explained_is_one():
    (explained,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert config.check(yaml.safe_load(explained), source="README.md").views.keys() == {"tokens", "sentences"}


def test_there_are_snippets_for_the_tools_named():
    assert [snippet.splitlines()[0].split(":")[0] for snippet in SNIPPETS] == [
        "# pandas",
        "# polars",
        "# DuckDB",
        "# tf.data",
    ]


def test_the_demo_tells_the_senses_apart(demo, monkeypatch, capsys):
    from pipeline import demo as show

    rows = show.read_occurrences(str(demo / "out/demo"))
    senses = rows["file"].to_pylist()
    assert (len(senses), len(set(senses))) == (24, 2)
    differences = []
    for layer in show.LAYERS:
        within, across = show.mean_cosines(show.layer_vectors(rows, layer), senses)
        differences.append(within - across)
    assert abs(differences[0]) < 0.02
    assert min(differences[2:]) > 0.05
    show.main(str(demo / "out/demo"))
    assert "of money or of a river" in capsys.readouterr().out
