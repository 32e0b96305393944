"""Beam's worker in a process of its own, started by `--processes`. It never outlives the process that started it."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import threading
import time

from layerbeam.pipeline.console import python_command, quiet
from layerbeam.transforms.hardware import import_tensorflow

_POLL_INTERVAL_SECONDS = 0.2


def worker_command(*, verbose: bool) -> str:
    """The command that starts a worker of this process."""
    return shell_command(__name__, str(os.getpid()), verbose=verbose)


def shell_command(module: str, argument: str, *, verbose: bool) -> str:
    """The command that calls `main` of this module in a process that no signal ends but SIGKILL."""
    command = [*python_command(f"from {module} import main; main()"), argument] + ["--verbose"] * verbose
    # Ctrl-C reaches every process at the terminal, SIGTERM every process of a service: the driver decides. Set here,
    # because Python would print a traceback while it starts. `exec`: without a shell process in between.
    return f"trap '' INT TERM; exec {shlex.join(command)}"


def main() -> None:
    """Work for the process given as the first argument until it reports the end of the pipeline, or dies."""
    driver, verbose = int(sys.argv[1]), "--verbose" in sys.argv
    threading.Thread(target=_end_with, args=(driver,), name="end with driver", daemon=True).start()
    logging.getLogger().addHandler(logging.NullHandler())  # logs go to the driver, not to the terminal
    if not verbose:
        import_tensorflow()  # before Beam logs INFO: after that, the import would not be silent
    from apache_beam.runners.worker import sdk_worker_main

    with quiet(verbose):  # Beam prints that the driver no longer listens, after the driver's last message
        sdk_worker_main.main([])


def _end_with(driver: int) -> None:
    """End this process as soon as the driver is dead: what it writes later could disturb the next run."""
    while os.getppid() == driver:  # not a signal to it, which a dead process takes until its parent asks for its status
        time.sleep(_POLL_INTERVAL_SECONDS)
    os._exit(1)
