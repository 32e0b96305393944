"""The command `layerbeam`, also as `python -m layerbeam`."""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", sys.flags.isolated):
    sys.path.pop(0)  # the current folder, put there by `-m`: a module in it would replace one of Python's

import contextlib
import gc
import io
import os
import signal
from typing import NoReturn


def main() -> int:
    """Run the command and return its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character of the corpus shows its escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        from layerbeam import __version__
        from layerbeam.pipeline.cli.main import main as run_command
        from layerbeam.pipeline.run.signals import install_signal_handlers, interrupting_signal

        try:
            install_signal_handlers()
            return run_command(version=__version__)
        except KeyboardInterrupt as error:  # just before the command catches it, or just after
            _end(interrupting_signal(error) or signal.SIGINT)
    finally:
        # At its end, Python would look for garbage in all that TensorFlow and Beam are made of, for a second. A stream
        # of gRPC found there takes a lock, and waits forever if a thread of gRPC ended while it held that lock.
        gc.freeze()


def _end(number: int, _: object = None) -> NoReturn:
    """End the process at a signal that comes while no code of the command would catch it."""
    with contextlib.suppress(OSError):  # a closed stream
        os.write(2, b"layerbeam: interrupted\n")
    os._exit(128 + number)


def _open_missing_streams() -> None:
    """Give closed streams the null device, also to worker processes: a file would take the place of a closed one."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


if __name__ == "__main__":
    sys.exit(main())
