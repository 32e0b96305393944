"""`layerbeam init --from`: the settings that give the vectors of sentence-transformers for a model's folder.

Those of `encode`, or of `encode_document` for a late interaction model. It reads a folder's JSON files as
sentence-transformers 6.2 does. A model with other vectors is refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import string
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa

from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.encoders import EncoderError, EncoderSource, open_encoder
from layerbeam.transforms.encoders.architectures.mpnet import MPNet
from layerbeam.transforms.encoders.architectures.roberta import Roberta
from layerbeam.transforms.encoders.config_file import shown
from layerbeam.transforms.encoders.dense import read_dense_config
from layerbeam.transforms.encoders.fetch.locate import locate
from layerbeam.transforms.encoders.formats.huggingface import TRANSFORMER_FILES
from layerbeam.transforms.views import leaves_folder

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
# Late interaction models, as sentence-transformers and PyLate name them.
_LATE_INTERACTION = ("MultiVectorEncoder", "ColBERT")
# Encoders whose first position is pad_token_id + 1: max_position_embeddings counts the unused ones too.
_SHIFTED_POSITIONS = (*Roberta.model_types, *MPNet.model_types)
_ORDER = "Transformer + Pooling, then any number of Dense, then Normalize or nothing"
_LENGTH = "null or an integer from 3 up"
_ELSEWHERE = "take another model, or encode with sentence-transformers"


@dataclasses.dataclass(frozen=True)
class Model:
    """The settings of the section `encoder` and of one view.

    `is_plain`: the folder holds an encoder only. `method`: of sentence-transformers, whose vectors they give.
    `queries`: how queries are encoded, a sentence, if not as the texts are.
    """

    encoder: dict[str, Any]
    view: dict[str, Any]
    is_plain: bool
    method: str = "encode"
    queries: str = ""


def read_model(handle: str) -> Model:
    """The settings for a local folder, `minilm` or hf://org/name. UsageError if layerbeam has other vectors."""
    folder = _locate(handle)
    if not (folder / "modules.json").is_file():
        return _read_plain(handle, folder)
    whole = _File.read(folder / "config_sentence_transformers.json", optional=True)
    modules = _list_modules(folder / "modules.json")
    if whole.fields.get("model_type") in _LATE_INTERACTION:
        return _read_late_interaction(handle, folder, whole, modules)
    _check_kinds(folder, modules, "Transformer Pooling( Dense)*( Normalize)?", _ORDER)
    (_, inner), (_, pooling_folder), *last = modules
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
    if architectures == ["HF_ColBERT"]:
        raise config.wrong("architectures", f"an encoder's; Stanford's ColBERT has its own form: {_ELSEWHERE}")
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


def _read_late_interaction(handle: str, folder: Path, whole: _File, modules: list[tuple[str, str]]) -> Model:
    """The settings that give the vectors of `encode_document` for a MultiVectorEncoder, or a model of PyLate."""
    is_pylate = whole.fields["model_type"] == "ColBERT"
    order = "Transformer, then any number of Dense"
    if is_pylate:  # what follows is not among its modules
        _check_kinds(folder, modules, "Transformer( Dense)*", order)
    else:
        order += ", then MultiVectorMask or nothing, then Normalize or nothing"
        _check_kinds(folder, modules, "Transformer( Dense)*( MultiVectorMask)?( Normalize)?", order)
    _check_token_level(folder, modules)
    inner, kinds = modules[0][1], [kind for kind, _ in modules]
    transformer = _read_transformer(folder / inner)
    encoder: dict[str, Any] = {
        "handle": os.path.join(handle, inner) if inner else handle,
        "max_seq_length": _document_length(folder / inner, transformer, whole),
    }
    prompt = _prompt_with_prefix(whole, "document")
    _check_added_marker(folder / inner, whole, prompt)
    try:
        source = open_encoder(encoder["handle"])
    except EncoderError as error:
        raise UsageError(str(error)) from error
    if prompt:
        _check_marker(source, whole, prompt)
        encoder["prompt"] = prompt
    view = _view("none", is_normalized=is_pylate or "Normalize" in kinds)
    dense = [path for kind, path in modules if kind == "Dense"]
    if dense:
        view["dense"] = _dense(handle, folder, inner, dense)
    skipped = _skip_tokens(_read_mask(folder, whole, modules), source.vocabulary)
    if skipped:
        view["skip_tokens"] = skipped
    expands = transformer.fields.get("query_expansion") or (is_pylate and whole.fields.get("do_query_expansion", True))
    queries = "Queries are encoded by sentence-transformers' `encode_query`, which fills them up with [MASK]."
    if not expands:
        queries = (
            "Queries have other settings: encode them with sentence-transformers' `encode_query`, or with "
            f"layerbeam.encode with `prompt: {json.dumps(_prompt_with_prefix(whole, 'query'))}`"
            f"{' and without `skip_tokens`' if skipped else ''}."
        )
    return Model(encoder, view, is_plain=False, method="encode_document", queries=queries)


def _check_token_level(folder: Path, modules: list[tuple[str, str]]) -> None:
    """UsageError for a Dense or Normalize that is not for the vectors of tokens."""
    # What a missing field means.
    defaults = {"Dense": "token_embeddings", "Normalize": "sentence_embedding"}
    for kind, path in modules:
        if kind in defaults:
            config = _File.read(folder / path / "config.json")
            config = _File(config.path, {"module_input_name": defaults[kind], **config.fields})
            for name in ("module_input_name", "module_output_name"):
                config.check(name, "token_embeddings")


def _document_length(folder: Path, transformer: _File, whole: _File) -> int:
    """The length to which sentence-transformers cuts documents."""
    for file in (transformer, whole):
        length = file.get("document_length", _LENGTH, least=3)
        if length is not None:
            transformer = _File(transformer.path, {**transformer.fields, "max_seq_length": length})
            break
    return _max_seq_length(folder, transformer)


def _read_mask(folder: Path, whole: _File, modules: list[tuple[str, str]]) -> _File:
    """The settings of MultiVectorMask; PyLate has them with those of the model, and skips punctuation by default."""
    if whole.fields["model_type"] == "ColBERT":
        words = whole.fields.get("skiplist_words")
        return _File(whole.path, {"skiplist_words": list(string.punctuation) if words is None else words})
    paths = dict(modules)
    if "MultiVectorMask" not in paths:
        return _File(whole.path, {})
    return _File.read(folder / paths["MultiVectorMask"] / "config.json")


def _skip_tokens(mask: _File, vocabulary: tuple[str, ...]) -> list[str]:
    """The entries of the vocabulary that a MultiVectorMask leaves out of documents: it ignores other words."""
    mask.check_names("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
    mask.check("keep_only_token_ids", None)
    words, tasks = mask.fields.get("skiplist_words") or [], mask.fields.get("skiplist_tasks") or ["document"]
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise mask.wrong("skiplist_words", "null or a list of words")
    known = set(vocabulary) if "document" in ([tasks] if isinstance(tasks, str) else tasks) else set()
    return [word for word in dict.fromkeys(words) if word in known]


def _check_added_marker(folder: Path, whole: _File, prompt: str) -> None:
    """UsageError if a prompt begins with a token that was added to a WordPiece tokenizer, as [D] may be."""
    fast = _File.read(folder / "tokenizer.json", optional=True).fields
    slow = _File.read(folder / "tokenizer_config.json", optional=True).fields.get("added_tokens_decoder")
    tokens = [*(fast.get("added_tokens") or ()), *(slow.values() if isinstance(slow, dict) else ())]
    marker = _marker(whole, prompt, {str(token.get("content")) for token in tokens if isinstance(token, dict)})
    model = fast.get("model")
    if marker is not None and (not isinstance(model, dict) or model.get("type", "WordPiece") == "WordPiece"):
        raise _cut_marker(whole, prompt, marker)


def _check_marker(source: EncoderSource, whole: _File, prompt: str) -> None:
    """UsageError if a prompt begins with an entry of the vocabulary, such as [unused1], that layerbeam would cut."""
    marker = _marker(whole, prompt, source.vocabulary)
    if marker is None:
        return
    # Imported here: it loads Beam.
    from layerbeam.transforms.tokenize.tokenizer import load_text_tokenizer

    if len(load_text_tokenizer(source).tokenize(pa.array([marker], pa.string())).ids) != 1:
        raise _cut_marker(whole, prompt, marker)


def _marker(whole: _File, prompt: str, known: Collection[str]) -> str | None:
    """The one of these tokens with which a prompt begins, as sentence-transformers looks for it."""
    markers = (whole.fields.get("document_prefix"), prompt, *prompt.split()[:1])
    return next((marker for marker in markers if marker in known), None)


def _cut_marker(whole: _File, prompt: str, marker: str) -> UsageError:
    return UsageError(
        f"{whole.path}: the prompt {shown(prompt)} begins with the token {shown(marker)}, which layerbeam would cut "
        f"into several; it must be plain text, such as [D] without an entry in the vocabulary: {_ELSEWHERE}"
    )


def _check_kinds(folder: Path, modules: list[tuple[str, str]], pattern: str, allowed: str) -> None:
    """UsageError if the types of the modules, joined by spaces, do not match."""
    kinds = [kind for kind, _ in modules]
    if not re.fullmatch(pattern, " ".join(kinds)):
        raise UsageError(
            f"{folder / 'modules.json'}: the modules are {' + '.join(kinds) or 'none'}; allowed: {allowed}: "
            f"{_ELSEWHERE}"
        )


def _list_modules(path: Path) -> list[tuple[str, str]]:
    """(type, folder) of each module in a file; the type without its package, if that is known."""
    modules = _read_json(path, list, "a list of modules")
    found = []
    for module in modules:
        given = module if isinstance(module, dict) else {}
        type_, folder = given.get("type"), given.get("path")
        if not (isinstance(type_, str) and isinstance(folder, str)):
            raise UsageError(f"{path}: a module is {shown(module)}; it must have a type and a path: download it again")
        if leaves_folder(folder):
            raise UsageError(f"{path}: a module's path is {shown(folder)}; it must be a folder next to modules.json")
        is_known = type_.startswith("sentence_transformers.") or type_ == "pylate.models.Dense.Dense"
        found.append((type_.rpartition(".")[2] if is_known else type_, folder))
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
    own = transformer.get("max_seq_length", _LENGTH, least=3)
    return min(own or tokenizer.get("model_max_length", _LENGTH, least=3) or positions, positions)


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
    return _prompt(file, name)


def _prompt(file: _File, name: str) -> str:
    """The text of a prompt, mostly empty."""
    prompts = file.fields.get("prompts")
    prompt = (prompts.get(name) if isinstance(prompts, dict) else None) or ""
    if not isinstance(prompt, str) or any("\ud800" <= character <= "\udfff" for character in prompt):
        raise UsageError(f"{file.path}: prompts.{name} is {shown(prompt)}; it must be a text")
    return prompt


def _prompt_with_prefix(file: _File, name: str) -> str:
    """The text of a prompt after the prefix that PyLate saves, which the prompt may have already."""
    prefix = file.fields.get(f"{name}_prefix") or ""
    if not isinstance(prefix, str):
        raise file.wrong(f"{name}_prefix", "null or a text")
    return prefix + _prompt(file, name).removeprefix(prefix)


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
