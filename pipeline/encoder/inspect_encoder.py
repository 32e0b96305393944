"""`layerbeam encoder HANDLE`: the properties of an encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerbeam.pipeline.console import plain_console, size_text
from layerbeam.pipeline.encoder.known_encoders import licence_of
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.encoders import EncoderError, open_encoder, own_adapters, vocabulary_note

_PACKAGE_LICENCE = "; of the package that holds the weights: MIT"
_LIBRARIES = {"tensorflow_text": "TensorFlow Text", "tokenizers": "tokenizers"}
_ACTIVATIONS = {"gelu": "GELU, erf (exact)", "gelu_tanh": "GELU, tanh approximation", "silu": "SiLU"}


def describe_encoder(handle: str, adapter: str | None = None) -> dict[str, Any]:
    """The properties of an encoder, as plain values. UsageError if it cannot be used."""
    try:
        source = open_encoder(handle, adapter=adapter)
    except EncoderError as error:
        raise UsageError(str(error)) from error
    parameters = None
    if source.architecture is not None:
        shapes = source.architecture.weight_shapes(pooler=source.has_pooler)
        stored = {source.architecture.spellings(name)[0]: shape for name, shape in shapes.items()}  # some are shared
        parameters = sum(math.prod(shape) for shape in stored.values())
    folder = Path(source.folder)
    licences = sorted(path.name for path in folder.iterdir() if path.name.upper().startswith(("LICENSE", "LICENCE")))
    known, own = licence_of(handle), own_adapters(source)
    return source.describe() | {
        "layers": list(source.layers),
        "parameters": parameters,
        "folder": source.folder,
        "weight_bytes": sum(Path(file).stat().st_size for file in source.weight_files),
        "licence_files": licences,
        "licence": f"{known}{_PACKAGE_LICENCE}" if known and handle == "minilm" else known,
        **({"own_adapters": own} if own else {}),
    }


def print_encoder(encoder: Mapping[str, Any]) -> None:
    """Print a name and a value on each line."""
    kinds = {"huggingface": "Hugging Face", "google": "checkpoint as released by Google", "savedmodel": "SavedModel"}
    layers = encoder["layers"]
    lines = {
        "source": f"{kinds[encoder['kind']]}, {encoder['folder']} ({size_text(encoder['weight_bytes'])})",
        "architecture": encoder.get("architecture"),
        "engine": f"{encoder['engine']}: {encoder['engine_because']}",
        "layers": f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else f"{layers[0]} only",
        "blocks": encoder["num_hidden_layers"],
        "hidden size": encoder["hidden_size"],
        "heads": encoder.get("num_attention_heads"),
        "intermediate": encoder.get("intermediate_size"),
        "positions": encoder["max_position_embeddings"],
        "segment types": encoder.get("type_vocab_size"),
        "vocabulary": f"{encoder['vocabulary_size']:,}",
        "tokenizer": f"{_LIBRARIES[encoder['tokenizer']]}: {encoder['tokenizer_because']}",
        "casing": f"{'lower-casing' if encoder['do_lower_case'] else 'cased'} ({encoder['casing_from']})",
        "pooled output": "yes" if encoder["has_pooler"] else "no",
        "activation": _ACTIVATIONS.get(encoder.get("hidden_act", "")),
        "layer norm": f"epsilon {encoder['layer_norm_eps']:g}" if "layer_norm_eps" in encoder else None,
        "parameters": f"{encoder['parameters']:,}" if encoder["parameters"] else None,
        "fingerprint": encoder["fingerprint"],
        "licence": ", ".join(encoder["licence_files"]) or encoder["licence"] or "no file next to the weights",
    }
    if "own_adapters" in encoder:
        lines["adapters"] = f"{', '.join(encoder['own_adapters'])} (encoder.adapter names one)"
    if "adapter" in encoder:
        lines["adapter"] = f"{encoder['adapter']}: LoRA of {encoder['adapted_products']} products"
    console = plain_console(soft_wrap=True)
    for name, value in lines.items():
        console.print(f"{name:14} {'unknown' if value is None else value}")
    note = vocabulary_note(encoder)
    if note is not None:
        console.print(f"{'note':14} {note}")
