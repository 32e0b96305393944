"""`layerbeam extract-features`."""

from __future__ import annotations

import argparse
import re

from layerbeam.pipeline.commands.arguments import positive
from layerbeam.pipeline.commands.results import DONE, INCOMPLETE
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.run.command import add_run_options, add_workers, run_config
from layerbeam.pipeline.show.command import print_summary

HELP = "write a folder of documents to JSON Lines as google-research's extract_features.py does"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Write <name>.jsonl for each document in a folder and its subfolders, with one line of JSON for each line of "
        "the document, as google-research's extract_features.py does. Run it again to add what is new."
    )
    command.epilog = "Exit statuses as for `layerbeam run`."
    command.add_argument("input_folder", metavar="INPUT_FOLDER", help="documents of plain text, also .gz, .bz2, .zst")
    command.add_argument("output_folder", metavar="OUTPUT_FOLDER", help="created if it does not exist")
    command.add_argument(
        "layers",
        metavar="LAYERS",
        type=_layers,
        help="such as -1,-2,-3,-4; -1 is the last block, 0 the first (as in extract_features.py, not as in `run`)",
    )
    command.add_argument("model", metavar="BERT_MODEL_DIR", help="as encoder.handle in a configuration")
    command.add_argument(
        "max_seq_length", metavar="MAX_SEQUENCE_LENGTH", type=positive, help="tokens, special tokens included"
    )
    command.add_argument(
        "batch_size", metavar="BATCH_SIZE", type=positive, help="texts of full length in one batch; more if shorter"
    )
    command.add_argument("--sentences", action="store_true", help="write a line of JSON for each sentence")
    add_workers(command)
    add_run_options(command, prunes="output of documents")
    command.set_defaults(runner=None, cancel_on_interrupt=False)  # that of a local run


def _layers(text: str) -> list[int]:
    text = text.strip()
    if not re.fullmatch(r"-?\d+(\s*,\s*-?\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers such as -1,-2,-3,-4")
    return [int(layer) for layer in text.split(",")]


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.config import load
    from layerbeam.pipeline.extract_features import documents
    from layerbeam.pipeline.output.lock import only_writer

    folder = options.output_folder
    settings = documents.settings(
        options.input_folder,
        folder,
        layers=options.layers,
        handle=options.model,
        max_seq_length=options.max_seq_length,
        batch_size=options.batch_size,
        sentences=options.sentences,
    )
    try:
        checked = load.check(settings, source="extract-features")
        documents.check_folders(options.input_folder, folder)
        ended = run_config(checked, options, beam_arguments, extra_bytes_ratio=documents.EXTRA_BYTES_RATIO)
    except UsageError as error:
        message = str(error)
        for setting, argument in documents.ARGUMENTS.items():
            message = message.replace(f"{setting}: ", f"{argument}: ")
        raise UsageError(message) from None
    own = documents.own_folder(folder)
    with only_writer(own):
        assembled = documents.assemble(folder, prune_missing=options.prune_missing)
    print_summary(options, own, speed=ended.did_work, documents=assembled)
    if not (options.json or options.quiet):
        counts = ", ".join(f"{len(names):,} {what}" for what, names in assembled.items() if names)
        print(f"{folder}: documents: {counts or 'none'}")
    return DONE if ended else INCOMPLETE
