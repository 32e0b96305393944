"""Whether a configuration and its encoder fit: layers, positions, dimensions. Without Beam, so it answers at once."""

from __future__ import annotations

from pipeline.config import Config, ViewConfig, expand_layers
from pipeline.errors import UsageError
from transforms.encoders import EncoderError, EncoderSource, open_encoder


def open_for(config: Config) -> EncoderSource:
    """The configuration's encoder, its small files read. UsageError where the two do not fit."""
    try:
        encoder = open_encoder(config.encoder.handle, do_lower_case=config.encoder.do_lower_case)
    except EncoderError as error:
        raise UsageError(f"encoder.handle: {error}") from error
    positions = encoder.config.max_position_embeddings
    if config.encoder.max_seq_length > positions:
        raise UsageError(
            f"encoder.max_seq_length: is {config.encoder.max_seq_length}; {config.encoder.handle} has {positions} "
            f"positions, so at most {positions}"
        )
    for name, view in config.views.items():
        layers = resolve_layers(name, view, encoder)
        width = encoder.config.hidden_size * (len(layers) if view.combine == "concat" else 1)
        if view.dims is not None and view.dims > width:
            raise UsageError(f"views.{name}.dims: is {view.dims}; the vectors have {width} dimensions")
    return encoder


def resolve_layers(name: str, view: ViewConfig, encoder: EncoderSource) -> tuple[int, ...]:
    """Absolute layers of the view; none for the pooler. UsageError for what the encoder does not have."""
    if view.level == "text" and view.pooling == "pooler":
        if not encoder.has_pooler:
            raise UsageError(f"views.{name}.pooling: {encoder.handle} has no pooler; take cls, mean or max")
        return ()
    try:
        return tuple(expand_layers(view.layers or [], encoder.config.num_hidden_layers))
    except ValueError as error:
        raise UsageError(f"views.{name}.layers: {error}") from error
