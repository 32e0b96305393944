"""`layerbeam encoder`."""

from __future__ import annotations

import argparse

from layerbeam.pipeline.commands.arguments import STORE_OPTIONS, add_json, add_verbose
from layerbeam.pipeline.commands.file_systems import set_up_stores
from layerbeam.pipeline.commands.results import DONE, print_result
from layerbeam.pipeline.errors import UsageError

HELP = "list well-known encoders, or describe one: source, layers, tokenizer, fingerprint, licence"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = STORE_OPTIONS
    command.add_argument(
        "handle", metavar="HANDLE", nargs="?", help="as encoder.handle in a configuration; without it, a list"
    )
    command.add_argument("--adapter", metavar="ADAPTER", help="as encoder.adapter in a configuration")
    add_json(command)
    add_verbose(command, "the logs of TensorFlow, and tracebacks")


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.encoder.inspect_encoder import describe_encoder, print_encoder
    from layerbeam.pipeline.encoder.known_encoders import list_encoders, print_encoders

    if options.handle is None and options.adapter is not None:
        raise UsageError("--adapter: give the encoder for which it was trained, too")
    set_up_stores(options, beam_arguments, options.handle or "", options.adapter or "")
    if options.handle is None:
        print_result(options, list_encoders(), print_encoders)
    else:
        print_result(options, describe_encoder(options.handle, options.adapter), print_encoder)
    return DONE
