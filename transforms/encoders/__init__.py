"""Encoders: fetched, opened, and run. One module per source format (`formats/`) and per architecture."""

from layerbeam.transforms.encoders.adapter import AdapterError, own_adapters
from layerbeam.transforms.encoders.config_file import EncoderError, shown
from layerbeam.transforms.encoders.dense import open_dense, read_dense_weights
from layerbeam.transforms.encoders.formats.tokenizer_json import load_library_tokenizer, load_normalizer
from layerbeam.transforms.encoders.memory import batch_bytes, weight_bytes
from layerbeam.transforms.encoders.onednn import int8_problem
from layerbeam.transforms.encoders.open import ENGINES, load_encoder, load_vocabulary, load_weights, open_encoder
from layerbeam.transforms.encoders.source import (
    CALIBRATION,
    IN_TEXT,
    MAX_CHARS_PER_WORD,
    SPECIAL_TOKENS,
    EncoderSource,
    SpecialTokens,
    sha256_of,
    vocabulary_note,
)

__all__ = [
    "CALIBRATION",
    "ENGINES",
    "IN_TEXT",
    "MAX_CHARS_PER_WORD",
    "SPECIAL_TOKENS",
    "AdapterError",
    "EncoderError",
    "EncoderSource",
    "SpecialTokens",
    "batch_bytes",
    "int8_problem",
    "load_encoder",
    "load_library_tokenizer",
    "load_normalizer",
    "load_vocabulary",
    "load_weights",
    "open_dense",
    "open_encoder",
    "own_adapters",
    "read_dense_weights",
    "sha256_of",
    "shown",
    "vocabulary_note",
    "weight_bytes",
]
