"""`layerbeam init`: a configuration to start from, with every setting and its meaning."""

from __future__ import annotations

import math
import shlex
import textwrap
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import yaml

from layerbeam.pipeline.config.schema import BEAM, SCHEMA_FILE, SECTIONS, default_of, fields_of
from layerbeam.pipeline.console import one_line
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.flow.commits import printable
from layerbeam.transforms.settings import Settings

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.recipe import Model

NAME = "layerbeam.yaml"
INPUT = "texts/*.txt"
_WIDTH = 100
_HEAD = """\
# yaml-language-server: $schema={schema}
# A configuration of layerbeam, ready to run:
#
#     layerbeam run {path}
#
# It reads {reads} and writes {content}.
# Lines that begin with # and a letter are settings with their default: remove the # to change one.
"""
_CONTENT = "two views: a vector for each token in four layers, and one for each line"
_CONTENT_OF_MODEL = "one view: for each line the {what} of sentence-transformers' `{method}`"
# What the configuration sets; the other settings are comments. `views` by name.
_GIVEN: dict[str, dict[str, Any]] = {
    "encoder": {"handle": "minilm"},
}
_VIEWS: dict[str, dict[str, Any]] = {
    "tokens": {"level": "token", "layers": [-4, -3, -2, -1]},
    "sentences": {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True},
}


def write(path: str, model: Model | None = None, **found: Any) -> None:
    """Write it to `path`; `found` as for `text`. UsageError if there is a file already, or it cannot be written."""
    content = text(path, model, **found)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise UsageError(
            f"{path}: already exists and is not overwritten; give another name: layerbeam init FILE"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def text(
    path: str = NAME,
    model: Model | None = None,
    *,
    settings: Mapping[str, Any] = MappingProxyType({"files": [INPUT]}),
    reads: str = INPUT,
) -> str:
    """The whole file: with four layers of `minilm`, or with the settings of a model of sentence-transformers.

    `settings`: of the section `input`; `reads`: what they read, for a user. UsageError if YAML would not give these
    settings back.
    """
    content = _CONTENT
    if model:
        what = "list of vectors" if model.view["pooling"] == "none" else "vector"
        content = _CONTENT_OF_MODEL.format(what=what, method=model.method)
    schema = SCHEMA_FILE.as_uri()
    facts = {"schema": schema, "path": shlex.quote(path), "reads": printable(reads), "content": content}
    lines = [line.format(**facts) for line in _HEAD.splitlines()]
    if model:
        lines += textwrap.wrap(model.queries, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    sections: dict[str, Mapping[str, Any]] = {**_GIVEN, "input": settings, "output": {"path": output_path(path)}}
    if model:
        sections["encoder"] = model.encoder
    views = {"sentences": model.view} if model else _VIEWS
    for section, type_ in SECTIONS.items():
        lines += ["", f"# {type_.__doc__}", f"{section}:"]
        if section in sections:
            lines += _settings(type_, sections[section], "  ", set())
            continue
        explained: set[str] = set()
        for view, given in views.items():
            lines += [f"  {view}:", *_settings(type_, given, "    ", explained)]
    written = "".join(f"{one_line(line)}\n" for line in [*lines, "", f"# {BEAM}", "#beam: {}"])
    if yaml.safe_load(written) != sections | {"views": views}:
        raise UsageError(f"{path}: the names of the files or columns cannot be written as YAML; rename them")
    return written


def output_path(path: str) -> str:
    """The output folder of a configuration: named after its file, so that two files in a folder do not share one.

    >>> output_path("layerbeam.yaml"), output_path("configs/letters.yaml")
    ('out/first', 'out/letters')
    """
    return "out/first" if Path(path).name == NAME else f"out/{Path(path).stem}"


def _settings(model: type[Settings], given: Mapping[str, Any], margin: str, explained: set[str]) -> Iterator[str]:
    """Each setting after its meaning; of a view those of its level, and after the first view only what it sets."""
    types, level = typing.get_type_hints(model), given.get("level")
    for field in fields_of(model):
        name, meaning, only = field.name, field.metadata["description"], field.metadata.get("only")
        if level is not None and ((only and level not in only) or (name in explained and name not in given)):
            continue
        if name not in explained:
            explained.add(name)
            inner = default_of(field)
            if isinstance(inner, Settings):
                of_inner = (f"{own.name}: {own.metadata['description']}" for own in fields_of(type(inner)))
                meaning = f"{meaning}. {'. '.join(of_inner)}"
            choices = typing.get_args(types[name]) if typing.get_origin(types[name]) is Literal else ()
            if isinstance(only, Mapping):
                choices = only[level]
            elif only and level is None:
                meaning = f"{', '.join(only)}: {meaning}"
            if not all(choice in meaning for choice in choices):
                meaning += f" [{' | '.join(choices)}]"
            yield from textwrap.wrap(meaning, _WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
        mark = "" if name in given else "#"
        yield f"{margin}{mark}{name}: {to_yaml(given.get(name, default_of(field)))}"


def to_yaml(value: Any) -> str:
    """The value as YAML on one line.

    >>> to_yaml(None), to_yaml([-1, "0..2"]), to_yaml({}), to_yaml(1.0), to_yaml("two\\nlines ")
    ('null', '[-1, 0..2]', '{}', '1.0', '"two\\\\nlines "')
    """
    value = vars(value) if isinstance(value, Settings) else value
    for style in (None, '"'):  # the second one has no line ends
        dumped = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=math.inf, sort_keys=False)
        # The dumper ends a plain scalar with the document's end.
        dumped = dumped.removesuffix("\n").removesuffix("\n...")
        if "\n" not in dumped:
            break
    return dumped
