"""`layerbeam verify`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from layerbeam.pipeline.commands.arguments import (
    STORE_OPTIONS,
    add_json,
    add_number,
    add_output,
    add_seed,
    add_trust,
    add_verbose,
)
from layerbeam.pipeline.commands.file_systems import announce_loading, set_up_file_systems
from layerbeam.pipeline.commands.results import DONE, FAILED, INCOMPLETE, print_result

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.integrity import FilesVerdict
    from layerbeam.pipeline.verify.verify import Verdict

HELP = "check a sample of rows against an independent reference implementation"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Sample texts of a finished run, recompute each one individually with the reference implementation, and "
        "compare all views."
    )
    command.epilog = (
        "Exit status: 0 everything agrees; 1 failed: rows differ, are missing or are duplicates; 2 wrong usage, "
        "such as no finished run; 3 some of the input is missing or has changed and cannot be verified. "
        + STORE_OPTIONS
    )
    add_output(command)
    add_number(command, "--sample", "texts to sample; default: 100", default=100)
    add_seed(command)
    command.add_argument(
        "--checksums",
        action="store_true",
        help="instead: check every byte of every file against its recorded SHA-256, without encoder and input; the "
        "next run rewrites what differs",
    )
    add_trust(command)
    add_json(command)
    add_verbose(command, "the logs of TensorFlow, and tracebacks", quiet="print nothing if everything agrees")


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    # Read when NumPy is imported. Several threads in the small products of one sequence take longer than one thread.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    announce_loading()
    set_up_file_systems(options, beam_arguments, options.output)  # also because the run's input may be in a store
    from layerbeam.pipeline.dataset.integrity import verify_files
    from layerbeam.pipeline.verify.printing import print_files_verdict, print_verdict
    from layerbeam.pipeline.verify.verify import verify

    verdict: Verdict | FilesVerdict
    printer: Callable[[Any], None]
    if options.checksums:
        verdict, printer = verify_files(options.output), print_files_verdict
    else:
        verdict = verify(options.output, sample=options.sample, seed=options.seed, trust=options.trust)
        printer = print_verdict
    print_result(options, verdict, *([] if options.quiet and verdict.result == "pass" else [printer]))
    return {"pass": DONE, "fail": FAILED, "cannot verify": INCOMPLETE}[verdict.result]
