"""The guides in docs/: their files, commands and snippets, in the order of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float_bounds import OF_TWO
from repository import ROOT

import layerbeam

# A file, which its first line names; a snippet; a command.
STEP = re.compile(
    r"^```(?:yaml|python)\n# (?P<name>\w+\.\w+).*?\n(?P<content>.*?)^```$"
    r"|^```python\n(?P<snippet>.*?)^```$"
    r"|^    (?P<command>\S[^\n]*)$",
    re.MULTILINE | re.DOTALL,
)

SPEECHES = """\
id,year,party,text
1,1931,left,"The bank closed its doors, and the savings were lost."
2,1931,right,A bank must be free to fail.
3,1961,left,The new bridge joins one bank of the river to the other.
"""
RECORDS = """\
{"id": "a1", "text": "Refunds are paid within ten days."}
{"id": "a2", "text": "The shop opens at nine."}
"""


def follow(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Do what the page says, in `folder`; returns the names of all snippets, and `printed` with what commands print."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    names: dict[str, Any] = {"printed": ""}
    for step in STEP.finditer((ROOT / "docs" / page).read_text()):
        if step["name"]:
            (folder / step["name"]).write_text(step["content"])
        elif step["snippet"]:
            exec(step["snippet"], names)
        else:
            done = subprocess.run(step["command"], shell=True, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            names["printed"] += done.stdout
    return names


@pytest.mark.parametrize("page", ["for_linguists.md", "for_retrieval.md"])
def test_page_is_short(page):
    assert len((ROOT / "docs" / page).read_text().splitlines()) <= 60


@pytest.mark.slow
def test_for_linguists(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "speeches.csv").write_text(SPEECHES)
    names = follow("for_linguists.md", tmp_path, monkeypatch)
    files = layerbeam.open_run("out/word_senses")["bank"].to_arrow(["file"])["file"].to_pylist()
    rivers = [group for group, file in zip(names["groups"], files, strict=True) if file.endswith("rivers.txt")]
    money = [group for group, file in zip(names["groups"], files, strict=True) if file.endswith("money.txt")]
    assert len(set(rivers)) == len(set(money)) == 1
    assert rivers[0] != money[0]
    assert len(names["sentences"]) == 26
    means = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(means) == 7
    assert max(means) == means[0] > 0.95 > means[2] > means[6]
    assert "1961   left  The new bridge joins" in names["printed"]
    forms = layerbeam.open_run("out/speeches")["forms"].to_arrow(["word", "year", "count"]).to_pylist()
    banks = {form["year"]: form["count"] for form in forms if form["word"] == "bank"}
    assert banks == {1931: 2, 1961: 1}


@pytest.mark.slow
def test_treebanks(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    nouns, verbs = ("bank", "river", "money", "boat", "bridge"), ("sees", "likes", "finds", "owns")
    sentences = [
        [("the", "DET"), (one, "NOUN"), (verb, "VERB"), ("a", "DET"), (other, "NOUN"), (".", "PUNCT")]
        for one in nouns
        for verb in verbs
        for other in nouns[:3]
    ]
    lines = []
    for number, words in enumerate(sentences):
        lines.append(f"# sent_id = s{number}")
        lines += [f"{n}\t{word}\t{word}\t{tag}\t_\t_\t0\t_\t_\t_" for n, (word, tag) in enumerate(words, 1)]
        lines.append("")
    (tmp_path / "treebank.conllu").write_text("\n".join(lines) + "\n")
    names = follow("treebanks.md", tmp_path, monkeypatch)
    tags = names["tags"]
    assert list(zip(tags["word"], tags["upos"], strict=True)) == [pair for words in sentences for pair in words]
    assert tags["word_index"].tolist() == [0, 1, 2, 3, 4, 5] * len(sentences)
    assert names["nouns"].shape == (2 * len(sentences), 384)
    assert len(names["accuracy"]) == 7
    assert min(names["accuracy"]) > 0.9


@pytest.mark.slow
def test_for_retrieval(tmp_path, monkeypatch):
    pytest.importorskip("duckdb")
    (tmp_path / "records.jsonl").write_text(RECORDS)
    (tmp_path / "handbooks").mkdir()
    for topic in ("money", "rivers", "seasons"):
        (tmp_path / "handbooks" / f"{topic}.txt").write_text((ROOT / f"configs/demo/{topic}.txt").read_text() * 2)
    names = follow("for_retrieval.md", tmp_path, monkeypatch)
    texts = layerbeam.open_run("out/vectors")["texts"]
    assert texts.to_arrow(["id"])["id"].to_pylist() == ["a1", "a2"]
    expected = layerbeam.encode(["Refunds are paid within ten days.", "The shop opens at nine."])
    np.testing.assert_allclose(texts.to_numpy("layer_6"), expected, rtol=0, atol=OF_TWO)
    run = layerbeam.open_run("out/chunks")
    assert (run["chunks"].num_rows, run["documents"].num_rows) == (6, 3)
    for chunk in run["chunks"].to_arrow(["file", "start", "end", "text"]).to_pylist():
        assert (tmp_path / chunk["file"]).read_text()[chunk["start"] : chunk["end"]] == chunk["text"]
    best = [(row["file"], row["start"]) for row in names["rows"]]
    assert len(best) == 3
    assert best[0][0] == "handbooks/money.txt"
    assert names["found"].project("file, start").fetchall() == best


@pytest.mark.slow
def test_documents(tmp_path, monkeypatch):
    (tmp_path / "handbooks").mkdir()
    for topic in ("money", "rivers"):
        (tmp_path / "handbooks" / f"{topic}.txt").write_text((ROOT / f"configs/demo/{topic}.txt").read_text() * 2)
    follow("documents.md", tmp_path, monkeypatch)
    plain, late, neighbours = (layerbeam.open_run(f"out/{name}")["texts"] for name in ("plain", "late", "neighbours"))
    columns = ["file", "sentence", "start", "end", "text"]
    assert late.to_arrow(columns).equals(plain.to_arrow(columns))
    cosines = (late.to_numpy("layer_6") * plain.to_numpy("layer_6")).sum(axis=1)
    assert 0.3 < cosines.min() < cosines.max() < 0.99
    assert neighbours.num_rows > 2 * plain.num_rows
