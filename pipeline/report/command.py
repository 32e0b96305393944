"""`layerbeam report`."""

from __future__ import annotations

import argparse

from layerbeam.pipeline.commands.arguments import (
    STORE_OPTIONS,
    add_json,
    add_number,
    add_outputs,
    add_seed,
    add_trust,
    add_verbose,
    one_or_all,
    text,
)
from layerbeam.pipeline.commands.file_systems import set_up_stores
from layerbeam.pipeline.commands.results import DONE, FAILED, print_result
from layerbeam.pipeline.console import echo_error

HELP = "write a page about a run: lengths, rejects, layers, projections, words over the layers, neighbours"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Write one self-contained HTML page about a run, finished or not."
    command.epilog = (
        f"Exit status: 0 done; 1 failed, or a word does not occur (the page is written); 2 wrong usage. {STORE_OPTIONS}"
    )
    add_outputs(command)
    command.add_argument("--word", metavar="W", action="append", default=[], help="show it in every layer; repeatable")
    command.add_argument(
        "--text",
        metavar="T",
        type=text,
        action="append",
        default=[],
        help="show its nearest neighbours of all rows; encodes it with the encoder and settings of the run; repeatable",
    )
    command.add_argument(
        "--color-by",
        metavar="FIELD",
        help="colour texts and occurrences of words by this column, such as a kept field, and name for each word "
        "the layer that separates its values best; default: file, for texts",
    )
    add_number(command, "--sample", "rows to sample from each view; default: 20,000", default=20_000)
    add_seed(command)
    command.add_argument(
        "--to", metavar="FILE", help="write to FILE instead of OUT/report.html; of several folders needed"
    )
    add_trust(command)
    add_json(command, "print the page's figures as JSON")
    add_verbose(command, quiet="print only errors")


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    set_up_stores(options, beam_arguments, *options.output, *([options.to] if options.to else []))
    from layerbeam.pipeline.report.page import print_report_result, write_report

    result = write_report(
        one_or_all(options.output),
        words=options.word,
        texts=options.text,
        color_by=options.color_by,
        sample=options.sample,
        seed=options.seed,
        to=options.to,
        trust=options.trust,
    )
    print_result(options, result, *([] if options.quiet else [print_report_result]))
    for problem in result.problems:
        echo_error(problem)
    return FAILED if result.problems else DONE
