"""`layerbeam show`, and the summary that a run ends with."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import glob
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layerbeam.pipeline.commands.arguments import STORE_OPTIONS, add_json, add_outputs, add_verbose, natural, one_or_all
from layerbeam.pipeline.commands.file_systems import set_up_stores
from layerbeam.pipeline.commands.results import BUSY, DONE, INCOMPLETE, print_result, tolerate_closed_pipe
from layerbeam.pipeline.console import echo_error

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.summary import RunSummary

HELP = "show what an output folder holds, of a finished or unfinished run"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = STORE_OPTIONS
    add_outputs(command)
    command.add_argument(
        "--changes",
        nargs="?",
        type=natural,
        const=-1,
        metavar="N",
        help="instead, which lines of which files came, went and moved since the end of run N (default: the one before "
        "the last); lines count from 0, as in the column `line`; with --json one object for each, in lines",
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="for a monitor: exit with 3 if the folder is not complete, and with 4 if a run is active in it",
    )
    add_json(command)
    add_verbose(command)


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    set_up_stores(options, beam_arguments, *options.output)
    outputs = options.output
    if len(outputs) > 1 or glob.has_magic(outputs[0]):
        from layerbeam.pipeline.dataset.folders import find_folders

        outputs = find_folders(outputs)
    if options.changes is not None:
        since = None if options.changes < 0 else options.changes
        for output in outputs:
            _print_changes(output, since, as_json=options.json, in_folder=len(outputs) > 1)
        return DONE
    summary = print_summary(options, one_or_all(outputs), rows=True)
    if not options.check or summary.state == "complete":
        return DONE
    from layerbeam.pipeline.output.attempts import seems_active

    return BUSY if any(map(seems_active, outputs)) else INCOMPLETE


def _print_changes(output_path: str, since: int | None, *, as_json: bool, in_folder: bool) -> None:
    """Print what changed in the rows since the end of a run. `in_folder`: name the folder, too."""
    from layerbeam.pipeline.dataset.summary import last_attempt
    from layerbeam.pipeline.output.changes import Changes
    from layerbeam.pipeline.show.changes import print_changes, print_changes_json

    last_attempt(output_path)  # OutputError if the folder has no run
    changes = Changes(output_path, since)
    with tolerate_closed_pipe():
        (print_changes_json if as_json else print_changes)(changes, output_path if in_folder else None)


def print_summary(
    options: argparse.Namespace,
    output: str | Sequence[str],
    *,
    rows: bool = False,
    speed: bool = True,
    documents: Mapping[str, Sequence[str]] | None = None,
) -> RunSummary:
    """Print what an output folder holds, or several, or only problems. `speed`: also how fast its last run was."""
    from layerbeam.pipeline.dataset.summary import summarize
    from layerbeam.pipeline.show import summary as printers

    if isinstance(output, str):
        summary = summarize(output)
    else:
        from layerbeam.pipeline.dataset.reader import open_run

        summary = open_run(output, allow_unfinished=True).summary()
    summary = dataclasses.replace(summary, documents=documents)
    shown: list[Callable[[Any], None]] = [functools.partial(printers.print_summary, speed=speed)]
    shown += [printers.print_rows] if rows else []
    print_result(options, summary, *([_print_problems] if options.quiet else [*shown, printers.print_next]))
    return summary


def _print_problems(summary: RunSummary) -> None:
    for problem in summary.first_problems:
        echo_error(f"{summary.path}: {problem}")
