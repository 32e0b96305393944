"""The normalizer of the run's tokenizer, kept in its folder, so that words can be compared without the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.errors import OutputError
from layerbeam.transforms import storage
from layerbeam.transforms.encoders import EncoderSource
from layerbeam.transforms.flow import layout
from layerbeam.transforms.tokenize.comparison import WordComparison


def keep_normalizer(output_path: str, encoder: EncoderSource) -> None:
    """Write it, unless the tokenizer has none, or the folder has it. OSError if the folder cannot be written."""
    path, content = storage.join(output_path, layout.NORMALIZER), encoder.normalizer.encode("ascii")
    if content and storage.read_if_exists(path) != content:
        with storage.write_atomically(path) as file:
            file.write(content)


def load_comparison(output_path: str, encoder: Mapping[str, Any]) -> WordComparison:
    """The comparison of words in the folder of a run, whose manifest has this encoder. OutputError if it is damaged."""
    path = storage.join(output_path, layout.NORMALIZER)
    data = storage.read_if_exists(path) if encoder.get("tokenizer") == "tokenizers" else None
    try:
        return WordComparison(encoder, None if data is None else storage.parse_json(data))
    except ImportError:
        raise OutputError(
            f"{output_path}: its words are compared by the package tokenizers, which is not installed; run: "
            f"{storage.install_command('hf')}"
        ) from None
    except ValueError as error:
        raise OutputError(f"{path}: {error}; run the configuration again to rewrite it") from error
