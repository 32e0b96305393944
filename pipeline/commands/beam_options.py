"""Beam's own options, from configuration and command line, checked: Beam silently ignores options unknown to it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_api

from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.pipeline.run.beam_parts import BeamArgumentParser

# Options of other programs, and the settings that they are here.
_SETTINGS = {
    "--batch-size": "encoder.batch_tokens=N, the tokens in one batch, padding included",
    "--batch_size": "encoder.batch_tokens=N, the tokens in one batch, padding included",
    "--max-seq-length": "encoder.max_seq_length=N",
    "--max_seq_length": "encoder.max_seq_length=N",
    "--device": "encoder.device=cpu",
    "--model": "encoder.handle=HANDLE",
    "--layers": "views.NAME.layers=[-1]",
}


class _Parser(BeamArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"Beam option: {message}")


def as_arguments(settings: Mapping[str, Any], job_endpoint: str | None = None) -> list[str]:
    """The options in a configuration's `beam` as arguments of Beam's command line.

    Raises UsageError for values of the wrong type, and for options unknown to Beam and to the job server, if there is
    one: its options are those of the engine.

    >>> as_arguments({"project": "p", "no_auth": True, "streaming": False, "labels": ["a=1", "b=2"]})
    ['--project=p', '--no_auth', '--labels=a=1', '--labels=b=2']
    >>> as_arguments({"use_public_ips": False, "environment_config": {"command": "boot"}})
    ['--no_use_public_ips', '--environment_config={"command": "boot"}']
    """
    if not settings:
        return []
    known = {option: action for action in _parser()._actions for option in action.option_strings}
    arguments = []
    for name, value in settings.items():
        flag, no_flag = known.get(f"--{name}"), known.get(f"--no_{name}")
        if value is True:
            arguments += [f"--{name}"] if flag or not no_flag else []
        elif value is False and no_flag:
            arguments.append(f"--no_{name}")
        elif value is False:
            arguments += [f"--{name}=false"] if flag is None or flag.nargs != 0 else []
        elif value is not None:
            items = value if isinstance(value, list) else [value]
            arguments += [f"--{name}={json.dumps(item) if isinstance(item, dict) else item}" for item in items]
    unknown = _first_unknown(arguments, job_endpoint)
    if unknown is not None:
        hint = did_you_mean(unknown, known).replace("--", "")
        has_no = "Beam has no such" if job_endpoint is None else "neither Beam nor the job server has such an"
        raise UsageError(f"beam.{unknown.removeprefix('--')}: {has_no} option{hint}")
    return arguments


def check_arguments(arguments: list[str], own_options: Collection[str], job_endpoint: str | None = None) -> None:
    """As `as_arguments`, for arguments; also raises UsageError for positional ones.

    `own_options`: the command's own options, for "did you mean".
    """
    unknown = _first_unknown(arguments, job_endpoint)
    if unknown is None:
        return
    if not unknown.startswith("-"):
        hint = ""
        if os.path.exists(unknown):
            hint = "; a shell replaces a glob by the files that match: quote it, as in --input 'corpus/*.txt'"
        raise UsageError(f"{unknown}: unexpected argument{hint}")
    if unknown in _SETTINGS and "--set" in own_options:
        raise UsageError(f"{unknown}: not an option but a setting: --set {_SETTINGS[unknown]}")
    hint = did_you_mean(unknown, [*own_options, *known_options()])
    nobody = "neither layerbeam nor Beam" if job_endpoint is None else "none of layerbeam, Beam and the job server"
    raise UsageError(f"{unknown}: {nobody} has such an option{hint}")


def job_endpoint_of(arguments: list[str], settings: Mapping[str, Any]) -> str | None:
    """The job server's host:port, from command line or configuration; None if there is none to ask."""
    parser = _Parser(allow_abbrev=False, add_help=False)
    parser.add_argument("--job_endpoint", default=settings.get("job_endpoint"))
    endpoint: str | None = parser.parse_known_args(arguments)[0].job_endpoint
    return None if endpoint == "embed" else endpoint


def known_options() -> list[str]:
    """All of Beam's options, as on its command line."""
    return [option for action in _parser()._actions for option in action.option_strings]


def _first_unknown(arguments: list[str], job_endpoint: str | None) -> str | None:
    """The first option that neither Beam nor the job server knows."""
    if not arguments:
        return None
    _, unknown = _parser().parse_known_args(arguments)
    if unknown and job_endpoint is not None:
        from layerbeam.pipeline.remote.job_server import options_of

        parser = _parser()
        for option in options_of(job_endpoint):
            with contextlib.suppress(argparse.ArgumentError):  # Beam has it, too
                is_flag = option.type == job_api.PipelineOptionType.BOOLEAN
                parser.add_argument(f"--{option.name}", action="store_true" if is_flag else "append")
        _, unknown = parser.parse_known_args(arguments)
    return unknown[0].split("=")[0] if unknown else None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(allow_abbrev=False, add_help=False)
    for options in {str(cls): cls for cls in PipelineOptions.__subclasses__()}.values():
        options._add_argparse_args(parser)
    return parser
