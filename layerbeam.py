"""layerbeam: the vectors inside BERT, for whole corpora, on Apache Beam."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.reader import Run

__all__ = ["__version__", "open_run"]
__version__ = "0.1.0"


def open_run(path: str | os.PathLike[str], *, allow_incomplete: bool = False) -> Run:
    """The run in an output folder, on any Beam file system, read back: its `views`, `view(name)`, `manifest`.

    `allow_incomplete`: also one that ended without `_SUCCESS` because files were left out or too many records were
    rejected (exit status 3). FileNotFoundError where there is no run; ValueError where it has not ended, is not
    complete, or is damaged.
    """
    foreign = _foreign_package()
    if foreign is not None:
        raise ImportError(foreign)
    root = logging.getLogger()
    level = root.level
    # Beam warns of its optional Google client when it is imported.
    root.setLevel(logging.ERROR)
    try:
        from pipeline import reader
    finally:
        root.setLevel(level)
    return reader.open_run(path, allow_incomplete=allow_incomplete)


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


def _foreign_package() -> str | None:
    """What is wrong where another project's `pipeline` or `transforms` comes first on Python's path."""
    import pipeline
    import transforms

    here = Path(__file__).resolve().parent
    for package in (pipeline, transforms):
        found = Path(package.__file__ or "").resolve().parent
        if found.parent != here:
            return (
                f"`import {package.__name__}` finds {found}, which is not layerbeam's; another project of that name "
                "comes first on Python's path: run layerbeam in an environment or a folder without it"
            )
    return None


def _run() -> int:
    foreign = _foreign_package()
    if foreign is not None:
        print(f"layerbeam: {foreign}", file=sys.stderr)
        return 2
    from pipeline.cli import main as run_command

    return run_command(version=__version__)


if __name__ == "__main__":
    sys.exit(main())
