"""layerbeam: the vectors inside BERT, for whole corpora, on Apache Beam."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path

__version__ = "0.1.0"


def main() -> int:
    """The command `layerbeam`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character of the corpus shows its escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run()
    except KeyboardInterrupt:
        print("layerbeam: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run() -> int:
    import pipeline
    import transforms

    here = Path(__file__).resolve().parent
    for package in (pipeline, transforms):
        found = Path(package.__file__ or "").resolve().parent
        if found.parent != here:
            print(
                f"layerbeam: `import {package.__name__}` finds {found}, which is not layerbeam's; another project of "
                "that name comes first on Python's path: run layerbeam in an environment or a folder without it",
                file=sys.stderr,
            )
            return 2
    from pipeline.cli import main as run_command

    return run_command(version=__version__)


if __name__ == "__main__":
    sys.exit(main())
