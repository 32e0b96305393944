"""A model's folder as sentence-transformers reads it: what its JSON files say of modules, lengths and prompts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerbeam.transforms.encoders.architectures import ARCHITECTURES
from layerbeam.transforms.encoders.architectures.mpnet import MPNet
from layerbeam.transforms.encoders.architectures.roberta import Roberta
from layerbeam.transforms.encoders.architectures.rotary import Rotary
from layerbeam.transforms.encoders.config_file import ELSEWHERE, EncoderError, JsonFile, read_whole, shown
from layerbeam.transforms.encoders.dense import read_dense_config
from layerbeam.transforms.encoders.formats.huggingface import TRANSFORMER_FILES
from layerbeam.transforms.views.view import leaves_folder

# What the transformer's own file must say. `encode` does not depend on the other fields, or they are read below.
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
_DENSE_FIELDS = (
    *("in_features", "out_features", "bias", "activation_function", "use_residual"),
    *("module_input_name", "module_output_name"),
)
# Encoders whose first position is pad_token_id + 1: max_position_embeddings counts the unused ones too.
_SHIFTED_POSITIONS = (*Roberta.model_types, *MPNet.model_types)
# Encoders to which only the distance between two tokens counts: padding on the left changes nothing.
_ROTATED_POSITIONS = [name for kind in ARCHITECTURES if issubclass(kind, Rotary) for name in kind.model_types]
LENGTH = "null or an integer from 3 up"


@dataclasses.dataclass(frozen=True)
class Model:
    """The settings of the section `encoder` and of one view.

    `is_plain`: the folder holds an encoder only. `method`: of sentence-transformers, whose vectors they give.
    `queries`: how queries are encoded, a sentence, if not as the texts are. `prompts`: all of the model's, by name.
    """

    encoder: dict[str, Any]
    view: dict[str, Any]
    is_plain: bool
    method: str = "encode"
    queries: str = ""
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def check_kinds(folder: Path, modules: list[tuple[str, str]], pattern: str, allowed: str) -> None:
    """EncoderError if the types of the modules, joined by spaces, do not match."""
    kinds = [kind for kind, _ in modules]
    if not re.fullmatch(pattern, " ".join(kinds)):
        raise EncoderError(
            f"{folder / 'modules.json'}: the modules are {' + '.join(kinds) or 'none'}; allowed: {allowed}: {ELSEWHERE}"
        )


def list_modules(path: Path) -> list[tuple[str, str]]:
    """(type, folder) of each module in a file; the type without its package, if that is known."""
    modules = read_whole(path, list, "a list of modules")
    found = []
    for module in modules:
        given = module if isinstance(module, dict) else {}
        type_, folder = given.get("type"), given.get("path")
        if not (isinstance(type_, str) and isinstance(folder, str)):
            raise EncoderError(
                f"{path}: a module is {shown(module)}; it must have a type and a path: download it again"
            )
        if leaves_folder(folder):
            raise EncoderError(f"{path}: a module's path is {shown(folder)}; it must be a folder next to modules.json")
        is_known = type_.startswith("sentence_transformers.") or type_ == "pylate.models.Dense.Dense"
        found.append((type_.rpartition(".")[2] if is_known else type_, folder))
    return found


def read_transformer(folder: Path) -> JsonFile:
    """The transformer's own file, without fields if there is none. EncoderError for other texts or other tokens."""
    given = (JsonFile.read(folder / name, optional=True) for name in TRANSFORMER_FILES)
    file = next((file for file in given if file.fields), JsonFile(folder / TRANSFORMER_FILES[0], {}))
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
    fast = JsonFile.read(folder / "tokenizer.json", optional=True).fields.get("normalizer")
    if fast is not None:
        return isinstance(fast, dict) and fast.get("lowercase") is True
    return JsonFile.read(folder / "tokenizer_config.json", optional=True).fields.get("do_lower_case") is True


def cut_length(folder: Path, transformer: JsonFile) -> int:
    """The length to which sentence-transformers cuts texts, at most the encoder's positions: it fails on longer ones.

    transformers' defaults: 512 positions, padding by token 1 where positions are shifted.
    """
    if (folder / "adapter_config.json").exists():
        raise EncoderError(f"{folder / 'adapter_config.json'}: is an adapter; merge it into the encoder and save that")
    config = JsonFile.read(folder / "config.json")
    tokenizer = JsonFile.read(folder / "tokenizer_config.json", optional=True)
    if config.fields.get("model_type") not in _ROTATED_POSITIONS:
        tokenizer.check("padding_side", "right")
    fields = ("max_position_embeddings", "n_positions")
    positions = next(filter(None, (config.get(name, "an integer from 3 up", least=3) for name in fields)), 512)
    if config.fields.get("model_type") in _SHIFTED_POSITIONS:
        padding = config.get("pad_token_id", "null or an integer from 0 up", least=0)
        positions -= 1 + (1 if padding is None else padding)
    length = transformer.get("max_seq_length", LENGTH, least=3)
    return min(length or tokenizer.get("model_max_length", LENGTH, least=3) or positions, positions)


def check_side(folder: Path) -> None:
    """EncoderError if the tokenizer cuts off the start of a long text: `encode` here would cut off its end."""
    tokenizer = JsonFile.read(folder / "tokenizer_config.json", optional=True)
    tokenizer.check("truncation_side", "right")
    fast = JsonFile.read(folder / "tokenizer.json", optional=True)
    truncation = fast.fields.get("truncation")
    if "truncation_side" not in tokenizer.fields and isinstance(truncation, dict):
        JsonFile(fast.path, {f"truncation.{name}": value for name, value in truncation.items()}).check(
            "truncation.direction", "Right"
        )


def check_dense(handle: str, folder: Path, inner: str, paths: list[str], loader: str) -> list[str]:
    """The setting `dense` for the modules in these folders. EncoderError for one that layerbeam does not compute.

    `inner`: the encoder's folder in the model's. `loader`: the class of sentence-transformers that loads the model.
    """
    if inner:
        raise EncoderError(
            f"{handle}: its encoder is in its folder {inner}, and {paths[0]} is next to that; `dense` needs it in "
            f"the encoder's own folder: save the model again, {loader}({handle!r}).save(...), and give that"
        )
    for path in paths:
        JsonFile.read(folder / path / "config.json").check_names(*_DENSE_FIELDS)
        read_dense_config(handle, folder, path)
    return paths


def text_view(pooling: str, *, is_normalized: bool) -> dict[str, Any]:
    """A view of texts of the last layer."""
    return {"level": "text", "layers": [-1], "pooling": pooling, "normalize": is_normalized}
