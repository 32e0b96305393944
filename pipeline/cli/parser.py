"""The parser of the command line. It imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import importlib
import re
from typing import Any, NoReturn

from layerbeam.pipeline.errors import UsageError, did_you_mean

# Each is the module `command` of its room: HELP, `add_arguments(command)`, `execute(options, beam_arguments)`.
COMMANDS = (
    "run",
    "plan",
    "show",
    "verify",
    "check",
    "compare",
    "report",
    "search",
    "export",
    "publish",
    "encoder",
    "extract-features",
    "init",
)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given, allow_abbrev=False)  # an option unknown here may be one of Beam's

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)$", message)
        if wrong is not None:
            hint = did_you_mean(wrong[1], COMMANDS) or f"; there are {', '.join(COMMANDS)}"
            raise UsageError(f"{wrong[1]}: no such command{hint}")
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def make_parser(version: str) -> argparse.ArgumentParser:
    """The parser. What it parses has `execute`, and `own_options`: the names of the command's options."""
    parser = _Parser(prog="layerbeam", description="The vectors inside BERT, for whole corpora.")
    parser.add_argument("--version", action="version", version=f"layerbeam {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"layerbeam.pipeline.{name.replace('-', '_')}.command")
        command = commands.add_parser(name, help=module.HELP)
        module.add_arguments(command)
        command.set_defaults(quiet=False, own_options=tuple(command._option_string_actions), execute=module.execute)
    return parser


def escape_negative_layers(arguments: list[str]) -> list[str]:
    """The arguments with a space before `-1,-2`, which argparse would otherwise take for an option."""
    return [f" {argument}" if re.match(r"-\d", argument) else argument for argument in arguments]
