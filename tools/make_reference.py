"""Write docs/settings.md, docs/commands.md, docs/api.md, llms.txt and the schema of a configuration: `make reference`.

A test fails if they are outdated.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

import pydantic
import yaml

import layerbeam
from layerbeam.pipeline.cli import parser as command_line
from layerbeam.pipeline.config.schema import BEAM, SECTIONS, Config, default_of, fields_of
from layerbeam.pipeline.dataset.reader import Run, View
from layerbeam.pipeline.init.template import to_yaml
from layerbeam.transforms.settings import REQUIRED, Settings

ROOT = Path(__file__).resolve().parents[1]
# The settings that most configurations have.
COMMON = (
    *("input.files", "input.text_field", "input.id_field", "input.unit", "encoder.handle", "encoder.max_seq_length"),
    *("views.level", "views.layers", "views.pooling", "output.path"),
)
WRITTEN = "<!-- written by `make reference` from {source}: change that -->\n"


@dataclasses.dataclass(frozen=True)
class Setting:
    """`default` and `allowed` as in YAML; `default` is None if the setting is required.

    `choices`: the allowed words, if there are only a few. `only`: the levels or formats that have the setting, with
    the choices that each allows; empty if all have it.
    """

    name: str
    default: str | None
    allowed: str
    choices: tuple[str, ...]
    meaning: str
    only: Mapping[str, tuple[str, ...]]


def settings(section: str) -> Iterator[Setting]:
    """The settings of a section; for `views` those of one view."""
    return _settings_of(SECTIONS[section])


def _settings_of(model: type[Settings], prefix: str = "") -> Iterator[Setting]:
    types_of = typing.get_type_hints(model, include_extras=True)
    for field in fields_of(model):
        default, annotation = default_of(field), types_of[field.name]
        if isinstance(default, Settings):
            yield from _settings_of(type(default), f"{field.name}.")
            continue
        choices = tuple(_kinds(annotation)) if typing.get_origin(annotation) is Literal else ()
        only = field.metadata.get("only", ())
        yield Setting(
            name=prefix + field.name,
            default=None if default is REQUIRED else to_yaml(default),
            allowed=", ".join([*_kinds(annotation), *_limits(field.metadata)]),
            choices=choices,
            meaning=field.metadata["description"],
            only={name: only[name] if isinstance(only, Mapping) else choices for name in only},
        )


_KINDS = {int: "integer", float: "number", str: "text", bool: "true, false", types.NoneType: "null", Any: "anything"}


def _kinds(annotation: Any) -> list[str]:
    """The values that a type allows.

    >>> _kinds(Literal["cpu", "gpu"] | None), _kinds(dict[str, int]), _kinds(list[int | str])
    (['cpu', 'gpu', 'null'], ['mapping of text to integer'], ['list of integer or text'])
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kinds(inner[0])
    if origin is Literal:
        return [to_yaml(value) for value in inner]
    if origin in (Union, types.UnionType):
        return [kind for part in inner for kind in _kinds(part)]
    if origin in (list, Sequence):
        return [f"list of {' or '.join(_kinds(inner[0]))}"]
    if origin is dict:
        return [f"mapping of text to {' or '.join(_kinds(inner[1]))}"]
    return [_KINDS[annotation]]


def _limits(facts: Mapping[str, Any]) -> Iterator[str]:
    if "ge" in facts:
        yield f"at least {facts['ge']}"
    if "le" in facts:
        yield f"at most {facts['le']}"
    if "min_length" in facts:
        yield "not empty"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        WRITTEN.format(source="pipeline/config/schema.py, transforms/views/view.py and transforms/settings.py"),
        "For those who look up a setting. A configuration is a YAML file with the sections below. `layerbeam init`",
        "writes one with every setting in it; `layerbeam run CONFIG --set encoder.max_seq_length=64` changes one of",
        "them. An unknown name, a value that is not allowed or a layer that the encoder does not have is an error",
        "before anything starts.",
        "",
        "## The ten that most configurations set",
        "",
        "| setting | what it means |",
        "|---|---|",
        *(f"| `{name}` | {_cell(_setting(name).meaning)} |" for name in COMMON),
        "",
        "The others have a default that fits most corpora, or are found from the input and the encoder's files.",
    ]
    for section, model in SECTIONS.items():
        lines += ["", f"## {section}", "", str(model.__doc__)]
        rows = list(settings(section))
        if section == "views":
            (pooling,) = (row.only for row in rows if row.name == "pooling")
            lines += [
                "",
                "`views` has at least one view, by a name that becomes its folder. A setting of other levels is an",
                "error. Poolings: "
                + "; ".join(f"`{level}`: {', '.join(names)}" for level, names in pooling.items())
                + ".",
            ]
        lines += ["", *_table(rows, only={"views": "levels", "input": "formats"}.get(section))]
    lines += [
        "",
        "## beam",
        "",
        f"{BEAM}. Beam's documentation lists them. An option that Beam does not know is an error.",
    ]
    return "\n".join(lines) + "\n"


def _setting(name: str) -> Setting:
    section, _, inner = name.partition(".")
    return next(setting for setting in settings(section) if setting.name == inner)


def _table(rows: list[Setting], *, only: str | None) -> Iterator[str]:
    yield "| setting | default | allowed | what it means |" + (f" {only} |" if only else "")
    yield "|---|---|---|---|" + ("---|" if only else "")
    for row in rows:
        default = "required" if row.default is None else f"`{row.default}`"
        cells = [f"`{row.name}`", default, _cell(row.allowed), _cell(row.meaning)]
        if only:
            cells.append(", ".join(row.only) or "all")
        yield f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    # Markdown would interpret names of files and settings, such as _SUCCESS.
    return re.sub(r"(?<!`)\b_\w+", r"`\g<0>`", text.replace("|", "\\|"))


def commands_page() -> str:
    parser = command_line.make_parser("")
    lines = ["# Commands", "", WRITTEN.format(source="the modules pipeline/*/command.py")]
    lines += [f"For those who look up a command or an option. {parser.description}", ""]
    commands = _commands(parser)
    briefly = {choice.dest: str(choice.help) for action in _subparsers(parser) for choice in action._choices_actions}
    lines += ["| command | what it does |", "|---|---|"]
    lines += [f"| [`{name}`](#layerbeam-{name}) | {_cell(briefly[name])} |" for name in commands]
    for name, command in commands.items():
        lines += ["", f"## layerbeam {name}", "", "```text", _usage(name, command), "```", ""]
        lines += [command.description or f"{briefly[name][0].upper()}{briefly[name][1:]}.", ""]
        lines += ["| argument | |", "|---|---|"]
        lines += [f"| {_name(action)} | {_cell(str(action.help))} |" for action in _actions(command)]
        if command.epilog:
            lines += ["", command.epilog]
    return "\n".join(lines) + "\n"


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {name: command for action in _subparsers(parser) for name, command in action.choices.items()}


def _actions(command: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in command._actions if not isinstance(action, argparse._HelpAction)]


def _usage(name: str, command: argparse.ArgumentParser) -> str:
    """The usage line; argparse's own differs between versions of Python."""
    actions = _actions(command)
    given = [str(action.metavar) for action in actions if not action.option_strings and action.nargs != "?"]
    given += [f"[{action.metavar}]" for action in actions if not action.option_strings and action.nargs == "?"]
    return " ".join(["layerbeam", name, *given, "[OPTIONS]"])


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar}`"
    value = f" {action.metavar}" if action.metavar and action.nargs != 0 else ""
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


# What docs/api.md shows, in its order. Of a run and a view also these of their attributes.
API = {
    "Embed, run and read": ("encode", "run", "open_run", "Run", "View"),
    "In a Beam pipeline": ("EmbedText", "EmbedRows", "ModelHandler", "Embeddings", "TextError"),
    "The stages of a run": (
        *("FindFiles", "SliceFiles", "ReadBlocks", "TokenizeBlocks", "EncodeBlocks", "WriteBlocks"),
        *("make_table", "open_encoder", "load_encoder"),
    ),
    "What flows between the stages": (
        *("InputFile", "Slice", "TextBlock", "TokenBlock", "VectorBlock", "Commit", "Output", "EncoderSource"),
        *("ViewSpec", "Hardware", "BlockLimits", "RecordFormat", "SequenceSettings", "EncodeSettings", "WordPiece"),
    ),
}
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    Run: ("views", "view", "rejects", "inputs", "differences", "changes", "summary", "encode"),
    View: (
        *("num_rows", "vectors", "paths", "schema", "to_arrow", "to_numpy", "to_pandas", "iter_batches", "dataset"),
        *("nearest", "batches", "to_tf_dataset", "to_torch", "export"),
    ),
}


def api_page() -> str:
    lines = ["# Python reference", "", WRITTEN.format(source="the docstrings of what `import layerbeam` gives")]
    lines += [
        "For Python programmers who look up a name. [python.md](python.md), [in_beam.md](in_beam.md) and",
        "[custom_pipelines.md](custom_pipelines.md) show these names at work.",
    ]
    for title, names in API.items():
        lines += ["", f"## {title}"]
        for name in names:
            described = {"Run": Run, "View": View}.get(name) or getattr(layerbeam, name)
            lines += ["", f"### {name}", "", *_described(name, described)]
            for attribute in ATTRIBUTES.get(described, ()):
                lines += ["", *_described(f"{name}.{attribute}", inspect.getattr_static(described, attribute))]
    return "\n".join(lines) + "\n"


def _described(name: str, described: Any) -> Iterator[str]:
    """Its signature and its docstring."""
    function = described.fget if isinstance(described, property) else getattr(described, "func", described)
    if isinstance(described, property) or function is not described:
        yield from ("```python", f"{name}: {inspect.signature(function).return_annotation}", "```")
    elif name not in ("Run", "View", "TextError"):  # programs do not make these
        yield from ("```python", f"{name}{_signature(function)}", "```")
    yield ""
    yield _sections(inspect.getdoc(function) or "")


def _signature(function: Any) -> str:
    """(text: str, *, n: int = 1) -> list[str]; a parameter in each line if it is long."""
    signature, given, kind = inspect.signature(function), [], None
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and kind not in (each.KEYWORD_ONLY, each.VAR_POSITIONAL):
            given.append("*")
        kind = each.kind
        annotation = re.sub(r"^Annotated\[(.+?), \w+\(\w+\)\]$", r"\1", each.annotation)
        shown = f"{'**' if kind is each.VAR_KEYWORD else ''}{each.name}: {annotation}"
        if each.default is not each.empty:
            made = repr(each.default)
            shown += " = ..." if len(made) > 30 or made == "<factory>" else f" = {made}"
        given.append(shown)
    result = signature.return_annotation
    returned = "" if result in (None, "None", signature.empty) else f" -> {result}"
    line = f"({', '.join(given)}){returned}"
    return line if len(line) < 80 else "(\n" + "".join(f"    {each},\n" for each in given) + f"){returned}"


_SECTION = re.compile(r"^((?:Args|Returns|Raises|Warns|Yields|Example)(?: \(.*\))?):\n", re.MULTILINE)


def _sections(text: str) -> str:
    """The sections of a docstring as lists, and its examples as code.

    >>> print(_sections("A sum.\\n\\nArgs:\\n    a: One\\n        number.\\n    b: Another."))
    A sum.
    <BLANKLINE>
    **Args**
    <BLANKLINE>
    * `a`: One
      number.
    * `b`: Another.
    """
    first, *rest = _SECTION.split(text.strip())
    parts = [first.strip()]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        shown = textwrap.dedent(body).strip()
        if shown.startswith(">>> "):
            parts.append(f"**{title}**\n\n```pycon\n{shown}\n```")
            continue
        # Continued lines are indented by 2 or 4.
        items = re.sub(
            r"^ +", "  ", re.sub(r"^(\*{0,2}\w+): ", r"* `\1`: ", shown, flags=re.MULTILINE), flags=re.MULTILINE
        )
        parts.append(f"**{title}**\n\n{items}")
    return "\n\n".join(parts)


def json_schema() -> str:
    """The JSON Schema of a configuration file, for editors."""
    schema = pydantic.TypeAdapter(Config).json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(schema, indent=1) + "\n"


def llms_txt() -> str:
    """The pages of the site for programs that read documentation (llmstxt.org), from the list in mkdocs.yml."""
    site = (ROOT / "mkdocs.yml").read_text()
    name, description = (re.findall(rf"^site_{key}: (.*)$", site, re.MULTILINE)[0] for key in ("name", "description"))
    lines = [f"# {name}", "", f"> {description}"]
    for entry in yaml.safe_load(site[site.index("\nnav:") :])["nav"]:
        ((section, pages),) = entry.items()
        lines += ["", f"## {section}", ""]
        for page in pages if isinstance(pages, list) else [entry]:
            ((title, file),) = page.items()
            path, text = _page(file)
            lines.append(f"- [{title}]({path}): {_two_sentences(text)}")
    return "\n".join(lines) + "\n"


def _page(file: str) -> tuple[str, str]:
    """The path in the repository of a page of the site, and its Markdown."""
    if file == "index.md":
        return "README.md", (ROOT / "README.md").read_text()
    notebook = ROOT / "docs" / file.replace(".md", ".ipynb")
    if notebook.exists():
        cells = json.loads(notebook.read_text())["cells"]
        return f"docs/{notebook.name}", "".join(cells[0]["source"])
    return f"docs/{file}", (ROOT / "docs" / file).read_text()


def _two_sentences(page: str) -> str:
    """The first ones of the first paragraph, without Markdown.

    >>> _two_sentences("# A\\n\\n```sh\\nx\\n```\\n\\n*It* reads [all](x.md#y) of `a.b`\\nfiles: one. More.")
    'It reads all of a.b files: one. More.'
    >>> _two_sentences("# A\\n\\n<!-- b -->\\n\\nIt needs three things:\\n\\n* b")
    'It needs three things.'
    """
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    paragraph = next(block for block in prose.split("\n\n") if re.match(r"[^#<>|!\s-]", block.strip("\n")))
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    text = " ".join(re.split(r"(?<=[.?!])\s", re.sub(r"[*`]", "", text).strip())[:2]).removesuffix(":")
    return text if text.endswith((".", "?")) else f"{text}."


PAGES = {
    "llms.txt": llms_txt,
    "docs/settings.md": settings_page,
    "docs/commands.md": commands_page,
    "docs/api.md": api_page,
    "pipeline/config/schema.json": json_schema,
}


if __name__ == "__main__":
    for page, make in PAGES.items():
        (ROOT / page).write_text(make())
