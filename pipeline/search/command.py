"""`layerbeam search`."""

from __future__ import annotations

import argparse

from layerbeam.pipeline.commands.arguments import (
    STORE_OPTIONS,
    add_json,
    add_outputs,
    add_trust,
    add_verbose,
    one_or_all,
    positive,
    text,
)
from layerbeam.pipeline.commands.file_systems import announce_loading, set_up_stores
from layerbeam.pipeline.commands.results import DONE, print_result

HELP = "find the rows of a finished run nearest to a text, or to a row of the run"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Compare a text, or a row of the run, with all rows of a view, and print the nearest: exact."
    command.epilog = f"Exit status: 0 done; 1 failed; 2 wrong usage, such as no finished run. {STORE_OPTIONS}"
    add_outputs(command)
    encodes = "search for a text, in a view of texts or records; encodes it with the encoder and settings of the run"
    command.add_argument("--text", metavar="T", type=text, action="append", default=[], help=f"{encodes}; repeatable")
    command.add_argument(
        "--like",
        metavar="FILE:LINE[:WORD]",
        action="append",
        default=[],
        help="search for what is like this line, or this word of it, the first one; FILE and LINE are those of the "
        "columns `file` and `line`, which counts from 0; repeatable",
    )
    command.add_argument(
        "--prompt",
        metavar="P",
        help="what is put before each text: the name of one of the model's prompts, such as query, or the prompt "
        "itself; default: encoder.query_prompt, by default the model's own",
    )
    command.add_argument("--view", metavar="NAME", help="the view; may be left out if only one can be searched")
    command.add_argument("--layer", metavar="L", help="such as 6 or layer_6; may be left out if the view has one")
    command.add_argument("-k", "--count", metavar="N", type=positive, default=10, help="rows per query; default: 10")
    command.add_argument(
        "--metric",
        choices=("cosine", "dot", "l2"),
        default="cosine",
        help="cosine, dot or l2 (the distance: low is near); default: cosine",
    )
    command.add_argument(
        "--where",
        metavar="W",
        help="only rows for which this is true: comparisons of columns as in Python, such as \"word == 'bank' and year "
        ">= 1990\" or \"party in ['left', 'right']\"",
    )
    add_trust(command)
    add_json(command)
    add_verbose(command)


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    if options.text:
        announce_loading()
    set_up_stores(options, beam_arguments, *options.output)
    from layerbeam.pipeline.search.search import print_search, search

    result = search(
        one_or_all(options.output),
        texts=options.text,
        like=options.like,
        view=options.view,
        layer=options.layer,
        count=options.count,
        metric=options.metric,
        where=options.where,
        prompt=options.prompt,
        trust=options.trust,
    )
    print_result(options, result, print_search)
    return DONE
