"""`layerbeam init`: a configuration to begin with, every setting in it with its meaning."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from layerbeam.pipeline.config import schema
from layerbeam.pipeline.config.reference import SECTIONS, Setting, settings, to_yaml
from layerbeam.pipeline.errors import UsageError

NAME = "layerbeam.yaml"
INPUT = "texts/*.txt"
OUTPUT = "out/first"
_WIDTH = 100
_HEAD = f"""\
# A configuration of layerbeam, ready to run:
#
#     layerbeam run {NAME}
#
# It reads {INPUT} and writes two views: a vector for each token in four layers, and one for each line.
# Lines that begin with # and a letter are settings with their default: take the # away to change one.
"""
# What the configuration sets; the other settings are there as comments. In `views` by the name of a view.
_GIVEN: dict[str, dict[str, Any]] = {
    "input": {"files": [INPUT]},
    "encoder": {"handle": "minilm", "max_seq_length": 128},
    "output": {"path": OUTPUT},
}
_VIEWS: dict[str, dict[str, Any]] = {
    "tokens": {"level": "token", "layers": [-4, -3, -2, -1]},
    "sentences": {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True},
}


def write(path: str) -> None:
    """Write it to `path`. UsageError where a file is there, or none can be made."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text(path))
    except FileExistsError:
        raise UsageError(
            f"{path}: is there already, and nothing is written over; give another name: layerbeam init FILE"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def text(path: str = NAME) -> str:
    """The whole file."""
    lines = [_HEAD.replace(NAME, shlex.quote(path)).rstrip()]
    for section, model in SECTIONS.items():
        lines += ["", f"# {model.__doc__}", f"{section}:"]
        if section == "views":
            lines += _views()
        else:
            for setting in settings(section):
                lines += _lines(setting, _GIVEN[section], indent=2)
    beam = schema.Config.model_fields["beam"]
    lines += ["", f"# {beam.description}", f"#beam: {to_yaml(beam.default)}"]
    return "\n".join(lines) + "\n"


def _views() -> Iterator[str]:
    explained: set[str] = set()
    for view, given in _VIEWS.items():
        yield f"  {view}:"
        for setting in settings("views"):
            # A second view repeats no setting that the first has explained, unless it gives it.
            if (setting.levels and given["level"] not in setting.levels) or (
                setting.name in explained and setting.name not in given
            ):
                continue
            yield from _lines(setting, given, indent=4, explained=setting.name in explained)
            explained.add(setting.name)


def _lines(setting: Setting, given: Mapping[str, Any], *, indent: int, explained: bool = False) -> Iterator[str]:
    margin = " " * indent
    if not explained:
        meaning = setting.meaning
        if not all(choice in meaning for choice in setting.choices):
            meaning += f" [{' | '.join(setting.choices)}]"
        yield from textwrap.wrap(meaning, _WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
    if setting.name in given:
        yield f"{margin}{setting.name}: {to_yaml(given[setting.name])}"
    else:
        yield f"{margin}#{setting.name}: {setting.default}"
