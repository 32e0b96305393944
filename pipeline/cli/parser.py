"""The command line: its commands and their arguments. Nothing heavy is imported, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn, TypeAlias

from layerbeam.pipeline.errors import UsageError, did_you_mean

SHELLS = ("bash", "zsh", "fish")

# What a shell completes after arguments of these names.
PATHS = {
    "CONFIG": "FILE",
    "FILE": "FILE",
    "OUT": "DIRECTORY",
    "PATH": "DIRECTORY",
    "HANDLE": "DIRECTORY",
    "INPUT_FOLDER": "DIRECTORY",
    "OUTPUT_FOLDER": "DIRECTORY",
    "BERT_MODEL_DIR": "DIRECTORY",
}
_OPTIONS_OF_STORES = "Options of Beam's file systems may follow, for example --s3_region_name=..."


class _Parser(argparse.ArgumentParser):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given, allow_abbrev=False)  # what is unknown here may be an option of Beam's

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)$", message)
        if wrong is not None:
            commands = re.findall(r"[\w-]+", wrong[2])
            hint = did_you_mean(wrong[1], commands) or f"; there are {', '.join(commands)}"
            raise UsageError(f"{wrong[1]}: no such command{hint}")
        raise UsageError(f"{message} (see `{self.prog} --help`)")


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def make_parser(version: str) -> argparse.ArgumentParser:
    """The command line, with all that `--help` says of it. `own_options` of what it parses: the command's, by name."""
    parser = _Parser(prog="layerbeam", description="The vectors inside BERT, for whole corpora.")
    parser.add_argument("--version", action="version", version=f"layerbeam {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_run, _plan, _show, _verify, _report, _encoder, _extract_features, _init, _completion):
        add(commands)
    for command in commands.choices.values():
        command.set_defaults(own_options=tuple(command._option_string_actions))
    return parser


def _run(commands: _Commands) -> None:
    command = commands.add_parser(
        "run",
        help="run a configuration; started again, it goes on where it stopped",
        description="Run a configuration. Started again, it goes on where it stopped.",
        epilog="Any of Beam's own options may follow, for example --temp_location=... "
        "Exit status: 0 done; 1 failed; 2 wrong configuration or usage; 3 ended, but files were left out or too many "
        "records rejected; 4 another run is at work in the folder; 130, 143 interrupted.",
    )
    _add_config(command)
    _add_workers(command)
    command.add_argument(
        "--runner", metavar="NAME", help="local, DataflowRunner, FlinkRunner, SparkRunner, PrismRunner, PortableRunner"
    )
    command.add_argument("--force", action="store_true", help="start although the disk looks too small")
    command.add_argument("--prune-missing", action="store_true", help="delete the rows of input files that are gone")
    _add_json(command, "the closing summary as JSON")
    _add_verbose(command, "what TensorFlow and Beam log, and tracebacks")


def _plan(commands: _Commands) -> None:
    command = commands.add_parser(
        "plan",
        help="what a run will read, write, take and cost, from a sample, before it starts",
        description="Read a sample of the input and say what a run will write, take and cost. Nothing is written.",
        epilog=_OPTIONS_OF_STORES,
    )
    _add_config(command)
    command.add_argument(
        "--workers", metavar="N", type=_positive, help="as the run will have; default: one for each core"
    )
    command.add_argument("--machines", metavar="N", type=_positive, help="of Dataflow: say the hours there, too")
    command.add_argument(
        "--vcpus",
        metavar="N",
        type=_positive,
        help="of each machine; default: as beam.machine_type says, else 1",
    )
    command.add_argument("--price-per-hour", metavar="P", type=_price, help="of a machine: say the cost, too")
    _add_seed(command, "another sample")
    _add_json(command)
    _add_verbose(command, "what TensorFlow and Beam log, and tracebacks")


def _show(commands: _Commands) -> None:
    command = commands.add_parser(
        "show", help="what is in an output folder, of a finished run or an unfinished one", epilog=_OPTIONS_OF_STORES
    )
    command.add_argument("output", metavar="OUT", help="the output folder")
    _add_json(command)
    _add_verbose(command)


def _verify(commands: _Commands) -> None:
    command = commands.add_parser(
        "verify",
        help="compare rows of a finished run with the plain computation",
        description="Draw texts of a finished run, compute each anew, alone, by another path, and compare all views.",
        epilog="Exit status: 0 all agree; 1 failed: a difference, or rows missing or doubled; 2 wrong usage, such as "
        "no finished run there; 3 some of the input is gone or has changed, and cannot be verified. "
        + _OPTIONS_OF_STORES,
    )
    command.add_argument("output", metavar="OUT", help="the output folder")
    command.add_argument("--sample", metavar="N", type=_positive, default=100, help="texts to draw; default: 100")
    _add_seed(command, "other texts")
    command.add_argument(
        "--checksums",
        action="store_true",
        help="instead: every byte of every file against its recorded SHA-256, without encoder and input; the next run "
        "makes anew what differs",
    )
    _add_json(command)
    _add_verbose(command, "what TensorFlow logs, and tracebacks")


def _report(commands: _Commands) -> None:
    command = commands.add_parser(
        "report",
        help="a page that shows a run: lengths, rejects, layers, projections, words over the layers, neighbours",
        description="Write one HTML page that shows a run, finished or not, with everything it needs in it.",
        epilog=_OPTIONS_OF_STORES,
    )
    command.add_argument("output", metavar="OUT", help="the output folder")
    command.add_argument(
        "--word", metavar="W", action="append", default=[], help="show it in every layer; may be given again"
    )
    command.add_argument(
        "--color-by", metavar="FIELD", help="colour texts by this column, such as a kept field; default: file"
    )
    command.add_argument(
        "--sample", metavar="N", type=_positive, default=20_000, help="rows to draw of each view; default: 20,000"
    )
    _add_seed(command, "others")
    command.add_argument("--to", metavar="FILE", help="instead of OUT/report.html")
    _add_json(command, "the page's figures as JSON")
    _add_verbose(command)


def _encoder(commands: _Commands) -> None:
    command = commands.add_parser(
        "encoder", help="what an encoder is: source, layers, casing, GELU, fingerprint", epilog=_OPTIONS_OF_STORES
    )
    command.add_argument("handle", metavar="HANDLE", help="as encoder.handle in a configuration")
    _add_json(command)
    _add_verbose(command, "what TensorFlow logs, and tracebacks")


def _extract_features(commands: _Commands) -> None:
    command = commands.add_parser(
        "extract-features",
        help="a folder of documents to JSON Lines, as google-research's extract_features.py writes them",
        description="Write <name>.jsonl for each document in a folder and below it, a line of JSON for each of its "
        "lines, as google-research's extract_features.py does. Started again, it does what is new.",
        epilog="Exit statuses as of `layerbeam run`.",
    )
    command.add_argument("input_folder", metavar="INPUT_FOLDER", help="documents of plain text, also .gz, .bz2, .zst")
    command.add_argument("output_folder", metavar="OUTPUT_FOLDER", help="made where there is none")
    command.add_argument(
        "layers",
        metavar="LAYERS",
        type=_layers,
        help="such as -1,-2,-3,-4; -1 is the last block, 0 the first (as there, not as in `run`)",
    )
    command.add_argument("model", metavar="BERT_MODEL_DIR", help="as encoder.handle in a configuration")
    command.add_argument(
        "max_seq_length", metavar="MAX_SEQUENCE_LENGTH", type=_positive, help="tokens, [CLS] and [SEP] included"
    )
    command.add_argument(
        "batch_size", metavar="BATCH_SIZE", type=_positive, help="texts of full length in one batch; shorter: more"
    )
    command.add_argument("--sentences", action="store_true", help="a line of JSON for each sentence")
    _add_workers(command)
    command.add_argument("--force", action="store_true", help="start although the disk looks too small")
    command.add_argument(
        "--prune-missing", action="store_true", help="delete what was written of documents that are gone"
    )
    _add_json(command, "the closing summary as JSON")
    _add_verbose(command, "what TensorFlow and Beam log, and tracebacks")


def _init(commands: _Commands) -> None:
    command = commands.add_parser(
        "init",
        help="write a configuration to begin with, every setting explained in it",
        description="Write a configuration to begin with, every setting explained in it. Nothing is written over.",
    )
    command.add_argument(
        "config", metavar="FILE", nargs="?", default="layerbeam.yaml", help="default: layerbeam.yaml, in this folder"
    )
    _add_verbose(command)


def _completion(commands: _Commands) -> None:
    command = commands.add_parser(
        "completion",
        help="print what completes this command in a shell",
        description="Print a script that completes commands, options and paths in a shell.",
        epilog='For this session: eval "$(layerbeam completion bash)", the same in zsh; layerbeam completion fish | '
        "source. For every session put that line into ~/.bashrc, ~/.zshrc (after compinit) or "
        "~/.config/fish/config.fish.",
    )
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    _add_verbose(command)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.add_argument("--input", metavar="GLOB", action="append", help="instead of input.files; may be given again")
    command.add_argument("--output", metavar="PATH", help="instead of output.path")
    command.add_argument(
        "--set",
        metavar="K=V",
        action="append",
        default=[],
        help="any setting: encoder.max_seq_length=64; may be given again",
    )


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--workers", metavar="N", type=_positive, help="blocks in hand at once; default: one for each core"
    )
    command.add_argument(
        "--processes",
        metavar="N",
        type=_positive,
        help="worker processes that share the workers, each with an encoder of its own; default: threads in this one",
    )


def _add_seed(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--seed", metavar="S", type=_natural, default=0, help=f"another seed draws {what}; default: 0")


def _add_json(command: argparse.ArgumentParser, what: str = "as JSON") -> None:
    command.add_argument("--json", action="store_true", help=what)


def _add_verbose(command: argparse.ArgumentParser, what: str = "tracebacks") -> None:
    command.add_argument("-v", "--verbose", action="store_true", help=what)


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return int(text)


def _positive(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no price such as 0.38")
    return price


def _layers(text: str) -> list[int]:
    text = text.strip()
    if not re.fullmatch(r"-?\d+(\s*,\s*-?\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers such as -1,-2,-3,-4")
    return [int(layer) for layer in text.split(",")]


def escape_negative_layers(arguments: list[str]) -> list[str]:
    """`-1,-2` looks like an option to argparse, ` -1,-2` does not."""
    return [f" {argument}" if re.match(r"-\d", argument) else argument for argument in arguments]
