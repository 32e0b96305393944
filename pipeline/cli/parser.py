"""The command line: its commands and their arguments. It imports nothing heavy, so `--help` answers at once."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn, TypeAlias

from layerbeam.pipeline.errors import UsageError, did_you_mean

RUNNERS = ("local", "DataflowRunner", "FlinkRunner", "SparkRunner", "PrismRunner", "PortableRunner")
_STORE_OPTIONS = "Options of Beam's file systems may follow, for example --s3_region_name=..."
# What --verbose shows; in other commands tracebacks.
_VERBOSE = {
    **dict.fromkeys(("run", "plan", "extract-features"), "show the logs of TensorFlow and Beam, and tracebacks"),
    **dict.fromkeys(("verify", "encoder"), "show the logs of TensorFlow, and tracebacks"),
}
# What --quiet leaves, in the commands that have it.
_QUIET = {
    **dict.fromkeys(("run", "extract-features"), "print only warnings and errors; `show` has the summary"),
    "verify": "print nothing if everything agrees",
    "report": "print only errors",
}


class _Parser(argparse.ArgumentParser):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given, allow_abbrev=False)  # an option unknown here may be one of Beam's

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)$", message)
        if wrong is not None:
            commands = re.findall(r"[\w-]+", wrong[2])
            hint = did_you_mean(wrong[1], commands) or f"; there are {', '.join(commands)}"
            raise UsageError(f"{wrong[1]}: no such command{hint}")
        raise UsageError(f"{message} (see `{self.prog} --help`)")


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def make_parser(version: str) -> argparse.ArgumentParser:
    """The parser of the command line. What it parses has `own_options`: the names of the command's options."""
    parser = _Parser(prog="layerbeam", description="The vectors inside BERT, for whole corpora.")
    parser.add_argument("--version", action="version", version=f"layerbeam {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (
        _run,
        _plan,
        _show,
        _verify,
        _report,
        _search,
        _publish,
        _encoder,
        _extract_features,
        _init,
    ):
        add(commands)
    for name, command in commands.choices.items():
        amount = command.add_mutually_exclusive_group()
        amount.add_argument("-v", "--verbose", action="store_true", help=_VERBOSE.get(name, "show tracebacks"))
        if name in _QUIET:
            amount.add_argument("-q", "--quiet", action="store_true", help=_QUIET[name])
        command.set_defaults(quiet=False, own_options=tuple(command._option_string_actions))
    return parser


def _run(commands: _Commands) -> None:
    command = commands.add_parser(
        "run",
        help="run a configuration; run it again to resume or to embed what is new",
        description="Run a configuration. Run it again to resume it, or to embed what is new.",
        epilog="Any of Beam's own options may follow, for example --temp_location=... "
        "Exit status: 0 done; 1 failed; 2 wrong configuration or usage; 3 ended, but files were skipped, too many "
        "records were rejected or nothing was embedded; 4 another run is active in the folder; 130, 143 interrupted.",
    )
    _add_config(command)
    _add_workers(command)
    command.add_argument("--runner", metavar="NAME", help=", ".join(RUNNERS))
    cancels = "Ctrl-C cancels a job on another runner; without this option the job continues"
    command.add_argument("--cancel-on-interrupt", action="store_true", help=cancels)
    _add_run_options(command, prunes="rows of input files")


def _plan(commands: _Commands) -> None:
    command = commands.add_parser(
        "plan",
        help="estimate from a sample what a run will read, write and take",
        description="Read a sample of the input and estimate what a run will write and take. Writes nothing.",
        epilog=f"Exit status: the one with which a run would end, as far as the sample shows. {_STORE_OPTIONS}",
    )
    _add_config(command)
    _add_number(command, "--workers", "the number that the run will have; default: one per core")
    _add_number(command, "--machines", "on Dataflow: estimate the hours there")
    _add_number(command, "--vcpus", "of each machine; default: read from beam.machine_type, else 1")
    _add_seed(command)
    _add_json(command)


def _show(commands: _Commands) -> None:
    command = commands.add_parser(
        "show", help="show what an output folder holds, of a finished or unfinished run", epilog=_STORE_OPTIONS
    )
    command.add_argument("output", metavar="OUT", help="the output folder")
    command.add_argument(
        "--changes",
        nargs="?",
        type=_natural,
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
    _add_json(command)


def _verify(commands: _Commands) -> None:
    command = commands.add_parser(
        "verify",
        help="check a sample of rows against an independent reference implementation",
        description="Sample texts of a finished run, recompute each one individually with the reference "
        "implementation, and compare all views.",
        epilog="Exit status: 0 everything agrees; 1 failed: rows differ, are missing or are duplicates; 2 wrong usage, "
        "such as no finished run; 3 some of the input is missing or has changed and cannot be verified. "
        + _STORE_OPTIONS,
    )
    command.add_argument("output", metavar="OUT", help="the output folder")
    _add_number(command, "--sample", "texts to sample; default: 100", default=100)
    _add_seed(command)
    command.add_argument(
        "--checksums",
        action="store_true",
        help="instead: check every byte of every file against its recorded SHA-256, without encoder and input; the "
        "next run rewrites what differs",
    )
    _add_trust(command)
    _add_json(command)


def _report(commands: _Commands) -> None:
    command = commands.add_parser(
        "report",
        help="write a page about a run: lengths, rejects, layers, projections, words over the layers, neighbours",
        description="Write one self-contained HTML page about a run, finished or not.",
        epilog="Exit status: 0 done; 1 failed, or a word does not occur (the page is written); 2 wrong usage. "
        + _STORE_OPTIONS,
    )
    command.add_argument("output", metavar="OUT", help="the output folder")
    command.add_argument("--word", metavar="W", action="append", default=[], help="show it in every layer; repeatable")
    command.add_argument(
        "--text",
        metavar="T",
        type=_text,
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
    _add_number(command, "--sample", "rows to sample from each view; default: 20,000", default=20_000)
    _add_seed(command)
    command.add_argument("--to", metavar="FILE", help="write to FILE instead of OUT/report.html")
    _add_trust(command)
    _add_json(command, "print the page's figures as JSON")


def _search(commands: _Commands) -> None:
    command = commands.add_parser(
        "search",
        help="find the rows of a finished run nearest to a text, or to a row of the run",
        description="Compare a text, or a row of the run, with all rows of a view, and print the nearest: exact.",
        epilog=f"Exit status: 0 done; 1 failed; 2 wrong usage, such as no finished run. {_STORE_OPTIONS}",
    )
    command.add_argument("output", metavar="OUT", help="the output folder")
    encodes = "search for a text, in a view of texts or records; encodes it with the encoder and settings of the run"
    command.add_argument("--text", metavar="T", type=_text, action="append", default=[], help=f"{encodes}; repeatable")
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
    command.add_argument("-k", "--count", metavar="N", type=_positive, default=10, help="rows per query; default: 10")
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
    _add_trust(command)
    _add_json(command)


def _publish(commands: _Commands) -> None:
    command = commands.add_parser(
        "publish",
        help="publish a finished run as a dataset on Hugging Face's Hub, with a card",
        description="Write a dataset card, OUT/README.md, and publish the run with it on Hugging Face's Hub. Run it "
        "again to resume it, or to publish what a later run has changed. The token is that of HF_TOKEN or "
        "`hf auth login`.",
        epilog="Exit status: 0 done; 1 failed; 2 wrong usage, such as no finished run, or no permission.",
    )
    command.add_argument("output", metavar="OUT", help="the output folder, on this machine")
    command.add_argument("repository", metavar="REPOSITORY", nargs="?", help="org/name; without it, only the card")
    command.add_argument("--public", action="store_true", help="make a new dataset public; default: private")
    _add_json(command)


def _encoder(commands: _Commands) -> None:
    command = commands.add_parser(
        "encoder",
        help="list well-known encoders, or describe one: source, layers, tokenizer, fingerprint, licence",
        epilog=_STORE_OPTIONS,
    )
    command.add_argument(
        "handle", metavar="HANDLE", nargs="?", help="as encoder.handle in a configuration; without it, a list"
    )
    command.add_argument("--adapter", metavar="ADAPTER", help="as encoder.adapter in a configuration")
    _add_json(command)


def _extract_features(commands: _Commands) -> None:
    command = commands.add_parser(
        "extract-features",
        help="write a folder of documents to JSON Lines as google-research's extract_features.py does",
        description="Write <name>.jsonl for each document in a folder and its subfolders, with one line of JSON for "
        "each line of the document, as google-research's extract_features.py does. Run it again to add what is new.",
        epilog="Exit statuses as for `layerbeam run`.",
    )
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
        "max_seq_length", metavar="MAX_SEQUENCE_LENGTH", type=_positive, help="tokens, special tokens included"
    )
    command.add_argument(
        "batch_size", metavar="BATCH_SIZE", type=_positive, help="texts of full length in one batch; more if shorter"
    )
    command.add_argument("--sentences", action="store_true", help="write a line of JSON for each sentence")
    _add_workers(command)
    _add_run_options(command, prunes="output of documents")
    command.set_defaults(runner=None, cancel_on_interrupt=False)  # that of a local run


def _init(commands: _Commands) -> None:
    command = commands.add_parser(
        "init",
        help="write a configuration to start from, with every setting explained",
        description="Write a configuration to start from, with every setting explained. Never overwrites a file.",
    )
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


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.add_argument("--input", metavar="GLOB", action="append", help="replaces input.files; repeatable")
    command.add_argument("--output", metavar="PATH", help="replaces output.path")
    _add_number(command, "--limit", "replaces input.limit: read the first N records only")
    command.add_argument(
        "--set",
        metavar="K=V",
        action="append",
        default=[],
        help="any setting: encoder.max_seq_length=64; repeatable",
    )


def _add_workers(command: argparse.ArgumentParser) -> None:
    _add_number(command, "--workers", "blocks processed in parallel; default: one per core")
    processes = "worker processes that share the workers, each with its own encoder; default: threads in one process"
    _add_number(command, "--processes", processes)


def _add_run_options(command: argparse.ArgumentParser, prunes: str) -> None:
    command.add_argument(
        "--force",
        action="store_true",
        help="start even if the disk looks too small, a field missing or the end of an earlier run unknown",
    )
    command.add_argument("--prune-missing", action="store_true", help=f"delete the {prunes} that no longer exist")
    rereads = "read all files, also those of equal size and time; only changed blocks are encoded"
    command.add_argument("--reread", action="store_true", help=rereads)
    _add_json(command, "print the closing summary as JSON")


def _add_number(command: argparse.ArgumentParser, option: str, what: str, default: int | None = None) -> None:
    command.add_argument(option, metavar="N", type=_positive, default=default, help=what)


def _add_seed(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", metavar="S", type=_natural, default=0, help="seed of the sample; default: 0")


def _add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust",
        action="store_true",
        help="open what the folder names: a SavedModel, which is a program, an encoder at an address, a function that "
        "splits sentences; for folders of your own and of people you trust",
    )


def _add_json(command: argparse.ArgumentParser, what: str = "print JSON") -> None:
    command.add_argument("--json", action="store_true", help=what)


def _text(given: str) -> str:
    """The argument, which is UTF-8."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{given!r} is not UTF-8") from None
    return given


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 up")
    return int(text)


def _positive(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _layers(text: str) -> list[int]:
    text = text.strip()
    if not re.fullmatch(r"-?\d+(\s*,\s*-?\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers such as -1,-2,-3,-4")
    return [int(layer) for layer in text.split(",")]


def escape_negative_layers(arguments: list[str]) -> list[str]:
    """The arguments with a space before `-1,-2`, which argparse would otherwise take for an option."""
    return [f" {argument}" if re.match(r"-\d", argument) else argument for argument in arguments]
