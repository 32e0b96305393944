"""`layerbeam init --from` with a late interaction model: the settings that give the vectors of its documents.

Those of sentence-transformers' `encode_document`, for what it, PyLate and Stanford's ColBERT save.
"""

from __future__ import annotations

import json
import os
import string
from pathlib import Path
from typing import Any

from layerbeam.transforms.encoders.config_file import ELSEWHERE, EncoderError, JsonFile, shown
from layerbeam.transforms.encoders.dense import read_dense_config
from layerbeam.transforms.encoders.open import open_encoder
from layerbeam.transforms.encoders.recipe.model_folder import (
    LENGTH,
    Model,
    check_dense,
    check_kinds,
    cut_length,
    read_transformer,
    text_view,
)
from layerbeam.transforms.encoders.recipe.prompts import check_marker, prompt_with_prefix
from layerbeam.transforms.views.view import WITHIN_ENCODER

# As sentence-transformers and PyLate name them.
MODEL_TYPES = ("MultiVectorEncoder", "ColBERT")
_METHOD = "encode_document"
_EXPANDED = "Queries are encoded by sentence-transformers' `encode_query`, which fills them up with [MASK]."
_STANFORD_LENGTH = 220  # doc_maxlen of its ColBERTConfig


def read_modules(handle: str, folder: Path, whole: JsonFile, modules: list[tuple[str, str]]) -> Model:
    """The settings that give the vectors of `encode_document` for a MultiVectorEncoder, or a model of PyLate."""
    is_pylate = whole.fields["model_type"] == "ColBERT"
    order = "Transformer, then any number of Dense"
    if is_pylate:  # what follows is not among its modules
        check_kinds(folder, modules, "Transformer( Dense)*", order)
    else:
        order += ", then MultiVectorMask or nothing, then Normalize or nothing"
        check_kinds(folder, modules, "Transformer( Dense)*( MultiVectorMask)?( Normalize)?", order)
    _check_token_level(folder, modules)
    inner, kinds = modules[0][1], [kind for kind, _ in modules]
    transformer = read_transformer(folder / inner)
    encoder: dict[str, Any] = {
        "handle": os.path.join(handle, inner) if inner else handle,
        "max_seq_length": _document_length(folder / inner, transformer, whole),
    }
    prompt = prompt_with_prefix(whole, "document")
    source = open_encoder(encoder["handle"])
    if prompt:
        check_marker(source, folder / inner, whole, prompt)
        encoder["prompt"] = prompt
    view = text_view("none", is_normalized=is_pylate or "Normalize" in kinds)
    dense = [path for kind, path in modules if kind == "Dense"]
    if dense:
        view["dense"] = check_dense(handle, folder, inner, dense, MODEL_TYPES[0])
    mask = _read_mask(folder, whole, modules)
    skipped = _skip_tokens(mask, "document", source.vocabulary)
    if skipped:
        view["skip_tokens"] = skipped
    expands = transformer.fields.get("query_expansion") or (is_pylate and whole.fields.get("do_query_expansion", True))
    queries = _EXPANDED
    if not expands:
        of_queries = _skip_tokens(mask, "query", source.vocabulary)
        other = f" and {f'`skip_tokens: {json.dumps(of_queries)}`' if of_queries else 'without `skip_tokens`'}"
        queries = (
            "Queries have other settings: encode them with sentence-transformers' `encode_query`, or with "
            f"layerbeam.encode with `prompt: {json.dumps(prompt_with_prefix(whole, 'query'))}`"
            f"{other if of_queries != skipped else ''}."
        )
    return Model(encoder, view, is_plain=False, method=_METHOD, queries=queries)


def read_stanford(handle: str, folder: Path) -> Model:
    """The settings that give the vectors of ColBERT's `docFromText`, of a model as Stanford's program saves it."""
    metadata = JsonFile.read(folder / "artifact.metadata")
    length = metadata.get("doc_maxlen", LENGTH, least=3) or _STANFORD_LENGTH
    source = open_encoder(handle)
    prompt = metadata.fields.get("doc_token_id") or "[unused1]"
    if source.with_marker(str(prompt)).marker != prompt:
        raise EncoderError(
            f"{metadata.path}: doc_token_id is {shown(prompt)}, which is no entry of the encoder's vocabulary in "
            f"brackets, such as [unused1], or its tokenizer is not WordPiece: {ELSEWHERE}"
        )
    view = text_view("none", is_normalized=True)
    if metadata.fields.get("mask_punctuation", True):
        known = set(source.vocabulary)
        view["skip_tokens"] = [mark for mark in string.punctuation if mark in known]
    view["dense"] = [read_dense_config(handle, folder, WITHIN_ENCODER).folder]
    encoder = {
        "handle": handle,
        "max_seq_length": cut_length(folder, JsonFile(metadata.path, {"max_seq_length": length})),
        "prompt": prompt,
    }
    return Model(encoder, view, is_plain=False, method=_METHOD, queries=_EXPANDED)


def _check_token_level(folder: Path, modules: list[tuple[str, str]]) -> None:
    """EncoderError for a Dense or Normalize that is not for the vectors of tokens."""
    # What a missing field means.
    defaults = {"Dense": "token_embeddings", "Normalize": "sentence_embedding"}
    for kind, path in modules:
        if kind in defaults:
            config = JsonFile.read(folder / path / "config.json")
            config = JsonFile(config.path, {"module_input_name": defaults[kind], **config.fields})
            for name in ("module_input_name", "module_output_name"):
                config.check(name, "token_embeddings")


def _document_length(folder: Path, transformer: JsonFile, whole: JsonFile) -> int:
    """The length to which sentence-transformers cuts documents."""
    for file in (transformer, whole):
        length = file.get("document_length", LENGTH, least=3)
        if length is not None:
            transformer = JsonFile(transformer.path, {**transformer.fields, "max_seq_length": length})
            break
    return cut_length(folder, transformer)


def _read_mask(folder: Path, whole: JsonFile, modules: list[tuple[str, str]]) -> JsonFile:
    """The settings of MultiVectorMask; PyLate has them with those of the model, and skips punctuation by default."""
    if whole.fields["model_type"] == "ColBERT":
        words = whole.fields.get("skiplist_words")
        return JsonFile(whole.path, {"skiplist_words": list(string.punctuation) if words is None else words})
    paths = dict(modules)
    if "MultiVectorMask" not in paths:
        return JsonFile(whole.path, {})
    return JsonFile.read(folder / paths["MultiVectorMask"] / "config.json")


def _skip_tokens(mask: JsonFile, task: str, vocabulary: tuple[str, ...]) -> list[str]:
    """The entries of the vocabulary that a MultiVectorMask leaves out of documents or queries: it ignores others."""
    mask.check_names("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
    mask.check("keep_only_token_ids", None)
    words, tasks = mask.fields.get("skiplist_words") or [], mask.fields.get("skiplist_tasks") or ["document"]
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise mask.wrong("skiplist_words", "null or a list of words")
    known = set(vocabulary) if task in ([tasks] if isinstance(tasks, str) else tasks) else set()
    return [word for word in dict.fromkeys(words) if word in known]
