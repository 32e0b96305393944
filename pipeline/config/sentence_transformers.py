"""`layerbeam init --from`: the settings that give the vectors of sentence-transformers' `encode` for a model's folder.

It reads a folder's JSON files as sentence-transformers 6.2 does. A model with other vectors is refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.encoders.architectures.mpnet import MPNet
from layerbeam.transforms.encoders.architectures.roberta import Roberta
from layerbeam.transforms.encoders.config_file import shown
from layerbeam.transforms.encoders.dense import read_dense_config
from layerbeam.transforms.encoders.fetch.locate import locate
from layerbeam.transforms.encoders.formats.huggingface import TRANSFORMER_FILES
from layerbeam.transforms.views import leaves_folder

# The names of the transformer's own file: sentence-transformers takes the first that is not empty.
# What that file must say. `encode` does not depend on the other fields, or they are read below.
_TRANSFORMER_FIELDS: dict[str, Any] = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
    **{f"{of}_args": {} for of in ("model", "tokenizer", "config")},
    **{f"{of}_kwargs": {} for of in ("model", "processor", "config", "processing")},
}
_OTHER_TRANSFORMER_FIELDS = (
    *("max_seq_length", "do_lower_case"),
    *("unpad_inputs", "query_length", "document_length", "query_expansion"),
)
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
_DENSE_FIELDS = (
    *("in_features", "out_features", "bias", "activation_function", "use_residual"),
    *("module_input_name", "module_output_name"),
)
# Encoders whose first position is pad_token_id + 1: max_position_embeddings counts the unused ones too.
_SHIFTED_POSITIONS = (*Roberta.model_types, *MPNet.model_types)
_ELSEWHERE = "take another model, or encode with sentence-transformers"


@dataclasses.dataclass(frozen=True)
class Model:
    """The settings of the section `encoder` and of one view. `is_plain`: the folder holds an encoder only."""

    encoder: dict[str, Any]
    view: dict[str, Any]
    is_plain: bool


def read_model(handle: str) -> Model:
    """The settings for a local folder, `minilm` or hf://org/name. UsageError if layerbeam has other vectors."""
    folder = _locate(handle)
    if not (folder / "modules.json").is_file():
        return _read_plain(handle, folder)
    (_, inner), (_, pooling_folder), *last = _read_modules(folder / "modules.json")
    dense = [path for kind, path in last if kind == "Dense"]
    is_normalized = len(dense) < len(last)
    if inner and handle.startswith("hf://"):
        raise UsageError(f"{handle}: its encoder is in its folder {inner}; download it all and give its local folder")
    length = _max_seq_length(folder / inner, _read_transformer(folder / inner))
    encoder = {"handle": os.path.join(handle, inner) if inner else handle, "max_seq_length": length}
    pooling = _File.read(folder / pooling_folder / "config.json")
    view = _view(_pooling(pooling), is_normalized=is_normalized)
    if dense:
        view["dense"] = _dense(handle, folder, inner, dense)
    for _, path in last:
        config = _File.read(folder / path / "config.json", optional=True)
        for name in ("module_input_name", "module_output_name"):
            config.check(name, "sentence_embedding")
    whole = _File.read(folder / "config_sentence_transformers.json", optional=True)
    whole.check("model_type", "SentenceTransformer")
    prompt = _default_prompt(whole)
    if prompt:
        if not pooling.fields.get("include_prompt", True):
            raise pooling.wrong("include_prompt", f"true, because the model has a default prompt: {_ELSEWHERE}")
        encoder["prompt"] = prompt
    width = whole.get("truncate_dim", "null or an integer from 1 up", least=1)
    if width is not None:
        if is_normalized:
            raise whole.wrong("truncate_dim", "null: it would cut vectors after Normalize has scaled them")
        view["truncate_dim"] = width
    return Model(encoder, view, is_plain=False)


def _locate(handle: str) -> Path:
    if handle == "minilm" or handle.startswith("hf://"):
        try:
            return locate(handle).folder
        except EncoderError as error:
            raise UsageError(str(error)) from error
    folder = os.path.expanduser(handle)
    if not os.path.isdir(folder):
        raise UsageError(
            f"{handle}: is not a folder on this machine; give the folder of a sentence-transformers model, minilm or "
            "hf://org/name"
        )
    return Path(folder)


def _read_plain(handle: str, folder: Path) -> Model:
    """An encoder without modules, of which sentence-transformers takes the mean. It reads none of its own files."""
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{handle}: has neither modules.json nor config.json; give the folder of a sentence-transformers model, or "
            "of an encoder from Hugging Face"
        )
    config = _File.read(folder / "config.json")
    architectures = config.fields.get("architectures") or [None]
    if isinstance(architectures, list) and str(architectures[0]).endswith("ForCausalLM"):
        raise config.wrong("architectures", f"an encoder's: {_ELSEWHERE}")
    length = _max_seq_length(folder, _File(folder / TRANSFORMER_FILES[0], {}))
    return Model({"handle": handle, "max_seq_length": length}, _view("mean", is_normalized=False), is_plain=True)


def _view(pooling: str, *, is_normalized: bool) -> dict[str, Any]:
    return {"level": "text", "layers": [-1], "pooling": pooling, "normalize": is_normalized}


def _dense(handle: str, folder: Path, inner: str, paths: list[str]) -> list[str]:
    """The setting `dense` for the modules in these folders. UsageError for one that layerbeam does not compute."""
    if inner:
        raise UsageError(
            f"{handle}: its encoder is in its folder {inner}, and {paths[0]} is next to that; `dense` needs it in "
            f"the encoder's own folder: save the model again, SentenceTransformer({handle!r}).save(...), and give that"
        )
    for path in paths:
        _File.read(folder / path / "config.json").check_names(*_DENSE_FIELDS)
        try:
            read_dense_config(handle, folder, path)
        except EncoderError as error:
            raise UsageError(str(error)) from error
    return paths


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """(type, folder) of each module: a transformer, a pooling, perhaps Dense modules, and perhaps Normalize."""
    modules = _read_json(path, list, "a list of modules")
    found = []
    for module in modules:
        given = module if isinstance(module, dict) else {}
        type_, folder = given.get("type"), given.get("path")
        if not (isinstance(type_, str) and isinstance(folder, str)):
            raise UsageError(f"{path}: a module is {shown(module)}; it must have a type and a path: download it again")
        if leaves_folder(folder):
            raise UsageError(f"{path}: a module's path is {shown(folder)}; it must be a folder next to modules.json")
        found.append((type_.rpartition(".")[2] if type_.startswith("sentence_transformers.") else type_, folder))
    kinds = [kind for kind, _ in found]
    last = kinds[2:-1] if kinds[-1:] == ["Normalize"] else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(last) - {"Dense"}:
        raise UsageError(
            f"{path}: the modules are {' + '.join(kinds) or 'none'}; allowed: Transformer + Pooling, then any number "
            f"of Dense, then Normalize or nothing: {_ELSEWHERE}"
        )
    return found


def _read_transformer(folder: Path) -> _File:
    """The transformer's own file, without fields if there is none. UsageError for other texts or other tokens."""
    given = (_File.read(folder / name, optional=True) for name in TRANSFORMER_FILES)
    file = next((file for file in given if file.fields), _File(folder / TRANSFORMER_FILES[0], {}))
    file.check_names(*_TRANSFORMER_FIELDS, *_OTHER_TRANSFORMER_FIELDS)
    for name, value in _TRANSFORMER_FIELDS.items():
        file.check(name, value)
    if file.fields.get("do_lower_case") and not _lowercases(folder):
        raise file.wrong(
            "do_lower_case",
            "false, since the encoder's tokenizer keeps case: set it to false there and lowercase the texts yourself",
        )
    return file


def _lowercases(folder: Path) -> bool:
    """Whether the tokenizer lowercases. Then do_lower_case, which lowercases before it, changes no code point."""
    fast = _File.read(folder / "tokenizer.json", optional=True).fields.get("normalizer")
    if fast is not None:
        return isinstance(fast, dict) and fast.get("lowercase") is True
    return _File.read(folder / "tokenizer_config.json", optional=True).fields.get("do_lower_case") is True


def _max_seq_length(folder: Path, transformer: _File) -> int:
    """The length to which sentence-transformers cuts texts, at most the encoder's positions: it fails on longer ones.

    transformers' defaults: 512 positions, padding by token 1 where positions are shifted.
    """
    if (folder / "adapter_config.json").exists():
        raise UsageError(f"{folder / 'adapter_config.json'}: is an adapter; merge it into the encoder and save that")
    config = _File.read(folder / "config.json")
    tokenizer = _File.read(folder / "tokenizer_config.json", optional=True)
    for name in ("padding_side", "truncation_side"):
        tokenizer.check(name, "right")
    positions = config.get("max_position_embeddings", "an integer from 3 up", least=3) or 512
    if config.fields.get("model_type") in _SHIFTED_POSITIONS:
        padding = config.get("pad_token_id", "null or an integer from 0 up", least=0)
        positions -= 1 + (1 if padding is None else padding)
    own = transformer.get("max_seq_length", "null or an integer from 3 up", least=3)
    return min(
        own or tokenizer.get("model_max_length", "null or an integer from 3 up", least=3) or positions, positions
    )


def _pooling(file: _File) -> str:
    """layerbeam's name of a Pooling."""
    file.check_names(*_POOLING_FIELDS)
    given = file.fields.get("pooling_mode")
    if given is None:
        given = [mode for field, mode in _OLD_POOLINGS.items() if file.fields.get(field)] or "mean"
    modes = given if isinstance(given, list) else [given]
    found = _POOLINGS.get(tuple(map(str, modes)))
    if found is None:
        allowed = ", ".join(" + ".join(modes) for modes in _POOLINGS)
        raise UsageError(
            f"{file.path}: the pooling is {' + '.join(map(shown, modes)) or 'none'}; allowed: {allowed}: {_ELSEWHERE}"
        )
    return found


def _default_prompt(file: _File) -> str:
    """The text that `encode` puts before each text, mostly empty."""
    name, prompts = file.fields.get("default_prompt_name"), file.fields.get("prompts", {})
    if name is None:
        return ""
    known = {"query": None, "document": None} | (prompts if isinstance(prompts, dict) else {})
    if not isinstance(name, str) or name not in known:
        raise file.wrong("default_prompt_name", f"null or one of prompts: {', '.join(known)}")
    prompt = known[name] or ""
    if not isinstance(prompt, str) or any("\ud800" <= character <= "\udfff" for character in prompt):
        raise UsageError(f"{file.path}: prompts.{name} is {shown(prompt)}; it must be a text")
    return prompt


@dataclasses.dataclass(frozen=True)
class _File:
    """A JSON object with the path of its file, for messages."""

    path: Path
    fields: dict[str, Any]

    @staticmethod
    def read(path: Path, *, optional: bool = False) -> _File:
        """The object in a file; if that is optional and missing, one without fields."""
        return _File(path, {} if optional and not path.exists() else _read_json(path, dict, "an object"))

    def get(self, name: str, allowed: str, *, least: int) -> int | None:
        """A field that is an integer from `least` up, or null."""
        value: int | None = self.fields.get(name)
        if value is not None and (type(value) is not int or value < least):
            raise self.wrong(name, allowed)
        return value

    def check(self, name: str, value: Any) -> None:
        """Raises UsageError if the field is there with another value."""
        if self.fields.get(name, value) != value:
            raise self.wrong(name, f"{shown(value)}: {_ELSEWHERE}")

    def check_names(self, *known: str) -> None:
        """Raises UsageError for a field that is unknown here, and may change the vectors."""
        unknown = [name for name in self.fields if name not in known]
        if unknown:
            raise UsageError(f"{self.path}: {unknown[0]} is unknown here; allowed: {', '.join(known)}: {_ELSEWHERE}")

    def wrong(self, name: str, allowed: str) -> UsageError:
        return UsageError(f"{self.path}: {name} is {shown(self.fields[name])}; it must be {allowed}")


def _read_json(path: Path, kind: type, allowed: str) -> Any:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; download the whole folder again") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON ({error}); download it again") from error
    if not isinstance(content, kind):
        raise UsageError(f"{path}: is {shown(content)}; it must be {allowed}: download it again")
    return content
