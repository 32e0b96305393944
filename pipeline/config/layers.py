"""The views of a configuration with its encoder: absolute layers, forms to keep; and whether the two fit together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from layerbeam.pipeline.config.schema import EmbedConfig
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms import storage
from layerbeam.transforms.encoders import EncoderError, EncoderSource, open_encoder
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.views import View, ViewSettings


def open_for(config: EmbedConfig) -> EncoderSource:
    """The configuration's encoder; only its small files are read. UsageError if the two do not fit."""
    settings = config.encoder
    try:
        encoder = open_encoder(settings.handle, do_lower_case=settings.do_lower_case, engine=settings.engine)
    except EncoderError as error:
        raise UsageError(f"encoder.handle: {error}") from error
    if encoder.engine == "savedmodel":
        for setting, only in (("compute_dtype", "float32"), ("xla", False)):
            if getattr(settings, setting) != only:
                raise UsageError(
                    f"encoder.{setting}: engine savedmodel runs {settings.handle} as it was saved "
                    f"({encoder.engine_because}); remove `{setting}`, or set engine: native for a plain BERT"
                )
    positions, buckets = encoder.max_position_embeddings, settings.length_buckets
    if positions is not None and settings.max_seq_length > positions:
        raise UsageError(
            f"encoder.max_seq_length: is {settings.max_seq_length}; {settings.handle} has {positions} positions, "
            f"so at most {positions}"
        )
    if positions is not None and buckets and buckets[-1] > positions:
        raise UsageError(
            f"encoder.length_buckets: ends with {buckets[-1]}; {settings.handle} has {positions} positions"
        )
    for name, settings_of_view in config.views.items():
        view = _with_layers(name, settings_of_view, encoder)
        if view.truncate_dim is not None and view.truncate_dim > view.full_width:
            raise UsageError(
                f"views.{name}.truncate_dim: is {view.truncate_dim}; the vectors have {view.full_width} dimensions"
            )
    return encoder


def resolve_views(
    views: Mapping[str, ViewSettings], encoder: EncoderSource, fields: Iterable[tuple[str, str]] = ()
) -> tuple[View, ...]:
    """The views with nothing left open. `fields`: name and type of the columns copied from the input."""
    return tuple(
        dataclasses.replace(
            _with_layers(name, settings, encoder),
            keep_words=_forms_to_keep(name, settings, encoder.do_lower_case),
            fields=tuple(fields),
        )
        for name, settings in views.items()
    )


def _with_layers(name: str, settings: ViewSettings, encoder: EncoderSource) -> View:
    """The view with absolute layers, none for the pooler. UsageError for layers that the encoder does not have."""
    pooler = settings.uses_pooler
    layers = "all" if settings.layers == "all" else [] if pooler else settings.layers or []
    try:
        expanded = expand_layers(layers, encoder.num_hidden_layers, settings.layer_numbering)
    except ValueError as error:
        raise UsageError(f"views.{name}.layers: {error}") from error
    unsupported_reason = encoder.unsupported_reason(tuple(expanded), pooler=pooler)
    if unsupported_reason is not None:
        raise UsageError(f"views.{name}.{'pooling' if pooler else 'layers'}: {encoder.handle}: {unsupported_reason}")
    resolved = {"layers": tuple(expanded), "given_layers": tuple(expanded.values()), "keep_words": None}
    return View(**vars(settings) | resolved, name=name, hidden_size=encoder.hidden_size)


def expand_layers(
    layers: Sequence[int | str] | Literal["all"], num_layers: int, layer_numbering: str = "hidden_states"
) -> dict[int, int]:
    """{absolute number: the number with the sign that it was written with} of each layer, in the order given.

    `num_layers` is L; `layer_numbering` as in `ViewSettings`. ValueError for a layer that the encoder does not have or
    that occurs twice.

    >>> expand_layers([-1, "0..2"], 6)
    {6: -1, 0: 0, 1: 1, 2: 2}
    >>> list(expand_layers("all", 2))
    [0, 1, 2]
    >>> expand_layers([-1, 0], 2, "extract_features")
    {2: -1, 1: 0}
    """
    first_layer = 1 if layer_numbering == "extract_features" else 0
    expanded: dict[int, int] = {}
    for item in [f"0..{num_layers - first_layer}"] if layers == "all" else layers:
        ends = [_absolute(int(end), num_layers, first_layer) for end in str(item).split("..")]
        step = 1 if ends[-1] >= ends[0] else -1
        for layer in range(ends[0], ends[-1] + step, step):
            from_first, from_last = layer - first_layer, layer - num_layers - 1
            if layer in expanded:
                raise ValueError(f"layer {from_first} occurs twice ({from_first} and {from_last} are the same)")
            expanded[layer] = from_last if str(item).startswith("-") else from_first
    return expanded


def _absolute(layer: int, num_layers: int, first_layer: int) -> int:
    last = num_layers - first_layer
    if not -last - 1 <= layer <= last:
        raise ValueError(
            f"there is no layer {layer}: the encoder has {num_layers} Transformer blocks, so layers 0 to {last} "
            f"or -{last + 1} to -1"
        )
    return first_layer + layer if layer >= 0 else num_layers + 1 + layer


def _forms_to_keep(name: str, view: ViewSettings, do_lower_case: bool) -> tuple[str, ...] | None:
    """The forms of `keep_words`, a list or a file with one per line. UsageError for a form of several words."""
    if view.keep_words is None:
        return None
    where, given = f"views.{name}.keep_words", view.keep_words
    if isinstance(given, str):
        try:
            given = storage.read_bytes(given).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = storage.reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"{where}: {given}: cannot be read ({why})") from error
    forms = tuple(dict.fromkeys(form.strip() for form in given if form.strip()))
    if not forms:
        raise UsageError(f"{where}: has no forms; name at least one, or remove it")
    reference = ReferenceWordPiece([], do_lower_case)
    for form in forms:
        words = form.split() if view.words == "whitespace" else reference.words(form)
        if len(words) > 1:
            hint = "" if view.words == "whitespace" or " " in form else ", or use level word and words: whitespace"
            raise UsageError(
                f"{where}: {form!r} is several words ({', '.join(words)}) and would never match; name one of them{hint}"
            )
    return forms
