"""`layerbeam init`."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from layerbeam.pipeline.commands.arguments import add_verbose, refuse_arguments
from layerbeam.pipeline.commands.file_systems import set_up_stores
from layerbeam.pipeline.commands.results import DONE
from layerbeam.pipeline.console import command_name, echo
from layerbeam.pipeline.errors import UsageError

HELP = "write a configuration to start from, with every setting explained"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Write a configuration to start from, with every setting explained. Never overwrites a file."
    command.add_argument(
        "config", metavar="FILE", nargs="?", default="layerbeam.yaml", help="default: layerbeam.yaml, in this folder"
    )
    command.add_argument(
        "--input",
        metavar="GLOB",
        help="your files: the configuration reads them, with their format, column, delimiter and encoding",
    )
    command.add_argument(
        "--from",
        dest="model",
        metavar="FOLDER",
        help="a model of sentence-transformers, also minilm or hf://org/name: the view has the vectors of its `encode`",
    )
    command.add_argument(
        "--prompt",
        metavar="NAME",
        help="with --from: the model's prompt before each text, such as query or document; default: that of `encode`",
    )
    add_verbose(command)


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.init import template

    found: dict[str, Any] = {}
    if options.input is None:
        refuse_arguments(beam_arguments)
    else:
        set_up_stores(options, beam_arguments, options.input)
        from layerbeam.pipeline.init.inspect_input import inspect_input

        inspected = inspect_input(options.input, template.output_path(options.config))
        found = {"settings": inspected.settings, "reads": inspected.reads}
        for note in inspected.notes:
            echo(note)
    model = None
    if options.model is None and options.prompt is not None:
        raise UsageError("--prompt: names a prompt of the model that --from gives; add --from FOLDER")
    if options.model is not None:
        from layerbeam.transforms.encoders import EncoderError
        from layerbeam.transforms.encoders.recipe import read_model

        try:
            model = read_model(options.model, options.prompt)
        except EncoderError as error:
            raise UsageError(str(error)) from error
        if model.is_plain:
            echo(f"{options.model}: has no modules.json: a plain encoder, whose tokens sentence-transformers averages")
        used = ("", model.encoder.get("prompt"), model.encoder.get("query_prompt"))
        unused = [name for name, text in model.prompts.items() if text not in used]
        if unused:
            echo(f"{options.model}: has more prompts, which --prompt NAME chooses: {', '.join(unused)}")
    template.write(options.config, model, **found)
    following = f"{command_name()} run {shlex.quote(options.config)}"
    echo(f"{options.config}: written; it reads {found.get('reads', template.INPUT)}. Next: {following}")
    return DONE
