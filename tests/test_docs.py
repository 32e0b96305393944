"""The pages agree with the code, and their links work."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import json
import os
import re
import shlex
import sys
from typing import get_args

import jsonschema
import pydantic
import pytest
import yaml
from repository import ROOT, tracked

import layerbeam
from layerbeam.pipeline.cli import main
from layerbeam.pipeline.cli import parser as command_line
from layerbeam.pipeline.commands import beam_options
from layerbeam.pipeline.config import load, schema
from layerbeam.transforms.views.view import Level

CODE = re.compile(r"^```.*?^```$|^    [^\n]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


FILES = tracked(untracked=True)
PAGES = [name for name in FILES if name.endswith(".md") and not name.startswith("tests/data/")]


def anchors(page: str) -> set[str]:
    """The anchors of a page by GitHub's rule, which mkdocs.yml also sets for the site."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_have_targets(page):
    text = CODE.sub("", (ROOT / page).read_text())
    known = {*FILES, *(name.rsplit("/", depth)[0] for name in FILES for depth in range(1, name.count("/") + 1))}
    broken = []
    assert LINK.findall(text) or "](" not in text
    for path, anchor in LINK.findall(text):
        target = page if not path else str(((ROOT / page).parent / path).resolve().relative_to(ROOT))
        if target not in known or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_names_of_the_walk_are_defined_where_it_links():
    walk = (ROOT / "docs/inside.md").read_text()
    named = re.findall(r"\[`(\w+)`\]\(\.\./([\w/.]+)\)", walk)
    assert len(named) > 50
    for name, path in named:
        defined = rf"^(?:class|def) {name}\b"
        assert re.search(defined, (ROOT / path).read_text(), re.MULTILINE), f"{name} is not in {path}"


def test_the_page_of_an_output_folder_lists_all_files():
    page = ast.get_docstring(ast.parse((ROOT / "pipeline/output/__init__.py").read_text())) or ""
    layout = ast.parse((ROOT / "transforms/flow/layout.py").read_text())
    assigned = [node for node in layout.body if isinstance(node, ast.Assign)]
    names = {
        node.targets[0].id: node.value.value
        for node in assigned
        if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)
    }
    others = {"EMPTY", "WORD_TYPES", "REPORT", "CARD", "SUBFOLDER"}  # of views, and of other commands
    missing = [value for name, value in names.items() if name not in others and str(value) not in page]
    assert [value for value in missing if isinstance(value, str)] == []
    assert len(names) > 12


def test_anchors_follow_github():
    assert "5-what-to-watch" in anchors("docs/dataflow.md")
    assert "exit-statuses" in anchors("docs/scheduled_runs.md")


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_first_paragraph_says_for_whom_the_page_is(page):
    text = re.sub(r"<!--.*?-->\n", "", (ROOT / page).read_text(), flags=re.DOTALL)
    assert re.match(r"# .+\n\n+For [a-zA-Z ]+", text)


def test_every_public_name_is_in_the_reference(reference):
    assert {name for names in reference.API.values() for name in names} - {"Run", "View"} == {
        name for name in layerbeam.__all__ if name != "__version__"
    }


def test_readme_links_lead_to_every_page():
    reached: set[str] = set()
    new = {"README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        links = LINK.findall(CODE.sub("", (ROOT / page).read_text()))
        paths = {str(((ROOT / page).parent / path).resolve().relative_to(ROOT)) for path, _ in links if path}
        new |= {path for path in paths if path.endswith(".md")} - reached
    assert {page for page in PAGES if page.startswith("docs/")} <= reached


@pytest.fixture(scope="module")
def reference():
    """tools/make_reference.py as a module."""
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "tools" / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks up its module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_settings_are_read_off_the_models(reference):
    assert doctest.testmod(reference).failed == 0
    (layers,) = [item for item in reference.settings("views") if item.name == "layers"]
    assert (layers.default, layers.allowed) == ("null", "list of integer or text, all, null")
    (share,) = [item for item in reference.settings("input") if item.name == "max_reject_rate"]
    assert (share.default, share.allowed) == ("null", "number, null, at least 0, at most 1")
    (words,) = [item for item in reference.settings("views") if item.name == "words"]
    assert (tuple(words.only), words.choices) == (("word", "word_type"), ("basic", "whitespace"))
    for section in schema.SECTIONS:
        for item in reference.settings(section):
            assert item.meaning, f"{section}.{item.name} has no description"
            assert item.default is None or yaml.safe_load(f"a: {item.default}").keys() == {"a"}
    assert load.load(str(ROOT / "configs/demo.yaml")).views  # the models are those that runs use


@pytest.mark.parametrize(
    "page", ["docs/settings.md", "docs/commands.md", "docs/api.md", "llms.txt", "pipeline/config/schema.json"]
)
def test_reference_is_up_to_date(reference, page):
    if page.endswith(".json") and tuple(map(int, pydantic.VERSION.split(".")[:2])) < (2, 13):
        pytest.skip("an older pydantic describes fewer settings")
    assert (ROOT / page).read_text() == reference.PAGES[page](), "run: make reference"


def test_configurations_are_valid_by_the_json_schema():
    """As an editor checks them."""
    validator = jsonschema.Draft202012Validator(json.loads((ROOT / "pipeline/config/schema.json").read_text()))
    configurations = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs/recipes").glob("*.yaml")]
    assert len(configurations) > 10
    for path in configurations:
        assert [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))] == [], path
    wrong = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    wrong["encoder"]["max_seq_len"], wrong["input"]["record"] = 128, "word"
    assert sorted(error.message for error in validator.iter_errors(wrong)) == [
        "'word' is not one of ['line', 'paragraph', 'file']",
        "Additional properties are not allowed ('max_seq_len' was unexpected)",
    ]


def indented(page: str) -> list[str]:
    """The commands in a page's indented blocks; lines that end in a backslash are joined with the next."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line.strip() for line in re.findall(r"^    (\S.*)$", text.replace("\\\n", " "), re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_accepted_by_parser(page):
    """The parser accepts names and options; Beam's own options may follow."""
    for line in indented(page):
        if line.startswith("layerbeam "):
            words = shlex.split(line.replace("|", " ").replace("$day", "day").split(" ||")[0], comments=True)[1:]
            shielded = command_line.escape_negative_layers(words) if words[0] == "extract-features" else words
            if "INPUT_FOLDER" in words:
                continue
            options, rest = command_line.make_parser("").parse_known_args(shielded)
            assert options.command == words[0]
            beam_options.check_arguments([word for word in rest if word != "..."], options.own_options)


@pytest.mark.parametrize("page", PAGES)
def test_configurations_are_valid(page):
    """Fragments of configurations are valid, too."""
    whole = {
        "input": {"files": ["a.txt"]},
        "views": {"a": {"level": "text", "layers": [-1]}},
        "output": {"path": "out"},
    }
    for block in re.findall(r"^```yaml\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        settings = yaml.safe_load(block)
        if isinstance(settings, dict) and settings.keys() <= {field.name for field in schema.fields_of(schema.Config)}:
            load.check(whole | {"input": whole["input"] | settings.pop("input", {})} | settings, source=page)


@pytest.mark.slow
def test_getting_started_steps_work(tmp_path, monkeypatch, capsys):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    page = "docs/getting_started.md"
    done = []
    for line in indented(page):
        command, *arguments = shlex.split(line)
        if command == "layerbeam":
            assert main.main(arguments, version="test") == 0
            done.append(arguments[0])
        else:
            assert os.system(line) == 0
    assert done == ["init", "init", "plan", "run", "show", "verify", "report", "report", "search", "search"]
    printed = capsys.readouterr().out
    promised = "records   47 read = 45 embedded + 2 blank + 0 filtered + 0 rejected"
    assert promised in printed
    assert promised in (ROOT / page).read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    exec(snippet, {})
    cosine, one, other = capsys.readouterr().out.splitlines()
    assert 0.3 < float(cosine) < 1
    assert one != other


def test_documented_columns_are_written(tmp_path, monkeypatch):
    row = re.compile(r"^\| `(\w+(?:<k>)?\w*)` \| (\w+) \| .* \| ([\w, ]+) \|$", re.MULTILINE)
    rows = row.findall((ROOT / "docs/output.md").read_text())
    table = {name: (kind, set(levels.split(", "))) for name, kind, levels in rows}
    assert len(table) > 15
    (tmp_path / "a.jsonl").write_text('{"text": "Two banks.", "key": "a", "year": 1}\n')
    base = {"layers": [-1]}
    both = {"layers": [-1, -2], "combine": "sum"}
    settings = {
        "input": {"files": ["a.jsonl"], "format": "jsonl", "id_field": "key", "keep_fields": {"year": "int64"}},
        "encoder": {"handle": str(ROOT / "tests" / "data" / "hf_uncased"), "max_seq_length": 32},
        "views": {
            **{level: {"level": level, **base} for level in ("token", "word", "text", "record")},
            **{f"{level}s": {"level": level, **both} for level in ("token", "word", "text", "record")},
            "with_text": {"level": "token", "include_text": True, **base},
            "words_with_text": {"level": "word", "include_text": True, **base},
            "word_type": {"level": "word_type", "group_by": ["year"], **base},
            "word_types": {"level": "word_type", **both},
            "pooler": {"level": "text", "pooling": "pooler"},
            **{f"{level}_codes": {"level": level, **base, "dtype": "int8"} for level in get_args(Level)},
        },
        "output": {"path": "out"},
    }
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    assert main.main(["run", "c.yaml"], version="test") == 0
    found: dict[str, set[str]] = {}
    for view in json.loads((tmp_path / "out" / "manifest.json").read_text())["views"].values():
        for column, kind in view["columns"].items():
            name = re.sub(r"^layer_\d+", "layer_<k>", column)
            found.setdefault(name, set()).add(view["level"])
            if name not in ("year", "embedding_std", "layer_<k>_std_scale"):
                assert table[name][0] == ("vector" if kind.startswith("fixed_size_list") else kind)
    assert found.pop("year") == {"token", "word", "text", "record", "word_type"}
    assert found.pop("embedding_std") == found.pop("layer_<k>_std_scale") == {"word_type"}
    assert found == {name: levels for name, (_, levels) in table.items()}
