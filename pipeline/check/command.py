"""`layerbeam check`."""

from __future__ import annotations

import argparse

from layerbeam.pipeline.commands.arguments import STORE_OPTIONS, add_json, add_output, add_trust, add_verbose
from layerbeam.pipeline.commands.file_systems import announce_loading, set_up_stores
from layerbeam.pipeline.commands.results import DONE, FAILED, print_result

HELP = "check that an encoder, here or behind another engine, makes the vectors of a run, or say what differs"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Encode the five canary texts of a run's manifest again, with the encoder of the run or with another engine, "
        "and say in one line whether the vectors are the run's, or what was done differently."
    )
    command.epilog = (
        "Exit status: 0 equal, or equal up to scale; 1 failed: the vectors differ; 2 wrong usage, such as a run "
        f"without canary texts, or no answer. {STORE_OPTIONS}"
    )
    add_output(command)
    engine = command.add_mutually_exclusive_group()
    engine.add_argument(
        "--python", metavar="MODULE:FUNCTION", help="instead: a function from a list of texts to a vector for each"
    )
    engine.add_argument(
        "--url",
        metavar="URL",
        help="instead: a server, at /v1/embeddings as of OpenAI (the default path) or at /embed of TEI",
    )
    command.add_argument("--model", metavar="NAME", help="the model that --url is asked for; default: the run's handle")
    command.add_argument("--as-query", action="store_true", help="the engine encodes queries: expect their prompt")
    command.add_argument("--view", metavar="NAME", help="the view of texts; default: all, of an engine the only one")
    command.add_argument("--layer", metavar="L", help="such as 6 or layer_6; default: all, of an engine the only one")
    add_trust(command)
    add_json(command)
    add_verbose(command, quiet="print nothing if the vectors are equal")


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    if options.python is None and options.url is None:
        announce_loading()
    set_up_stores(options, beam_arguments, options.output)
    from layerbeam.pipeline.check.check import check, print_check

    result = check(
        options.output,
        view=options.view,
        layer=options.layer,
        python=options.python,
        url=options.url,
        model=options.model,
        as_query=options.as_query,
        trust=options.trust,
    )
    print_result(options, result, *([] if options.quiet and result.is_equal else [print_check]))
    return DONE if result.is_equal else FAILED
