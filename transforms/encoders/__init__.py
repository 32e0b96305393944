"""Encoders: fetched, opened, and run. One module per source format (`formats/`) and per architecture (`bert`)."""

from layerbeam.transforms.encoders.open import ENGINES, load_encoder, load_weights, open_encoder
from layerbeam.transforms.encoders.source import EncoderError, EncoderSource, vocabulary_note

__all__ = [
    "ENGINES",
    "EncoderError",
    "EncoderSource",
    "load_encoder",
    "load_weights",
    "open_encoder",
    "vocabulary_note",
]
