"""`layerbeam init`: a first configuration, with every setting and its meaning."""

from __future__ import annotations

import dataclasses
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layerbeam.pipeline.config.reference import BEAM, SECTIONS, Setting, settings, to_yaml
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
# Lines that begin with # and a letter are settings with their default: remove the # to change one.
"""
# What the configuration sets; the other settings are comments. `views` by name.
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
    lines = [_HEAD.replace(NAME, shlex.quote(path)).rstrip()]
    for section, model in SECTIONS.items():
        lines += ["", f"# {model.__doc__}", f"{section}:"]
        if section == "views":
            lines += _views()
        else:
            for setting in settings(section):
                only = f"{', '.join(setting.only)}: " if setting.only else ""
                setting = dataclasses.replace(setting, meaning=only + setting.meaning)
                lines += _lines(setting, setting.choices, _GIVEN[section], indent=2)
    lines += ["", f"# {BEAM}", "#beam: {}"]
    return "\n".join(lines) + "\n"


def _views() -> Iterator[str]:
    explained: set[str] = set()
    for view, given in _VIEWS.items():
        yield f"  {view}:"
        for setting in settings("views"):
            # The second view repeats a setting of the first only where it sets it.
            known, level = setting.name in explained, given["level"]
            if (setting.only and level not in setting.only) or (known and setting.name not in given):
                continue
            choices = setting.only.get(level, setting.choices)
            yield from _lines(setting, choices, given, indent=4, explained=known)
            explained.add(setting.name)


def _lines(
    setting: Setting, choices: Sequence[str], given: Mapping[str, Any], *, indent: int, explained: bool = False
) -> Iterator[str]:
    margin = " " * indent
    if not explained:
        meaning = setting.meaning
        if not all(choice in meaning for choice in choices):
            meaning += f" [{' | '.join(choices)}]"
        yield from textwrap.wrap(meaning, _WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
    if setting.name in given:
        yield f"{margin}{setting.name}: {to_yaml(given[setting.name])}"
    else:
        yield f"{margin}#{setting.name}: {setting.default}"
