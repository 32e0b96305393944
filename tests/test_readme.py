"""The snippets of README.md, docs/output.md and docs/python.md work on the output of the demo."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from repository import ROOT

import layerbeam
from layerbeam.pipeline.cli.main import main
from layerbeam.pipeline.config import load

README = (ROOT / "README.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
OUTPUT = (ROOT / "docs" / "output.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()


def snippets(page: str) -> dict[str, str]:
    """The snippets of a page by the tool's name, which begins the first line."""
    found = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return {re.split("[:,]", snippet.splitlines()[0][2:])[0]: snippet for snippet in found}


SNIPPETS = snippets(OUTPUT)
IN_PYTHON = snippets(PYTHON)
IN_README = snippets(README)
# In the extra `readers`, which `make test-readers` installs.
HEAVY = {
    "PySpark": "pyspark",
    "Hugging Face datasets": "datasets",
    "int8 in PySpark": "pyspark",
    "int8 in Hugging Face datasets": "datasets",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").symlink_to(ROOT / "configs")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["run", "configs/demo.yaml"], version="test") == 0
        more = re.findall(r"^    layerbeam (run configs/demo.yaml --output .*)$", OUTPUT, re.MULTILINE)
        assert [main(shlex.split(command), version="test") for command in more] == [0, 0, 0]
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before the import: put their caches into the test's folder. After the test: stop Spark."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


@pytest.mark.slow
@pytest.mark.parametrize("tool", [*SNIPPETS, *IN_PYTHON, "words"])
def test_snippet_runs(demo, tool, monkeypatch, request):
    if tool in HEAVY:
        request.getfixturevalue("heavy")
        pytest.importorskip(HEAVY[tool], reason=f"{HEAVY[tool]} is not installed: make test-readers")
    monkeypatch.chdir(demo)
    snippet = (IN_README | SNIPPETS | IN_PYTHON)[tool]
    names: dict = {"__name__": "snippet"}
    exec(snippet, names)
    stated = re.search(r"vectors = .*# \[(\d+), (\d+)\]", snippet)
    if stated:
        assert names["vectors"].shape == (int(stated[1]), int(stated[2]))
        assert names["vectors"].dtype == np.float32
        assert names["vectors"].any()
        assert names.get("same", True)
    elif "nearest" in names:
        assert len(names["nearest"]) == 5
        assert 1 > names["nearest"][0][1] > names["nearest"][4][1]
    else:
        (vectors, tags, weights) = next(iter(names["batches"]))
        assert (tags.shape, weights.shape) == (vectors.shape[:2], vectors.shape[:2])
        np.testing.assert_array_equal(names["model"].layers[0].compute_mask(vectors), weights.numpy() == 1)
        assert set(np.unique(tags)) <= {0, 1, 2}
        assert names["history"]["loss"][-1] < names["history"]["loss"][0]


def test_explained_configurations_are_valid():
    (short,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    blocks = re.findall(r"```yaml\n(.*?)```", CONFIGURATION, re.DOTALL)
    explained, other, paths, dense, late_interaction, chunks, context, sentences = blocks
    for source, text in {"README.md": short, "configuration.md": explained}.items():
        assert load.check(yaml.safe_load(text), source=source).views.keys() == {"tokens", "sentences"}
    settings = yaml.safe_load(explained) | yaml.safe_load(other)
    assert load.check(settings, source="configuration.md").input.id_field == "key"
    settings = yaml.safe_load(explained) | yaml.safe_load(paths)
    assert load.check(settings, source="configuration.md").views["forms"].group_by == ["period"]
    settings = yaml.safe_load(explained) | yaml.safe_load(dense)
    assert load.check(settings, source="configuration.md").views["texts"].dense == ["2_Dense"]
    settings = yaml.safe_load(explained) | yaml.safe_load(late_interaction)
    assert load.check(settings, source="configuration.md").views["sentences"].skip_tokens == [".", ",", "?"]
    settings = yaml.safe_load(explained) | yaml.safe_load(chunks)
    assert load.check(settings, source="configuration.md").input.chunk.overlap == 32
    settings = yaml.safe_load(explained) | yaml.safe_load(context)
    assert load.check(settings, source="configuration.md").encoder.context == "record"
    settings = yaml.safe_load(explained) | yaml.safe_load(sentences)
    assert load.check(settings, source="configuration.md").input.language == "de"


def test_named_tools_have_snippets():
    own = ["layerbeam", "NumPy", "A dataset for DuckDB and others", "Nearest rows"]
    own += ["tf.data", "Training batches", "Training batches in tf.data", "Arrays in files"]
    assert list(IN_PYTHON) == ["encode", "encode with views", "run", "open_run"]
    others = ["pandas", "polars", "DuckDB", "PySpark", "Hugging Face datasets"]
    lists = [f"Lists of vectors{tool}" for tool in ("", " in polars", " in pandas")]
    joined = ["CSV with all numbers", "Labels of your own"]
    int8 = ["int8", *(f"int8 in {name}" for name in others)]
    assert list(SNIPPETS) == [*own, *others, *joined, *int8, *lists, "TFRecord in tf.data"]
    assert list(IN_README) == ["words", "layerbeam"]
    assert IN_README["layerbeam"] == SNIPPETS["layerbeam"]


@pytest.mark.slow
def test_demo_separates_word_senses(demo, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "configs/demo")
    import bank as show

    from layerbeam.pipeline.report import stats

    found, senses = show.find_occurrences(layerbeam.open_run(str(demo / "out/demo")))
    assert (found.count, len(senses), sorted(set(senses))) == (26, 26, ["money", "river"])
    differences = []
    for layer in range(7):
        vectors = stats.unit(found.vectors(f"layer_{layer}"))
        within, across = stats.mean_within_across(vectors @ vectors.T, senses)
        differences.append(within - across)
    assert abs(differences[0]) < 0.02
    assert min(differences[2:]) > 0.05
    show.main(str(demo / "out/demo"))
    assert '"bank" 26 times, of money or of a river' in capsys.readouterr().out
