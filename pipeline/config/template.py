"""`layerbeam init`: a first configuration, with every setting and its meaning."""

from __future__ import annotations

import shlex
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import yaml

from layerbeam.pipeline.config.schema import BEAM, SECTIONS, default_of, fields_of
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.settings import Settings

NAME = "layerbeam.yaml"
INPUT = "texts/*.txt"
_WIDTH = 100
_HEAD = f"""\
# A configuration of layerbeam, ready to run:
#
#     layerbeam run {{path}}
#
# It reads {INPUT} and writes two views: a vector for each token in four layers, and one for each line.
# Lines that begin with # and a letter are settings with their default: remove the # to change one.
"""
# What the configuration sets; the other settings are comments. `views` by name.
_GIVEN: dict[str, dict[str, Any]] = {
    "input": {"files": [INPUT]},
    "encoder": {"handle": "minilm", "max_seq_length": 128},
    "output": {"path": "out/first"},
}
_VIEWS: dict[str, dict[str, Any]] = {
    "tokens": {"level": "token", "layers": [-4, -3, -2, -1]},
    "sentences": {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True},
}


def write(path: str) -> None:
    """Write it to `path`. UsageError if there is a file already, or it cannot be written."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text(path))
    except FileExistsError:
        raise UsageError(
            f"{path}: already exists and is not overwritten; give another name: layerbeam init FILE"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def text(path: str = NAME) -> str:
    """The whole file."""
    lines = _HEAD.format(path=shlex.quote(path)).splitlines()
    for section, model in SECTIONS.items():
        lines += ["", f"# {model.__doc__}", f"{section}:"]
        if section in _GIVEN:
            lines += _settings(model, _GIVEN[section], "  ", set())
            continue
        explained: set[str] = set()
        for view, given in _VIEWS.items():
            lines += [f"  {view}:", *_settings(model, given, "    ", explained)]
    return "\n".join([*lines, "", f"# {BEAM}", "#beam: {}"]) + "\n"


def _settings(model: type[Settings], given: Mapping[str, Any], margin: str, explained: set[str]) -> Iterator[str]:
    """Each setting after its meaning; of a view those of its level, and after the first view only what it sets."""
    types, level = typing.get_type_hints(model), given.get("level")
    for field in fields_of(model):
        name, meaning, only = field.name, field.metadata["description"], field.metadata.get("only")
        if level is not None and ((only and level not in only) or (name in explained and name not in given)):
            continue
        if name not in explained:
            explained.add(name)
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

    >>> to_yaml(None), to_yaml([-1, "0..2"]), to_yaml({}), to_yaml(1.0)
    ('null', '[-1, 0..2]', '{}', '1.0')
    """
    # The dumper ends a plain scalar with the document's end.
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
