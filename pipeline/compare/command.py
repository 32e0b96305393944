"""`layerbeam compare`."""

from __future__ import annotations

import argparse

from layerbeam.pipeline.commands.arguments import STORE_OPTIONS, add_json, add_number, add_seed, add_verbose
from layerbeam.pipeline.commands.file_systems import set_up_stores
from layerbeam.pipeline.commands.results import DONE, print_result

HELP = "compare the vectors of the same texts in two runs: cosines, neighbours, layers, rows that moved most"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Compare two finished runs over the same texts, such as one in float32 and one in int8, or of two models: the "
        "cosines of all rows, and of a sample those after the best rotation, the nearest neighbours that stay, and how "
        "alike all pairs of layers are."
    )
    command.epilog = f"Exit status: 0 done; 1 failed; 2 wrong usage, such as no text in common. {STORE_OPTIONS}"
    command.add_argument("output", metavar="A", help="an output folder")
    command.add_argument("other", metavar="B", help="another one")
    command.add_argument(
        "--view",
        metavar="NAME[=OTHER]",
        help="the view, and its name in B if that is another one; default: all views of one name and level",
    )
    add_number(command, "--sample", "rows for rotations, neighbours and layers; default: 2,000", default=2000)
    add_seed(command)
    add_number(command, "--count", "rows that moved most; default: 5", default=5)
    command.add_argument("--html", metavar="FILE", help="also write a page; needs the extra `report`")
    add_json(command)
    add_verbose(command)


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    set_up_stores(options, beam_arguments, options.output, options.other, *([options.html] if options.html else []))
    from layerbeam.pipeline.compare.compare import compare, print_comparison

    paths = options.output, options.other
    result = compare(paths, view=options.view, sample=options.sample, seed=options.seed, count=options.count)
    if options.html:
        from layerbeam.pipeline.report.comparison import write_comparison

        write_comparison(options.html, result)
    print_result(options, result, print_comparison)
    return DONE
