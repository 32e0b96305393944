"""Hugging Face folders: `config.json`, weights, `vocab.txt` or `tokenizer.json`.

The weights are `model.safetensors`, else `pytorch_model.bin`, or the shards of one of them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerbeam.transforms.encoders.architectures import Architecture, Bert, model_type_of, read_architecture
from layerbeam.transforms.encoders.config_file import ConfigFile, EncoderError, get_it, read_json, shown
from layerbeam.transforms.encoders.formats.pytorch_bin import PickledWeights
from layerbeam.transforms.encoders.formats.safetensors_file import FLOATS, SafetensorsFile
from layerbeam.transforms.encoders.formats.tokenizer_json import (
    FastTokenizer,
    check_built,
    check_same_entries,
    is_known_token,
    read_tokenizer_json,
)
from layerbeam.transforms.encoders.formats.weights import LazyWeights, Tensor, find_weights
from layerbeam.transforms.encoders.source import (
    IN_TEXT,
    EncoderSource,
    LocalFolder,
    Vocabulary,
    casing_of,
    common_fields,
    native_source,
    read_vocabulary,
)
from layerbeam.transforms.flow.blocks import Float32Array

# Those that a transformer of sentence-transformers may have, next to its config.json.
TRANSFORMER_FILES = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
# Tokenizers in files that are not read.
_OTHER_TOKENIZERS = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "merges.txt")
# What training programs put before the names of all tensors.
_WRAPPERS = ("module.", "_orig_mod.", "auto_model.", "base_model.", "model.", "encoder.", "0.")
# The weights in a file; a folder may have both.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def open_folder(handle: str, located: LocalFolder, do_lower_case: bool | None) -> EncoderSource:
    """The encoder in a folder. EncoderError if it cannot be used."""
    config = ConfigFile(handle, located.folder / "config.json")
    architecture = read_architecture(config)
    weight_files = find_weight_files(handle, located.folder)
    tensors = _find_tensors(handle, weight_files, architecture)
    vocabulary, casing = _read_tokenizer(handle, located, architecture, do_lower_case)
    said = "plain BERT" if type(architecture) is Bert else model_type_of(config)
    return native_source(
        kind="huggingface",
        engine_because=f"config.json says {said}",
        architecture=architecture,
        has_pooler="bert/pooler/dense/kernel" in tensors,
        cut_to=_read_length(handle, located.folder),
        **common_fields(
            handle,
            located,
            weight_files,
            vocabulary,
            architecture.vocab_size,
            casing,
            architecture,
            hash_tensors(handle, weight_files, tensors),
        ),
    )


def _read_length(handle: str, folder: Path) -> int | None:
    """Tokens to which sentence-transformers, or else transformers, cuts a text; None if no file says."""
    files = [(name, "max_seq_length") for name in TRANSFORMER_FILES] + [("tokenizer_config.json", "model_max_length")]
    for name, field in files:
        if (folder / name).is_file():
            length = ConfigFile(handle, folder / name).fields.get(field)
            if type(length) is int and length > 2:  # others mean "no limit"
                return length
    return None


def _read_tokenizer(
    handle: str, located: LocalFolder, architecture: Architecture, do_lower_case: bool | None
) -> tuple[Vocabulary, tuple[bool, str]]:
    """The vocabulary; whether texts are lower-cased, and the source of that."""
    names = ("tokenizer_config.json", "tokenizer.json", "vocab.txt")
    config_file, fast_file, vocabulary_file = (located.folder / name for name in names)
    vocab_size = architecture.vocab_size
    fast = read_tokenizer_json(handle, fast_file, vocab_size, do_lower_case) if fast_file.is_file() else None
    config = ConfigFile(handle, config_file) if config_file.is_file() else None
    if config:
        config.require("do_basic_tokenize", True)
        config.require("word_tokenizer_type", "basic")
        config.require("subword_tokenizer_type", "wordpiece")
        config.require("never_split", None, [])
    if fast is not None and fast.vocabulary.library == "tokenizers":
        if do_lower_case not in (None, fast.lowercase):
            raise EncoderError(f"{handle}: {fast_file} decides whether texts are lower-cased: remove do_lower_case")
        check_built(handle, fast_file, fast, config.fields if config else {})
        _check_added(handle, located.folder, config, fast.vocabulary)
        return _with_side(fast.vocabulary, config, fast), (fast.lowercase, fast_file.name)
    declared = _declared_casing(handle, config, fast, do_lower_case)
    if fast and (architecture.vocabulary_file == fast_file.name or not vocabulary_file.is_file()):
        vocabulary = fast.vocabulary
    elif architecture.vocabulary_file == fast_file.name:
        others = [name for name in _OTHER_TOKENIZERS if (located.folder / name).is_file()]
        others += _OTHER_TOKENIZERS[:2] if handle.startswith("hf://") else ()  # they are not fetched
        not_read = f", which is not read from {' or '.join(others)}" if others else ""
        way = _make(handle, "transformers and sentencepiece are" if others else "transformers is")
        raise EncoderError(
            f"{handle}: {fast_file} is missing; it holds the tokenizer{not_read}: {get_it(handle)}, or {way}"
        )
    else:
        vocabulary = read_vocabulary(handle, vocabulary_file, vocab_size)
        if fast:
            check_same_entries(handle, vocabulary, fast.vocabulary)
    _check_added(handle, located.folder, config, vocabulary)
    casing = casing_of(do_lower_case, declared, located, vocabulary)
    if config:
        _check_casing(config, casing[0])
    return _with_side(vocabulary, config, fast), casing


def _with_side(vocabulary: Vocabulary, config: ConfigFile | None, fast: FastTokenizer | None) -> Vocabulary:
    """The vocabulary with the side at which transformers cuts: of tokenizer_config.json, else of tokenizer.json."""
    said = config.fields.get("truncation_side") if config else None
    cuts_left = said == "left" if said is not None else fast is not None and fast.cuts_left
    return dataclasses.replace(vocabulary, cuts_left=cuts_left)


def _make(handle: str, installed: str = "transformers is") -> str:
    """How to make a tokenizer.json."""
    name = f"{handle.removeprefix('hf://').partition('@')[0]!r}" if handle.startswith("hf://") else "folder"
    made = "" if name == "folder" else ", which is a folder with the repository's other files; give that"
    return (
        f"make it where {installed} installed: "
        f"transformers.AutoTokenizer.from_pretrained({name}).save_pretrained(folder){made}"
    )


def _check_added(handle: str, folder: Path, config: ConfigFile | None, vocabulary: Vocabulary) -> None:
    """Raises EncoderError if the tokenizer's other files have a token that the vocabulary lacks, or with another id.

    And, for WordPiece of TensorFlow Text, one that transformers finds in texts before it cuts them into words.
    """
    is_wordpiece, name = vocabulary.library == "tensorflow_text", vocabulary.file.name
    special = vocabulary.special
    around = (("cls_token", special.before), ("sep_token", special.behind))
    put = {field: vocabulary.entries[ids[0]] for field, ids in around if ids} | {"unk_token": "[UNK]"}
    places: dict[str, set[int]] = {}
    for number, entry in enumerate(vocabulary.entries):
        places.setdefault(entry, set()).add(number)
    for path, field, token, given in _added_tokens(handle, folder, config):
        ids, is_known = places.get(token), is_known_token(token)
        if is_wordpiece and token != put.get(field, token):
            why = f"is the {field}, and layerbeam puts {put[field]}"
        elif ids is None and not is_known:
            why = f"is not in {name}"
        elif (
            ids and given not in (None, *ids) and (token in IN_TEXT or not is_known)
        ):  # a marker is what the vocabulary has
            why = f"has the id {shown(given)}, and {max(ids)} in {name}"
        elif ids and is_wordpiece and not is_known:
            why = f"is found in texts before they are cut into words, not so by {name} alone"
        else:
            continue
        way = _make(handle) if name == "vocab.txt" else "correct the file that is not of the weights"
        raise EncoderError(f"{handle}: {path}: the token {shown(token)} {why}: ids would differ; {way}")


def _added_tokens(handle: str, folder: Path, config: ConfigFile | None) -> Iterator[tuple[Path, str, str, int | None]]:
    """(file, field, token, id if there is one) of each token in `config` and in the files next to it."""
    named = [folder / name for name in ("added_tokens.json", "special_tokens_map.json", "tokenizer_config.json")]
    added, special = (read_json(handle, path) if path.is_file() else {} for path in named[:2])
    fields = config.fields if config else {}
    yield from ((named[0], "", token, number) for token, number in added.items())
    decoder = fields.get("added_tokens_decoder")
    for number, given in decoder.items() if isinstance(decoder, dict) else ():
        yield from ((named[2], "", token, int(number)) for token in _contents(given))
    for path, of_file in ((named[1], special), (named[2], fields)):
        for field in of_file:
            if field.endswith(("_token", "special_tokens")):
                yield from ((path, field, token, None) for token in _contents(of_file[field]))


def _contents(given: Any) -> list[str]:
    """The tokens in a field: a text, an object with its `content`, or several of these."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, dict):
        given = [given["content"]] if "content" in given else list(given.values())
    return [token for one in given for token in _contents(one)] if isinstance(given, list) else []


def _declared_casing(
    handle: str, config: ConfigFile | None, fast: FastTokenizer | None, do_lower_case: bool | None
) -> tuple[bool, str] | None:
    """Whether the files lower-case texts, and the one that says so. EncoderError if they differ and no setting counts.

    `config`: tokenizer_config.json; `fast`: tokenizer.json.
    """
    declared = config.fields.get("do_lower_case") if config else None
    if config and do_lower_case is None and declared not in (None, True, False):
        raise config.wrong("do_lower_case", "true or false")
    if fast and do_lower_case is None and isinstance(declared, bool) and declared != fast.lowercase:
        raise EncoderError(
            f"{handle}: tokenizer_config.json says do_lower_case {json.dumps(declared)}, tokenizer.json lowercase "
            f"{json.dumps(fast.lowercase)}; set do_lower_case as the encoder was trained"
        )
    if config and isinstance(declared, bool):
        return declared, config.path.name
    return (fast.lowercase, fast.vocabulary.file.name) if fast else None


def read_weights(source: EncoderSource, architecture: Architecture) -> Mapping[str, Float32Array]:
    """{name of `weight_shapes`: float32 array}, each read at its access."""
    read_tensor = tensor_reader(source.handle, source.weight_files)

    def read(name: str, tensor: Tensor) -> Float32Array:
        values = read_tensor(tensor)
        return values.T if name.endswith("/kernel") else values

    return LazyWeights(_find_tensors(source.handle, source.weight_files, architecture), read)


def tensor_reader(handle: str, weight_files: Iterable[str]) -> Callable[[Tensor], Float32Array]:
    """What reads the values of a tensor in these files."""
    files = {path: _open_file(handle, path) for path in weight_files}

    def read(tensor: Tensor) -> Float32Array:
        share, of = tensor.share
        values = files[tensor.file].read(tensor.name)
        if of == 1:
            return values
        rows = tensor.shape[0]
        return values.reshape(-1, *tensor.shape[1:])[share * rows : (share + 1) * rows]

    return read


def _open_file(handle: str, path: str) -> SafetensorsFile | PickledWeights:
    return PickledWeights(handle, path) if path.endswith(".bin") else SafetensorsFile(handle, path)


def hash_tensors(handle: str, weight_files: Sequence[str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256, in hex, of tensors in float32, by their names here: equal for all files that hold the same.

    Cached per process by size and time of the files.
    """
    stats = [Path(file).stat() for file in weight_files]
    sizes_and_times = tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)
    return _hash_tensors(handle, tuple(weight_files), tuple(sorted(tensors.items())), sizes_and_times)


@functools.lru_cache(maxsize=64)
def _hash_tensors(
    handle: str, weight_files: tuple[str, ...], tensors: tuple[tuple[str, Tensor], ...], sizes_and_times: Any
) -> str:
    read = tensor_reader(handle, weight_files)
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(json.dumps([name, tensor.shape]).encode())
        digest.update(np.ascontiguousarray(read(tensor)).data)
    return digest.hexdigest()


def _check_casing(config: ConfigFile, do_lower_case: bool) -> None:
    """Raises EncoderError if Google's WordPiece would give other ids than the encoder was trained on."""
    for field, allowed in {"tokenize_chinese_chars": (True,), "strip_accents": (None, do_lower_case)}.items():
        found = config.fields.get(field, allowed[0])
        if found not in allowed:
            raise EncoderError(
                f"{config.handle}: {config.path.name}: {field} is {json.dumps(found)}; with do_lower_case "
                f"{json.dumps(do_lower_case)} it must be {' or '.join(map(json.dumps, allowed))}, unless a "
                f"tokenizer.json says the same; {_make(config.handle)}"
            )


def find_weight_files(handle: str, folder: Path) -> tuple[str, ...]:
    """The first of model.safetensors and pytorch_model.bin that is there, whole or as the shards in its index."""
    for name in WEIGHTS:
        single, index = folder / name, folder / f"{name}.index.json"
        if single.is_file():
            return (str(single),)
        if index.is_file():
            names = read_json(handle, index).get("weight_map")
            known = isinstance(names, dict) and all(_is_shard(name, shard) for shard in names.values())
            if not names or not known:
                raise EncoderError(f"{handle}: {index}: weight_map must give a file in this folder for each tensor")
            return tuple(str(folder / shard) for shard in sorted(set(names.values())))
    raise EncoderError(f"{handle}: {folder / WEIGHTS[0]} is missing; it holds the weights: {get_it(handle)}")


def _is_shard(whole: str, name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and Path(name).suffix == Path(whole).suffix


def list_tensors(handle: str, files: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of these files by name, from the headers alone. EncoderError for a missing or damaged file."""
    return {name: tensor for path in files for name, tensor in _open_file(handle, path).tensors().items()}


def _find_tensors(handle: str, weight_files: Sequence[str], architecture: Architecture) -> dict[str, Tensor]:
    """The tensors by their names in `weight_shapes`; kernels are [out, in], as in PyTorch."""
    listed = list_tensors(handle, weight_files)
    wrapper = ""
    while more := next((one for one in _WRAPPERS if all(name.startswith(wrapper + one) for name in listed)), ""):
        wrapper += more
    found = {name.removeprefix(wrapper): tensor for name, tensor in listed.items()}
    prefix = architecture.prefix if any(name.startswith(architecture.prefix) for name in found) else ""
    found = {
        prefix + name: part
        for theirs, tensor in found.items()
        for name, part in tensor.shared_by(current_names(architecture, theirs.removeprefix(prefix)))
    }
    return find_weights(
        handle,
        Path(weight_files[0]).parent / "config.json",
        architecture,
        found,
        spellings=lambda name: [prefix + theirs for theirs in architecture.spellings(name)],
        is_turned=True,
        dtypes=tuple(FLOATS),
        words=("tensor", "weights", f"one of {', '.join(FLOATS)}"),
    )


def current_names(architecture: Architecture, name: str) -> list[str]:
    """The names in transformers of the products that a tensor holds, mostly one. `name`: in a file, without prefix."""
    for pattern, replacement in architecture.renamed_tensors.items():
        name = re.sub(pattern, replacement, name)
    for fused, parts in architecture.fused_tensors.items():
        if fused in name:
            return [name.replace(fused, part) for part in parts]
    return [name]
