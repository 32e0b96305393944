"""`layerbeam encoder HANDLE`: what an encoder is, before a run depends on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerbeam.pipeline.cli.console import plain_console, size_text
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.encoders import EncoderError, open_encoder
from layerbeam.transforms.encoders.bert import weight_shapes

_GELU = {"gelu": "erf (exact)", "gelu_tanh": "tanh approximation"}


def describe_encoder(handle: str) -> dict[str, Any]:
    """What there is to say of an encoder, as plain values. UsageError where it cannot be used."""
    try:
        source = open_encoder(handle)
    except EncoderError as error:
        raise UsageError(str(error)) from error
    parameters = None
    if source.config is not None:
        shapes = weight_shapes(source.config, pooler=source.has_pooler)
        parameters = sum(math.prod(shape) for shape in shapes.values())
    folder = Path(source.folder)
    licences = sorted(path.name for path in folder.iterdir() if path.name.upper().startswith(("LICENSE", "LICENCE")))
    return source.describe() | {
        "layers": list(source.layers),
        "parameters": parameters,
        "folder": source.folder,
        "weight_bytes": sum(Path(file).stat().st_size for file in source.weight_files),
        "licence_files": licences,
    }


def print_encoder(what: Mapping[str, Any]) -> None:
    """To the terminal: a name and a value on each line."""
    kinds = {"huggingface": "Hugging Face", "google": "checkpoint as Google released them", "savedmodel": "SavedModel"}
    layers = what["layers"]
    lines = {
        "source": f"{kinds[what['kind']]}, {what['folder']} ({size_text(what['weight_bytes'])})",
        "engine": f"{what['engine']}: {what['engine_because']}",
        "layers": f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else f"{layers[0]} only",
        "blocks": what["num_hidden_layers"],
        "hidden size": what["hidden_size"],
        "heads": what.get("num_attention_heads"),
        "intermediate": what.get("intermediate_size"),
        "positions": what["max_position_embeddings"],
        "segment types": what.get("type_vocab_size"),
        "vocabulary": f"{what['vocabulary_size']:,}",
        "casing": f"{'lower-casing' if what['do_lower_case'] else 'cased'} ({what['casing_from']})",
        "pooled output": "yes" if what["has_pooler"] else "no",
        "GELU": _GELU.get(what.get("hidden_act", "")),
        "layer norm": f"epsilon {what['layer_norm_eps']:g}" if "layer_norm_eps" in what else None,
        "parameters": f"{what['parameters']:,}" if what["parameters"] else None,
        "fingerprint": what["fingerprint"],
        "licence": ", ".join(what["licence_files"]) or "no file beside the weights",
    }
    console = plain_console(soft_wrap=True)
    for name, value in lines.items():
        console.print(f"{name:14} {'not to be seen' if value is None else value}")
