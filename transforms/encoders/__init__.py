"""Encoders: fetched, opened, and run. One module per source format (`formats/`) and per architecture."""

from layerbeam.transforms.encoders.adapter import AdapterError, own_adapters
from layerbeam.transforms.encoders.config_file import EncoderError
from layerbeam.transforms.encoders.dense import open_dense, read_dense_weights
from layerbeam.transforms.encoders.formats.tokenizer_json import load_library_tokenizer, load_normalizer
from layerbeam.transforms.encoders.open import ENGINES, load_encoder, load_vocabulary, load_weights, open_encoder
from layerbeam.transforms.encoders.source import EncoderSource, vocabulary_note

__all__ = [
    "ENGINES",
    "AdapterError",
    "EncoderError",
    "EncoderSource",
    "load_encoder",
    "load_library_tokenizer",
    "load_normalizer",
    "load_vocabulary",
    "load_weights",
    "open_dense",
    "open_encoder",
    "own_adapters",
    "read_dense_weights",
    "vocabulary_note",
]
