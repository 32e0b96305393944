"""`layerbeam init --from`: the settings that give the vectors of sentence-transformers for a model's folder.

Those of `encode`, or of `encode_document` for a late interaction model. It reads a folder's JSON files as
sentence-transformers 6.2 does. A model with other vectors is refused.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from layerbeam.transforms.encoders.config_file import ELSEWHERE, EncoderError, JsonFile, shown
from layerbeam.transforms.encoders.fetch.locate import locate
from layerbeam.transforms.encoders.formats.huggingface import TRANSFORMER_FILES
from layerbeam.transforms.encoders.open import open_encoder
from layerbeam.transforms.encoders.recipe import late_interaction
from layerbeam.transforms.encoders.recipe.model_folder import (
    Model,
    check_dense,
    check_kinds,
    check_side,
    cut_length,
    list_modules,
    read_transformer,
    text_view,
)
from layerbeam.transforms.encoders.recipe.prompts import check_marker, read_prompt

# Their poolings, concatenated if there are several, and ours.
_POOLINGS = {
    ("cls",): "cls",
    ("max",): "max",
    ("mean",): "mean",
    ("mean", "max"): "mean_max",
    ("mean_sqrt_len_tokens",): "mean_sqrt_len",
    ("weightedmean",): "weighted_mean",
    ("lasttoken",): "last",
}
# The fields of older files, in the order of concatenation.
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLING_FIELDS = ("embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt", *_OLD_POOLINGS)
PROMPTS = "config_sentence_transformers.json"
_ORDER = "Transformer + Pooling, then any number of Dense, then Normalize or nothing"


def read_model(handle: str, prompt_name: str | None = None) -> Model:
    """The settings for a local folder, `minilm` or hf://org/name. EncoderError if layerbeam has other vectors.

    `prompt_name`: one of the model's prompts, instead of the one that `encode` takes by default.
    """
    folder = _locate(handle)
    model = dataclasses.replace(read_folder(handle, folder, prompt_name), prompts=named_prompts(folder))
    check_side(folder / os.path.relpath(str(model.encoder["handle"]), handle))
    if prompt_name is None:
        return model
    if model.method != "encode" or model.is_plain:
        kind = "is a plain encoder" if model.is_plain else f"is encoded by {model.method}, which has its own prompt"
        advice = "leave --prompt out, and set encoder.prompt in the file if needed"
        raise EncoderError(f"--prompt: {handle} {kind}; {advice}")
    return dataclasses.replace(model, method=f"encode(..., prompt_name={prompt_name!r})")


def read_folder(handle: str, folder: Path, prompt_name: str | None = None) -> Model:
    """The same for a handle whose files are in a folder."""
    if not (folder / "modules.json").is_file():
        return _read_plain(handle, folder)
    whole = JsonFile.read(folder / PROMPTS, optional=True)
    modules = list_modules(folder / "modules.json")
    if whole.fields.get("model_type") in late_interaction.MODEL_TYPES:
        return late_interaction.read_modules(handle, folder, whole, modules)
    check_kinds(folder, modules, "Transformer Pooling( Dense)*( Normalize)?", _ORDER)
    (_, inner), (_, pooling_folder), *last = modules
    dense = [path for kind, path in last if kind == "Dense"]
    is_normalized = len(dense) < len(last)
    if inner and handle.startswith("hf://"):
        raise EncoderError(f"{handle}: its encoder is in its folder {inner}; download it all and give its local folder")
    length = cut_length(folder / inner, read_transformer(folder / inner))
    encoder = {"handle": os.path.join(handle, inner) if inner else handle, "max_seq_length": length}
    pooling = JsonFile.read(folder / pooling_folder / "config.json")
    view = text_view(_pooling(pooling), is_normalized=is_normalized)
    if dense:
        view["dense"] = check_dense(handle, folder, inner, dense, "SentenceTransformer")
    for _, path in last:
        config = JsonFile.read(folder / path / "config.json", optional=True)
        for name in ("module_input_name", "module_output_name"):
            config.check(name, "sentence_embedding")
    whole.check("model_type", "SentenceTransformer")
    prompt, query_prompt = _prompt(whole, prompt_name), read_prompt(whole, "query")
    for of, text in (("default prompt", prompt), ("prompt of queries", query_prompt)):
        if text and not pooling.fields.get("include_prompt", True):
            raise pooling.wrong("include_prompt", f"true, because the model has a {of}: {ELSEWHERE}")
        if text.startswith("["):
            check_marker(open_encoder(str(encoder["handle"])), folder / inner, whole, text)
    if prompt or prompt_name is not None:
        encoder["prompt"] = prompt
    if prompt or query_prompt:
        encoder["query_prompt"] = query_prompt
    width = whole.get("truncate_dim", "null or an integer from 1 up", least=1)
    if width is not None:
        if is_normalized:
            raise whole.wrong("truncate_dim", "null: it would cut vectors after Normalize has scaled them")
        view["truncate_dim"] = width
    return Model(encoder, view, is_plain=False)


def _locate(handle: str) -> Path:
    if handle == "minilm" or handle.startswith("hf://"):
        return locate(handle).folder
    folder = os.path.expanduser(handle)
    if not os.path.isdir(folder):
        raise EncoderError(
            f"{handle}: is not a folder on this machine; give the folder of a sentence-transformers model, minilm or "
            "hf://org/name"
        )
    return Path(folder)


def _read_plain(handle: str, folder: Path) -> Model:
    """An encoder without modules, of which sentence-transformers takes the mean. It reads none of its own files."""
    if not (folder / "config.json").is_file():
        raise EncoderError(
            f"{handle}: has neither modules.json nor config.json; give the folder of a sentence-transformers model, or "
            "of an encoder from Hugging Face"
        )
    config = JsonFile.read(folder / "config.json")
    architectures = config.fields.get("architectures") or [None]
    if isinstance(architectures, list) and str(architectures[0]).endswith("ForCausalLM"):
        raise config.wrong("architectures", f"an encoder's: {ELSEWHERE}")
    if architectures == ["HF_ColBERT"]:
        return late_interaction.read_stanford(handle, folder)
    length = cut_length(folder, JsonFile(folder / TRANSFORMER_FILES[0], {}))
    return Model({"handle": handle, "max_seq_length": length}, text_view("mean", is_normalized=False), is_plain=True)


def _pooling(file: JsonFile) -> str:
    """layerbeam's name of a Pooling."""
    file.check_names(*_POOLING_FIELDS)
    given = file.fields.get("pooling_mode")
    if given is None:
        given = [mode for field, mode in _OLD_POOLINGS.items() if file.fields.get(field)] or "mean"
    modes = given if isinstance(given, list) else [given]
    found = _POOLINGS.get(tuple(map(str, modes)))
    if found is None:
        allowed = ", ".join(" + ".join(modes) for modes in _POOLINGS)
        raise EncoderError(
            f"{file.path}: the pooling is {' + '.join(map(shown, modes)) or 'none'}; allowed: {allowed}: {ELSEWHERE}"
        )
    return found


def _prompt(file: JsonFile, name: str | None) -> str:
    """The text that `encode` puts before each text, by the name of a prompt or by default; mostly empty."""
    given, prompts = file.fields.get("default_prompt_name"), file.fields.get("prompts", {})
    known = {"query": None, "document": None} | (prompts if isinstance(prompts, dict) else {})
    if name is not None:
        if name not in known:
            raise EncoderError(f"--prompt: {file.path} has no prompt {shown(name)}; allowed: {', '.join(known)}")
        return read_prompt(file, name)
    if given is None:
        return ""
    if not isinstance(given, str) or given not in known:
        raise file.wrong("default_prompt_name", f"null or one of prompts: {', '.join(known)}")
    return read_prompt(file, given)


def named_prompts(folder: Path) -> dict[str, str]:
    """The prompts in a model's files by name; none if it has its own way with them, as ColBERT, or they are damaged."""
    folder = folder if (folder / "modules.json").exists() else folder.parent  # of an encoder among the modules
    if not (folder / "modules.json").exists():
        return {}
    try:
        file = JsonFile.read(folder / PROMPTS, optional=True)
        prompts = file.fields.get("prompts")
        if file.fields.get("model_type") in late_interaction.MODEL_TYPES or not isinstance(prompts, dict):
            return {}
        return {str(name): read_prompt(file, name) for name in prompts}
    except EncoderError:
        return {}
