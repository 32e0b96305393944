"""Beam's own options, from configuration and command line, checked: Beam silently ignores options unknown to it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

from layerbeam.pipeline.errors import UsageError, did_you_mean

# Former names of layerbeam's own options.
_RENAMED = {"--remove-gone": "--prune-missing", "--files": "--checksums", "--color": "--color-by"}


class _Parser(_BeamArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"Beam option: {message}")


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """The configuration's options as arguments of Beam's command line.

    >>> as_arguments({"project": "p", "no_auth": True, "streaming": False, "labels": ["a=1", "b=2"]})
    ['--project=p', '--no_auth', '--labels=a=1', '--labels=b=2']
    >>> as_arguments({"use_public_ips": False, "environment_config": {"command": "boot"}})
    ['--no_use_public_ips', '--environment_config={"command": "boot"}']
    """
    known = {option: action for action in _parser()._actions for option in action.option_strings}
    arguments = []
    for name, value in settings.items():
        if value is None:
            continue
        flag, no_flag = known.get(f"--{name}"), known.get(f"--no_{name}")
        if isinstance(value, bool):
            if value:
                arguments += [f"--{name}"] if flag or not no_flag else []
            elif no_flag:
                arguments.append(f"--no_{name}")
            elif flag is None or flag.nargs != 0:
                arguments.append(f"--{name}=false")
        else:
            items = value if isinstance(value, list) else [value]
            arguments += [f"--{name}={json.dumps(item) if isinstance(item, dict) else item}" for item in items]
    return arguments


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises UsageError for an option in the configuration's `beam` that Beam does not know, or a wrong type."""
    unknown = _first_unknown(as_arguments(settings))
    if unknown is not None:
        hint = did_you_mean(unknown, known_options()).replace("--", "")
        raise UsageError(f"beam.{unknown.removeprefix('--')}: Beam has no such option{hint}")


def check_arguments(arguments: list[str], own_options: Collection[str]) -> None:
    """Raises UsageError for options unknown to Beam, values of the wrong type, and positional arguments.

    `own_options`: the command's own options, for "did you mean".
    """
    unknown = _first_unknown(arguments)
    if unknown is not None and not unknown.startswith("-"):
        raise UsageError(f"{unknown}: unexpected argument")
    if unknown is not None and _RENAMED.get(unknown) in own_options:
        raise UsageError(f"{unknown}: was renamed to {_RENAMED[unknown]}")
    if unknown is not None:
        hint = did_you_mean(unknown, [*own_options, *known_options()])
        raise UsageError(f"{unknown}: neither layerbeam nor Beam has such an option{hint}")


def known_options() -> list[str]:
    """All of Beam's options, as on its command line."""
    return [option for action in _parser()._actions for option in action.option_strings]


def _first_unknown(arguments: list[str]) -> str | None:
    """The first option that Beam does not know."""
    _, unknown = _parser().parse_known_args(arguments)
    return unknown[0].split("=")[0] if unknown else None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(allow_abbrev=False, add_help=False)
    for options in {str(cls): cls for cls in PipelineOptions.__subclasses__()}.values():
        options._add_argparse_args(parser)
    return parser
