"""Hugging Face folders: `config.json`, `model.safetensors` (or its shards), `vocab.txt` or `tokenizer.json`.

Pickles are never opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy the number type bfloat16, which safetensors then reads
import numpy as np
from safetensors import SafetensorError, safe_open

from layerbeam.transforms.blocks import Float32Array
from layerbeam.transforms.encoders.bert import Activation, BertConfig
from layerbeam.transforms.encoders.formats.tokenizer_json import check_same_entries, read_tokenizer_json
from layerbeam.transforms.encoders.formats.weights import LazyWeights, Tensor, find_weights
from layerbeam.transforms.encoders.source import (
    EncoderError,
    EncoderSource,
    LocalFolder,
    bert_config,
    common_fields,
    native_source,
    read_json,
    read_vocabulary,
    wrong_field,
)

# Transformers' names (activations.py). gelu_fast is the tanh form with sqrt(2/pi) as a constant of 10 digits;
# quick_gelu is another function.
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
# The number types of floats, as safetensors names them.
_DTYPES = ("F32", "F16", "BF16", "F64")


def open_folder(handle: str, located: LocalFolder, do_lower_case: bool | None) -> EncoderSource:
    """The encoder in a folder. EncoderError if it cannot be used."""
    folder = located.folder
    config = _read_config(handle, folder / "config.json")
    weight_files = _find_weight_files(handle, folder)
    tensors = _find_tensors(handle, weight_files, config)
    tokenizer_file = folder / "tokenizer_config.json"
    tokenizer = read_json(handle, tokenizer_file) if tokenizer_file.is_file() else {}
    declared = tokenizer.get("do_lower_case")
    if do_lower_case is None and declared not in (None, True, False):
        raise wrong_field(handle, tokenizer_file, tokenizer, "do_lower_case", "true or false")
    found = (declared, "tokenizer_config.json") if isinstance(declared, bool) else None
    fast_file, vocabulary_file = folder / "tokenizer.json", folder / "vocab.txt"
    if fast_file.is_file():
        fast = read_tokenizer_json(handle, fast_file, config.vocab_size)
        vocabulary = fast.vocabulary
        if do_lower_case is None and found and declared != fast.lowercase:
            raise EncoderError(
                f"{handle}: tokenizer_config.json says do_lower_case {json.dumps(declared)}, tokenizer.json lowercase "
                f"{json.dumps(fast.lowercase)}; set do_lower_case as the encoder was trained"
            )
        found = found or (fast.lowercase, "tokenizer.json")
    if vocabulary_file.is_file() or not fast_file.is_file():
        vocabulary = read_vocabulary(handle, vocabulary_file, config.vocab_size)
        if fast_file.is_file():
            check_same_entries(handle, vocabulary, fast.vocabulary)
    source = native_source(
        kind="huggingface",
        engine_because="config.json says plain BERT",
        config=config,
        has_pooler="bert/pooler/dense/kernel" in tensors,
        **common_fields(handle, located, weight_files, vocabulary, config.vocab_size, (do_lower_case, found), config),
    )
    _check_tokenizer(handle, "tokenizer_config.json", tokenizer, source.do_lower_case)
    if fast_file.is_file():
        _check_tokenizer(handle, "tokenizer.json", {"strip_accents": fast.strip_accents}, source.do_lower_case)
    return source


def read_weights(source: EncoderSource, config: BertConfig) -> Mapping[str, Float32Array]:
    """{name of `weight_shapes`: float32 array}, each read at its access."""
    return LazyWeights(_find_tensors(source.handle, source.weight_files, config), _read_tensor)


def _read_tensor(name: str, tensor: Tensor) -> Float32Array:
    with safe_open(tensor.file, framework="numpy") as file:
        values: Float32Array = file.get_tensor(tensor.name).astype(np.float32, copy=False)
    return values.T if name.endswith("/kernel") else values


def _read_config(handle: str, path: Path) -> BertConfig:
    """config.json as a BertConfig. EncoderError for another architecture or a BERT variant with other computations."""
    fields = read_json(handle, path)

    def refuse(field: str, allowed: str) -> EncoderError:
        return wrong_field(handle, path, fields, field, allowed)

    if fields.get("model_type") != "bert":
        raise refuse("model_type", '"bert" (RoBERTa, ALBERT, ELECTRA, DistilBERT and others compute differently)')
    if fields.get("position_embedding_type", "absolute") != "absolute":
        raise refuse("position_embedding_type", '"absolute"')
    for field in ("is_decoder", "add_cross_attention"):
        if fields.get(field):
            raise refuse(field, "false")
    activation = _ACTIVATIONS.get(str(fields.get("hidden_act")))
    if activation is None:
        raise refuse("hidden_act", f"one of {', '.join(_ACTIVATIONS)}")
    epsilon = fields.get("layer_norm_eps", 1e-12)
    if type(epsilon) not in (int, float) or not 0 <= epsilon < 1:
        raise refuse("layer_norm_eps", "a number from 0 to 1")
    return bert_config(handle, path, fields, hidden_act=activation, layer_norm_eps=float(epsilon))


def _check_tokenizer(handle: str, file: str, tokenizer: Mapping[str, Any], do_lower_case: bool) -> None:
    """Raises EncoderError if Google's WordPiece would give other ids than the encoder was trained on."""
    needed = {
        "tokenize_chinese_chars": (True,),
        "do_basic_tokenize": (True,),
        "strip_accents": (None, do_lower_case),
        "word_tokenizer_type": ("basic",),
        "subword_tokenizer_type": ("wordpiece",),
    }
    for field, allowed in needed.items():
        if field in tokenizer and tokenizer[field] not in allowed:
            raise EncoderError(
                f"{handle}: {file}: {field} is {json.dumps(tokenizer[field])}; with do_lower_case "
                f"{json.dumps(do_lower_case)} it must be {' or '.join(map(json.dumps, allowed))}: texts would be "
                "cut into other tokens than the encoder was trained on; take another encoder"
            )


def _find_weight_files(handle: str, folder: Path) -> tuple[str, ...]:
    """model.safetensors, or the shards in its index. EncoderError for a pickle, which is never opened."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return (str(single),)
    if index.is_file():
        names = read_json(handle, index).get("weight_map")
        if not isinstance(names, dict) or not names or not all(map(_is_file_name, names.values())):
            raise EncoderError(f"{handle}: {index}: weight_map must give a file in this folder for each tensor")
        return tuple(str(folder / name) for name in sorted(set(names.values())))
    if (folder / "pytorch_model.bin").is_file():
        pickle, made = str(folder / "pytorch_model.bin"), str(single)
        raise EncoderError(
            f"{handle}: {folder} has pytorch_model.bin and no model.safetensors; a pickle can run any code and is not "
            "opened. Where PyTorch is installed, this line of Python converts it:\n"
            "import torch, safetensors.torch; safetensors.torch.save_file({name: tensor.clone().contiguous() for name, "
            f"tensor in torch.load({pickle!r}, map_location='cpu', weights_only=True).items()}}, {made!r})"
        )
    if handle.startswith("hf://"):
        raise EncoderError(
            f"{handle}: has no model.safetensors (a pytorch_model.bin is a pickle, which can run any code and is not "
            "opened); take a revision that has it (hf://org/name@refs/pr/1, say), or convert it and give the folder"
        )
    raise EncoderError(f"{handle}: {single} is missing; it holds the weights: download it too")


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", "..") and Path(name).name == name


def _list_tensors(handle: str, files: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of these files by name, from the headers alone. EncoderError for a missing or damaged file."""
    tensors = {}
    for path in files:
        try:
            open(path, "rb").close()  # an OSError with the name of the file, which those of safetensors lack
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    part = file.get_slice(name)
                    tensors[name] = Tensor(path, name, part.get_dtype(), tuple(part.get_shape()))
        except FileNotFoundError:
            raise EncoderError(f"{handle}: {path} is missing; download it too") from None
        except SafetensorError as error:
            reason = str(error).removeprefix("Error while deserializing header: ")
            raise EncoderError(
                f"{handle}: {path}: not a complete safetensors file ({reason}); download it again (a text of three "
                "lines in its place is a Git LFS pointer: run `git lfs pull`)"
            ) from None
    return tensors


def _find_tensors(handle: str, weight_files: Sequence[str], config: BertConfig) -> dict[str, Tensor]:
    """The tensors by their names in `weight_shapes`; kernels are [out, in], as in PyTorch."""
    found = _list_tensors(handle, weight_files)
    prefix = "bert." if any(name.startswith("bert.embeddings.") for name in found) else ""

    def spellings(name: str) -> tuple[str, str]:
        theirs = prefix + transformers_name(name)
        # The oldest checkpoints, bert-base-uncased among them, kept TensorFlow's names.
        old = theirs.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return theirs, old

    return find_weights(
        handle,
        Path(weight_files[0]).parent / "config.json",
        config,
        found,
        spellings=spellings,
        is_turned=True,
        dtypes=_DTYPES,
        words=("tensor", "weights", f"one of {', '.join(_DTYPES)}"),
    )


def transformers_name(name: str) -> str:
    """Transformers' name of a weight, without prefix.

    >>> transformers_name("bert/encoder/layer_11/attention/output/LayerNorm/gamma")
    'encoder.layer.11.attention.output.LayerNorm.weight'
    """
    name = re.sub(r"/(kernel|gamma)$", "/weight", name.removeprefix("bert/"))
    name = re.sub(r"/beta$", "/bias", re.sub(r"_embeddings$", "_embeddings/weight", name))
    return re.sub(r"layer_(\d+)/", r"layer/\1/", name).replace("/", ".")
