"""The snippets of the README do what it says, on what the demo writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT

from pipeline import config
from pipeline.cli import main

SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").symlink_to(ROOT / "configs")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["run", "configs/demo.yaml"], version="test") == 0
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
    explained, other = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    settings = yaml.safe_load(explained)
    assert config.check(settings, source="README.md").views.keys() == {"tokens", "sentences"}
    assert config.check(settings | yaml.safe_load(other), source="README.md").input.id_field == "key"


def test_there_are_snippets_for_the_tools_named():
    assert [snippet.splitlines()[0].split(":")[0] for snippet in SNIPPETS] == ["# pandas", "# polars", "# DuckDB"]


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
