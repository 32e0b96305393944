"""Whether a configuration and its encoder fit: layers, positions, dimensions. Without Beam, so it answers at once."""

from __future__ import annotations

from typing import Literal

from layerbeam.pipeline.config.schema import Config, ViewConfig
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.encoders import EncoderError, EncoderSource, open_encoder


def open_for(config: Config) -> EncoderSource:
    """The configuration's encoder, its small files read. UsageError where the two do not fit."""
    try:
        encoder = open_encoder(
            config.encoder.handle, do_lower_case=config.encoder.do_lower_case, engine=config.encoder.engine
        )
    except EncoderError as error:
        raise UsageError(f"encoder.handle: {error}") from error
    if encoder.engine == "savedmodel":
        fixed = {"compute_dtype": "float32", "xla": False}
        for setting, only in fixed.items():
            if getattr(config.encoder, setting) != only:
                raise UsageError(
                    f"encoder.{setting}: engine savedmodel runs {config.encoder.handle} as it was saved "
                    f"({encoder.engine_because}); take `{setting}` away, or engine native where it is plain BERT"
                )
    positions = encoder.max_position_embeddings
    if positions is not None and config.encoder.max_seq_length > positions:
        raise UsageError(
            f"encoder.max_seq_length: is {config.encoder.max_seq_length}; {config.encoder.handle} has {positions} "
            f"positions, so at most {positions}"
        )
    buckets = config.encoder.length_buckets
    if positions is not None and buckets and buckets[-1] > positions:
        raise UsageError(
            f"encoder.length_buckets: ends with {buckets[-1]}; {config.encoder.handle} has {positions} positions"
        )
    for name, view in config.views.items():
        layers = resolve_layers(name, view, encoder)
        width = encoder.hidden_size * (len(layers) if view.combine == "concat" else 1)
        width *= 2 if view.pooling == "mean_max" else 1
        if view.truncate_dim is not None and view.truncate_dim > width:
            raise UsageError(f"views.{name}.truncate_dim: is {view.truncate_dim}; the vectors have {width} dimensions")
    return encoder


def resolve_layers(name: str, view: ViewConfig, encoder: EncoderSource) -> tuple[int, ...]:
    """Absolute layers of the view; none for the pooler. UsageError for what the encoder does not have."""
    pooler = view.level == "text" and view.pooling == "pooler"
    try:
        layers = (
            () if pooler else tuple(expand_layers(view.layers or [], encoder.num_hidden_layers, view.layer_numbering))
        )
    except ValueError as error:
        raise UsageError(f"views.{name}.layers: {error}") from error
    unsupported_reason = encoder.unsupported_reason(layers, pooler=pooler)
    if unsupported_reason is not None:
        raise UsageError(f"views.{name}.{'pooling' if pooler else 'layers'}: {encoder.handle}: {unsupported_reason}")
    return layers


def expand_layers(
    layers: list[int | str] | Literal["all"], num_layers: int, layer_numbering: str = "hidden_states"
) -> list[int]:
    """Absolute numbers of the layers asked for, in that order; `num_layers` is L, `layer_numbering` as in `ViewConfig`.

    ValueError for a layer that the encoder does not have or one that comes twice.

    >>> expand_layers([-1, "0..2"], 6)
    [6, 0, 1, 2]
    >>> expand_layers("all", 2)
    [0, 1, 2]
    >>> expand_layers([-1, 0], 2, "extract_features")
    [2, 1]
    """
    first_layer = 1 if layer_numbering == "extract_features" else 0
    given = [f"0..{num_layers - first_layer}"] if layers == "all" else layers
    expanded: list[int] = []
    for item in given:
        ends = [_absolute(int(end), num_layers, first_layer) for end in str(item).split("..")]
        first, last = ends[0], ends[-1]
        step = 1 if last >= first else -1
        expanded.extend(range(first, last + step, step))
    twice = {layer for layer in expanded if expanded.count(layer) > 1}
    if twice:
        layer = min(twice)
        same = f"{layer - first_layer} and {layer - num_layers - 1} are the same"
        raise ValueError(f"layer {layer - first_layer} comes twice ({same})")
    return expanded


def _absolute(layer: int, num_layers: int, first_layer: int) -> int:
    last = num_layers - first_layer
    if not -last - 1 <= layer <= last:
        raise ValueError(
            f"there is no layer {layer}: the encoder has {num_layers} Transformer blocks, so layers 0 to {last} "
            f"or -{last + 1} to -1"
        )
    return first_layer + layer if layer >= 0 else num_layers + 1 + layer


def given_layers(view: ViewConfig, encoder: EncoderSource) -> tuple[int, ...]:
    """The view's layers with the signs that they were written with, ranges expanded: as extract_features.py has it."""
    num_layers, given = encoder.num_hidden_layers, []
    for item in view.layers if isinstance(view.layers, list) else [view.layers] if view.layers else []:
        for layer in expand_layers("all" if item == "all" else [item], num_layers, view.layer_numbering):
            first_layer = 1 if view.layer_numbering == "extract_features" else 0
            given.append(layer - num_layers - 1 if str(item).startswith("-") else layer - first_layer)
    return tuple(given)
