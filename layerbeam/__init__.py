"""layerbeam: the vectors inside BERT, for whole corpora, on Apache Beam."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.reader import Run
    from layerbeam.pipeline.ptransform import EmbedText

__all__ = ["EmbedText", "__version__", "open_run"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`EmbedText`, imported on first use: it needs Beam."""
    if name != "EmbedText":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _quiet_import():
        from layerbeam.pipeline.ptransform import EmbedText
    return EmbedText


def open_run(path: str | os.PathLike[str], *, allow_incomplete: bool = False) -> Run:
    """The run in an output folder, on any Beam file system, opened for reading: `views`, `view(name)`, `manifest`.

    `allow_incomplete` also opens a run that ended without `_SUCCESS` because files were skipped or too many records
    were rejected (exit status 3). Raises FileNotFoundError if the folder holds no run, and ValueError if the run has
    not ended, is incomplete or is damaged.
    """
    with _quiet_import():
        from layerbeam.pipeline.dataset import reader
    return reader.open_run(path, allow_incomplete=allow_incomplete)


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Hides the warning about an optional Google client that Beam logs on import."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
