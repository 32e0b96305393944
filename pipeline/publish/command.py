"""`layerbeam publish`."""

from __future__ import annotations

import argparse

from layerbeam.pipeline.commands.arguments import add_json, add_output, add_verbose, refuse_arguments
from layerbeam.pipeline.commands.results import DONE, print_result

HELP = "publish a finished run as a dataset on Hugging Face's Hub, with a card"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Write a dataset card, OUT/README.md, and publish the run with it on Hugging Face's Hub. Run it again to "
        "resume it, or to publish what a later run has changed. The token is that of HF_TOKEN or `hf auth login`."
    )
    command.epilog = "Exit status: 0 done; 1 failed; 2 wrong usage, such as no finished run, or no permission."
    add_output(command, "the output folder, on this machine")
    command.add_argument("repository", metavar="REPOSITORY", nargs="?", help="org/name; without it, only the card")
    command.add_argument("--public", action="store_true", help="make a new dataset public; default: private")
    add_json(command)
    add_verbose(command)


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    refuse_arguments(beam_arguments)
    from layerbeam.pipeline.publish.publish import print_published, publish

    print_result(options, publish(options.output, options.repository, public=options.public), print_published)
    return DONE
