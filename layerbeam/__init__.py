"""layerbeam: the vectors inside BERT, for whole corpora, on Apache Beam.

`open_run` reads the output of a run; `EmbedText` embeds the texts of another Beam pipeline. The stages of a run are
transforms that can be recombined: `FindFiles`, `SliceFiles`, `ReadBlocks`, `TokenizeBlocks`, `EncodeBlocks`,
`WriteBlocks`. See docs/custom_pipelines.md.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.reader import Run
    from layerbeam.pipeline.ptransform import EmbedText
    from layerbeam.transforms.blocks import Slice, TextBlock, TokenBlock, VectorBlock
    from layerbeam.transforms.columns import make_table
    from layerbeam.transforms.commits import Commit, InputFile, SkippedFile
    from layerbeam.transforms.encode import EncodeBlocks
    from layerbeam.transforms.encoders import EncoderSource, load_encoder, open_encoder
    from layerbeam.transforms.hardware import Hardware
    from layerbeam.transforms.parts.part_format import Output
    from layerbeam.transforms.read import ReadBlocks
    from layerbeam.transforms.settings import BlockLimits, EncodeSettings, RecordFormat, SequenceSettings
    from layerbeam.transforms.slice import FindFiles, SliceFiles
    from layerbeam.transforms.tokenize import TokenizeBlocks
    from layerbeam.transforms.tokenize.wordpiece import WordPiece
    from layerbeam.transforms.views import View
    from layerbeam.transforms.write import WriteBlocks

__all__ = [
    "BlockLimits",
    "Commit",
    "EmbedText",
    "EncodeBlocks",
    "EncodeSettings",
    "EncoderSource",
    "FindFiles",
    "Hardware",
    "InputFile",
    "Output",
    "ReadBlocks",
    "RecordFormat",
    "SequenceSettings",
    "SkippedFile",
    "Slice",
    "SliceFiles",
    "TextBlock",
    "TokenBlock",
    "TokenizeBlocks",
    "VectorBlock",
    "View",
    "WordPiece",
    "WriteBlocks",
    "__version__",
    "load_encoder",
    "make_table",
    "open_encoder",
    "open_run",
]
__version__ = "0.1.0"

# Imported on first use, because they need Beam, NumPy or Arrow.
_MODULES = {
    "pipeline.ptransform": "EmbedText",
    "transforms.blocks": "Slice TextBlock TokenBlock VectorBlock",
    "transforms.commits": "Commit InputFile SkippedFile",
    "transforms.encode": "EncodeBlocks",
    "transforms.encoders": "EncoderSource load_encoder open_encoder",
    "transforms.hardware": "Hardware",
    "transforms.read": "ReadBlocks",
    "transforms.settings": "BlockLimits EncodeSettings RecordFormat SequenceSettings",
    "transforms.slice": "FindFiles SliceFiles",
    "transforms.tokenize": "TokenizeBlocks",
    "transforms.tokenize.wordpiece": "WordPiece",
    "transforms.columns": "make_table",
    "transforms.views": "View",
    "transforms.write": "WriteBlocks",
    "transforms.write.block": "Output",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _quiet_import():
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open_run(path: str | os.PathLike[str], *, allow_incomplete: bool = False) -> Run:
    """The run in an output folder on any Beam file system, opened for reading: `views`, `view(name)`, `manifest`.

    Args:
        path: The output folder.
        allow_incomplete: Also open a run that ended without `_SUCCESS` because files were skipped or too many records
            were rejected (exit status 3).

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: The run has not ended, is incomplete or is damaged.
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
