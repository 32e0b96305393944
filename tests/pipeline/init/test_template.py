"""`layerbeam init`: the file it writes loads and explains every setting."""

from __future__ import annotations

import re

import pytest
import yaml

from layerbeam.pipeline.cli.main import main
from layerbeam.pipeline.config import load as configuration
from layerbeam.pipeline.config import schema
from layerbeam.pipeline.console import command_name
from layerbeam.pipeline.init import template
from layerbeam.transforms.encoders.recipe import Model

TEXT = template.text()
# `#name: default`, which is a setting when the # is taken away.
COMMENTED = re.compile(r"^( *)#(\w+: .*)$", re.MULTILINE)


def load(text: str) -> schema.Config:
    return configuration.check(configuration.parse_yaml(text), source="test")


def test_it_loads():
    loaded = load(TEXT)
    assert max(map(len, TEXT.splitlines())) <= 110  # they fit a terminal
    assert loaded.input.files == ["texts/*.txt"]
    assert loaded.encoder.handle == "minilm"
    assert loaded.output.path == "out/first"
    assert {name: (view.level, view.layers) for name, view in loaded.views.items()} == {
        "tokens": ("token", [-4, -3, -2, -1]),
        "sentences": ("text", [-1]),
    }


@pytest.mark.parametrize(
    "name", ["letters.yaml", "null", "- a.yaml", "a: b #c.yml", "'\"{}.yaml", "\u00fc.yaml", "1.yaml"]
)
def test_each_file_has_an_output_folder_of_its_own(name):
    path = load(template.text(f"configs/{name}")).output.path
    assert path == f"out/{name.rpartition('.')[0] or name}"


def test_every_commented_setting_exists_and_has_its_default():
    commented = [match[2] for match in COMMENTED.finditer(TEXT)]
    assert len(commented) > 30
    assert load(COMMENTED.sub(r"\1\2", TEXT)) == load(TEXT)


@pytest.mark.parametrize("line", [match[0] for match in COMMENTED.finditer(TEXT)])
def test_each_may_be_taken_alone(line):
    assert load(TEXT.replace(line, line.replace("#", "", 1))) == load(TEXT)


@pytest.mark.parametrize("section", schema.SECTIONS)
def test_every_setting_is_in_it(section):
    block = re.search(rf"^{section}:\n((?: .*\n)*)", TEXT, re.MULTILINE)
    there = set(re.findall(r"^ +#?(\w+): ", block[1], re.MULTILINE))
    levels = {view.level for view in load(TEXT).views.values()}
    expected = {
        field.name
        for field in schema.fields_of(schema.SECTIONS[section])
        if section != "views" or levels & set(field.metadata.get("only", levels))
    }
    assert there == expected
    assert len(expected) > 1


def test_the_command_writes_it_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init"], version="test") == 0
    assert (tmp_path / "layerbeam.yaml").read_text() == TEXT
    assert f"Next: {command_name()} run layerbeam.yaml" in capsys.readouterr().err
    (tmp_path / "layerbeam.yaml").write_text("mine")
    assert main(["init"], version="test") == 2
    assert capsys.readouterr().err == (
        "layerbeam: layerbeam.yaml: already exists and is not overwritten; give another name: layerbeam init FILE\n"
    )
    assert (tmp_path / "layerbeam.yaml").read_text() == "mine"
    assert main(["init", "my corpus.yaml"], version="test") == 0
    assert "#     layerbeam run 'my corpus.yaml'" in (tmp_path / "my corpus.yaml").read_text()
    assert load((tmp_path / "my corpus.yaml").read_text()).output.path == "out/my corpus"
    assert main(["init", "nowhere/a.yaml"], version="test") == 2
    assert "nowhere/a.yaml: No such file or directory" in capsys.readouterr().err
    assert main(["init", "b.yaml", "--output", "x"], version="test") == 2
    assert "--output x: unknown here" in capsys.readouterr().err


def test_prompts_of_a_model_stay_in_their_comment():
    view = {"level": "text", "layers": [-1], "pooling": "mean"}
    model = Model({"handle": "minilm"}, view, is_plain=False, queries="say \u2028beam: {a: b}\x85x: y")
    loaded = yaml.safe_load(template.text(model=model))
    assert "beam" not in loaded
    assert "x" not in loaded
