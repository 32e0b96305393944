"""What `--processes` starts: Beam's worker in a process of its own, which never outlives the one that started it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time

_POLL_INTERVAL_SECONDS = 0.2


def main(driver: int) -> None:
    """Work for the process `driver` until it says that all is done, or is gone."""
    # Ctrl-C goes to all at the terminal, SIGTERM to all of a service: the driver decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(driver,), name="end with driver", daemon=True).start()
    logging.getLogger().addHandler(logging.NullHandler())  # all goes to the driver, nothing to the terminal
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main([])


def _end_with(driver: int) -> None:
    """End this process at once when the driver is no more: what it writes might come in the way of the next run."""
    while True:
        try:
            os.kill(driver, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(_POLL_INTERVAL_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
