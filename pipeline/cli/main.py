"""The command `layerbeam`: its errors, and what it exits with. What takes seconds is imported where it is needed."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Sequence

from layerbeam.pipeline.cli.parser import escape_negative_layers, make_parser
from layerbeam.pipeline.commands.results import BUSY, FAILED, USAGE
from layerbeam.pipeline.console import echo_error, hide_status, only_main_thread_prints
from layerbeam.pipeline.errors import BusyError, UsageError, root_cause
from layerbeam.pipeline.run.signals import interrupting_signal


def main(arguments: Sequence[str] | None = None, *, version: str) -> int:
    """Run the command and return its exit status; `layerbeam run --help` lists them."""
    began = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        make_parser(version).print_help(sys.stderr)
        return USAGE
    verbose = "-v" in given or "--verbose" in given
    with contextlib.nullcontext() if verbose else only_main_thread_prints():
        try:
            escaped = escape_negative_layers(given) if given[:1] == ["extract-features"] else given
            options, beam_arguments = make_parser(version).parse_known_args(escaped)
            options.began = began
            quiet_logs(options.verbose)
            with hide_status(options.quiet):
                status: int = options.execute(options, beam_arguments)
                return status
        except BaseException as error:
            number = interrupting_signal(error)
            if number is not None:
                echo_error((isinstance(error, KeyboardInterrupt) and str(error)) or "interrupted")
                return 128 + number
            if isinstance(error, UsageError | BusyError):
                echo_error(str(error))
                return BUSY if isinstance(error, BusyError) else USAGE
            if verbose or not isinstance(error, Exception):
                raise
            echo_error(f"failed: {root_cause(error)}")
            if options.command in ("run", "extract-features"):
                echo_error("completed blocks are kept; rerun the same command to resume (-v shows the whole error)")
            else:
                echo_error("-v shows the whole error")
            return FAILED


def quiet_logs(verbose: bool) -> None:
    """Hide the logs of TensorFlow and Beam unless `verbose`; layerbeam prints what a person needs."""
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, format="%(name)s: %(message)s")
