"""layerbeam: the vectors inside BERT, for whole corpora, on Apache Beam.

`encode` embeds a list of texts, `run` runs a configuration, `open_run` reads the output of a run: see docs/python.md.
`EmbedText`, `EmbedRows`, `ModelHandler` and `Embeddings` embed the texts of another Beam pipeline: see docs/in_beam.md.
The stages of a run are transforms that can be recombined:
`FindFiles`, `SliceFiles`, `ReadBlocks`, `TokenizeBlocks`, `EncodeBlocks`, `WriteBlocks`. See docs/custom_pipelines.md.
"""

TYPE_CHECKING = False  # without an import: `python -m layerbeam` looks for modules in the current folder until __main__
if TYPE_CHECKING:
    from layerbeam.pipeline.cli.run_function import run
    from layerbeam.pipeline.dataset.reader import open_run
    from layerbeam.pipeline.embed.embed_rows import EmbedRows
    from layerbeam.pipeline.embed.embed_text import EmbedText
    from layerbeam.pipeline.embed.embeddings import Embeddings
    from layerbeam.pipeline.embed.encode import encode
    from layerbeam.pipeline.embed.model_handler import ModelHandler
    from layerbeam.transforms.embedder import TextError
    from layerbeam.transforms.encode import EncodeBlocks
    from layerbeam.transforms.encoders import EncoderSource, load_encoder, open_encoder
    from layerbeam.transforms.flow.blocks import Slice, TextBlock, TokenBlock, VectorBlock
    from layerbeam.transforms.flow.commits import Commit, InputFile
    from layerbeam.transforms.hardware import Hardware
    from layerbeam.transforms.parts.part_format import Output
    from layerbeam.transforms.read import ReadBlocks
    from layerbeam.transforms.settings import BlockLimits, EncodeSettings, RecordFormat, SequenceSettings
    from layerbeam.transforms.slice import FindFiles, SliceFiles
    from layerbeam.transforms.tokenize import TokenizeBlocks
    from layerbeam.transforms.tokenize.wordpiece import WordPiece
    from layerbeam.transforms.views.columns import make_table
    from layerbeam.transforms.views.view import ViewSpec
    from layerbeam.transforms.write import WriteBlocks

__all__ = [
    "BlockLimits",
    "Commit",
    "EmbedRows",
    "EmbedText",
    "Embeddings",
    "EncodeBlocks",
    "EncodeSettings",
    "EncoderSource",
    "FindFiles",
    "Hardware",
    "InputFile",
    "ModelHandler",
    "Output",
    "ReadBlocks",
    "RecordFormat",
    "SequenceSettings",
    "Slice",
    "SliceFiles",
    "TextBlock",
    "TextError",
    "TokenBlock",
    "TokenizeBlocks",
    "VectorBlock",
    "ViewSpec",
    "WordPiece",
    "WriteBlocks",
    "__version__",
    "encode",
    "load_encoder",
    "make_table",
    "open_encoder",
    "open_run",
    "run",
]
__version__ = "0.1.0"

# Imported on first use, because they need Beam, NumPy or Arrow.
_MODULES = {
    "pipeline.cli.run_function": "run",
    "pipeline.dataset.reader": "open_run",
    "pipeline.embed.encode": "encode",
    "pipeline.embed.embed_rows": "EmbedRows",
    "pipeline.embed.embed_text": "EmbedText",
    "pipeline.embed.embeddings": "Embeddings",
    "pipeline.embed.model_handler": "ModelHandler",
    "transforms.flow.blocks": "Slice TextBlock TokenBlock VectorBlock",
    "transforms.flow.commits": "Commit InputFile",
    "transforms.encode": "EncodeBlocks",
    "transforms.encoders": "EncoderSource load_encoder open_encoder",
    "transforms.hardware": "Hardware",
    "transforms.parts.part_format": "Output",
    "transforms.read": "ReadBlocks",
    "transforms.settings": "BlockLimits EncodeSettings RecordFormat SequenceSettings",
    "transforms.slice": "FindFiles SliceFiles",
    "transforms.tokenize": "TokenizeBlocks",
    "transforms.tokenize.wordpiece": "WordPiece",
    "transforms.views.columns": "make_table",
    "transforms.embedder": "TextError",
    "transforms.views.view": "ViewSpec",
    "transforms.write": "WriteBlocks",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


if not TYPE_CHECKING:  # type checkers would take any name for an attribute

    def __getattr__(name: str) -> object:
        import importlib
        import logging

        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        root = logging.getLogger()
        level = root.level
        root.setLevel(logging.ERROR)  # on import, Beam logs a warning about an optional Google client
        try:
            module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
        finally:
            root.setLevel(level)
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
