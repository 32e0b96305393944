"""`layerbeam.run`: the command `layerbeam run` from Python."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import yaml

from layerbeam.pipeline.cli.parser import make_parser
from layerbeam.pipeline.commands.results import BUSY, DONE, INCOMPLETE, USAGE
from layerbeam.pipeline.console import python_command
from layerbeam.pipeline.dataset.reader import Run, open_run
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.run.command import load_config

_GRACE_SECONDS = 15


def run(
    config: str | os.PathLike[str] | Mapping[str, Any],
    *,
    verbose: bool = False,
    allow_incomplete: bool = False,
    **options: Any,
) -> Run:
    """Run a configuration and open what it wrote. Run it again to resume it, or to embed what is new.

    The run has a process of its own: whatever ends it, this process keeps its signal handlers, streams and memory.
    Each call starts Python and imports TensorFlow and Beam again, which takes 4 to 8 seconds, and 0.9 GB of memory
    while it runs. For a few texts without files, `layerbeam.encode` stays in this process.

    Args:
        config: The path of a configuration, or its sections as a mapping.
        verbose: Print to `sys.stderr` what the command prints. Otherwise nothing is printed.
        allow_incomplete: As in `open_run`.
        options: Options of `layerbeam run`: `output="out"`, `input=["a.txt"]`, `workers=2`, `prune_missing=True`,
            `set={"encoder.max_seq_length": 64}`. None and False leave an option out.

    Raises:
        ValueError: The configuration or an option is wrong, or the run is incomplete.
        BlockingIOError: Another run is active in the output folder.
        RuntimeError: The run failed. Completed blocks are kept.
    """
    with tempfile.TemporaryDirectory() as folder:
        if is_mapping := isinstance(config, Mapping):
            path = os.path.join(folder, "run")
            with open(path, "w", encoding="utf-8") as file:
                file.write(_as_yaml(config))
        else:
            path = os.fspath(config)
        arguments = ["run", *_as_arguments(options), "--", path]
        try:
            output = load_config(make_parser("").parse_known_args(arguments)[0]).output.path
        except UsageError as error:
            message = str(error).replace("--set ", "run: ")
            raise ValueError(message.replace(f"{path}: ", "run: ") if is_mapping else message) from None
        status, printed = _run_command(arguments, verbose=verbose)
    if status not in (DONE, INCOMPLETE):
        lines = [line.removeprefix("layerbeam: ") for line in printed if line.startswith("layerbeam: ")]
        killed = f"the run was killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        kind = {USAGE: ValueError, BUSY: BlockingIOError}.get(status, RuntimeError)
        raise kind("\n".join(lines) or killed)
    return open_run(output, allow_incomplete=allow_incomplete)


class _Dumper(yaml.SafeDumper):
    """Also writes paths and tuples, as text and lists."""


_Dumper.add_multi_representer(pathlib.PurePath, lambda dumper, path: dumper.represent_str(str(path)))


def _as_yaml(config: Mapping[str, Any]) -> str:
    try:
        return yaml.dump(dict(config), Dumper=_Dumper, allow_unicode=True, sort_keys=False)
    except yaml.representer.RepresenterError as error:
        value = error.args[1]
        raise ValueError(
            f"run: {value!r:.60} is a {type(value).__name__}; a configuration holds texts, numbers, lists and mappings"
        ) from None


def _as_arguments(options: Mapping[str, Any]) -> list[str]:
    """
    >>> _as_arguments({"workers": 2, "prune_missing": True, "force": False, "input": ["a", "b"], "set": {"a.b": [1]}})
    ['--workers=2', '--prune-missing', '--input=a', '--input=b', '--set=a.b=[1]']
    """
    arguments = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(option)
        elif isinstance(value, Mapping):
            arguments += [f"{option}={key}={json.dumps(inner, ensure_ascii=False)}" for key, inner in value.items()]
        elif value is not None and value is not False:
            values = value if isinstance(value, list | tuple) else [value]
            arguments += [f"{option}={os.fspath(one) if isinstance(one, os.PathLike) else one}" for one in values]
    return arguments


def _run_command(arguments: list[str], *, verbose: bool) -> tuple[int, list[str]]:
    """The exit status of the command and the lines that it printed to standard error."""
    command = [*python_command("import sys; from layerbeam.__main__ import main; sys.exit(main())"), *arguments]
    printed: list[str] = []
    with subprocess.Popen(  # noqa: S603 - this program
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C at a terminal would reach it twice
    ) as process:
        try:
            for line in process.stderr or ():
                printed.append(line.rstrip("\n"))
                if verbose:
                    sys.stderr.write(line)
            return process.wait(), printed
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
