"""The arguments that several commands have, and the types of their values."""

from __future__ import annotations

import argparse

from layerbeam.pipeline.errors import UsageError

STORE_OPTIONS = "Options of Beam's file systems may follow, for example --s3_region_name=..."


def add_verbose(command: argparse.ArgumentParser, shows: str = "tracebacks", *, quiet: str = "") -> None:
    """Add --verbose, and --quiet if there is something that it leaves."""
    amount = command.add_mutually_exclusive_group()
    amount.add_argument("-v", "--verbose", action="store_true", help=f"show {shows}")
    if quiet:
        amount.add_argument("-q", "--quiet", action="store_true", help=quiet)


def add_output(command: argparse.ArgumentParser, what: str = "the output folder") -> None:
    command.add_argument("output", metavar="OUT", help=what)


def add_outputs(command: argparse.ArgumentParser) -> None:
    what = "the output folder; several, or a glob in quotes, are read as one, with a column `folder`"
    command.add_argument("output", metavar="OUT", nargs="+", help=what)


def one_or_all(outputs: list[str]) -> str | list[str]:
    """The folder, or the folders, as `open_run` takes them."""
    return outputs[0] if len(outputs) == 1 else outputs


def add_number(command: argparse.ArgumentParser, option: str, what: str, default: int | None = None) -> None:
    command.add_argument(option, metavar="N", type=positive, default=default, help=what)


def add_seed(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", metavar="S", type=natural, default=0, help="seed of the sample; default: 0")


def add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust",
        action="store_true",
        help="open what the folder names: a SavedModel, which is a program, an encoder at an address, a function that "
        "splits sentences; for folders of your own and of people you trust",
    )


def add_json(command: argparse.ArgumentParser, what: str = "print JSON") -> None:
    command.add_argument("--json", action="store_true", help=what)


def text(given: str) -> str:
    """The argument, which is UTF-8."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{given!r} is not UTF-8") from None
    return given


def natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 up")
    return int(text)


def positive(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def refuse_arguments(arguments: list[str]) -> None:
    """Raises UsageError for arguments left over: the command takes none of Beam's options."""
    if arguments:
        raise UsageError(f"{' '.join(arguments)}: unknown here (see `layerbeam --help`)")
