"""The command `layerbeam`, also as `python -m layerbeam`."""

from __future__ import annotations

import gc
import io
import signal
import sys


def main() -> int:
    """Run the command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character of the corpus shows its escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        from layerbeam import __version__
        from layerbeam.pipeline.cli.main import main as run_command

        return run_command(version=__version__)
    except KeyboardInterrupt:
        print("layerbeam: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        # At its end, Python would look for garbage in all that TensorFlow and Beam are made of, for a second. A stream
        # of gRPC found there takes a lock, and waits forever if a thread of gRPC ended while it held that lock.
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
