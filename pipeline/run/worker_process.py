"""Beam's worker in a process of its own, started by `--processes`. It never outlives the process that started it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time

from layerbeam.pipeline.run.signals import quiet
from layerbeam.transforms.hardware import import_tensorflow

_POLL_INTERVAL_SECONDS = 0.2


def main(driver: int, *, verbose: bool) -> None:
    """Work for the process `driver` until it reports the end of the pipeline, or dies."""
    # Ctrl-C reaches every process at the terminal, SIGTERM every process of a service: the driver decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(driver,), name="end with driver", daemon=True).start()
    logging.getLogger().addHandler(logging.NullHandler())  # logs go to the driver, not to the terminal
    if not verbose:
        import_tensorflow()  # before Beam logs INFO: after that, the import would not be silent
    from apache_beam.runners.worker import sdk_worker_main

    with quiet(verbose):  # Beam prints that the driver no longer listens, after the driver's last message
        sdk_worker_main.main([])


def _end_with(driver: int) -> None:
    """End this process as soon as the driver is dead: what it writes later could disturb the next run."""
    while True:
        try:
            os.kill(driver, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(_POLL_INTERVAL_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), verbose="--verbose" in sys.argv)
