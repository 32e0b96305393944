"""`layerbeam init --from` with a late interaction model: the settings that give the vectors of its documents.

Those of sentence-transformers' `encode_document`, for what it, PyLate and Stanford's ColBERT save.
"""

from __future__ import annotations

import json
import os
import string
from pathlib import Path
from typing import Any

import pyarrow as pa

from layerbeam.pipeline.config.model_folder import (
    ELSEWHERE,
    LENGTH,
    JsonFile,
    Model,
    check_dense,
    check_kinds,
    cut_length,
    read_prompt,
    read_transformer,
    text_view,
)
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.encoders import EncoderError, EncoderSource, open_encoder
from layerbeam.transforms.encoders.config_file import shown
from layerbeam.transforms.encoders.source import SPECIAL_TOKENS
from layerbeam.transforms.views import WITHIN_ENCODER

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
    prompt = _prompt_with_prefix(whole, "document")
    source = _open(encoder["handle"])
    if prompt:
        _check_marker(source, folder / inner, whole, prompt)
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
            f"layerbeam.encode with `prompt: {json.dumps(_prompt_with_prefix(whole, 'query'))}`"
            f"{other if of_queries != skipped else ''}."
        )
    return Model(encoder, view, is_plain=False, method=_METHOD, queries=queries)


def read_stanford(handle: str, folder: Path) -> Model:
    """The settings that give the vectors of ColBERT's `docFromText`, of a model as Stanford's program saves it."""
    metadata = JsonFile.read(folder / "artifact.metadata")
    length = metadata.get("doc_maxlen", LENGTH, least=3) or _STANFORD_LENGTH
    source = _open(handle)
    prompt = metadata.fields.get("doc_token_id") or "[unused1]"
    if source.with_marker(str(prompt)).marker != prompt:
        raise UsageError(
            f"{metadata.path}: doc_token_id is {shown(prompt)}, which is no entry of the encoder's vocabulary in "
            f"brackets, such as [unused1], or its tokenizer is not WordPiece: {ELSEWHERE}"
        )
    view = text_view("none", is_normalized=True)
    if metadata.fields.get("mask_punctuation", True):
        known = set(source.vocabulary)
        view["skip_tokens"] = [mark for mark in string.punctuation if mark in known]
    view["dense"] = check_dense(handle, folder, "", [WITHIN_ENCODER], MODEL_TYPES[0])
    encoder = {
        "handle": handle,
        "max_seq_length": cut_length(folder, JsonFile(metadata.path, {"max_seq_length": length})),
        "prompt": prompt,
    }
    return Model(encoder, view, is_plain=False, method=_METHOD, queries=_EXPANDED)


def _open(handle: str) -> EncoderSource:
    try:
        return open_encoder(handle)
    except EncoderError as error:
        raise UsageError(str(error)) from error


def _check_token_level(folder: Path, modules: list[tuple[str, str]]) -> None:
    """UsageError for a Dense or Normalize that is not for the vectors of tokens."""
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


def _check_marker(source: EncoderSource, folder: Path, whole: JsonFile, prompt: str) -> None:
    """UsageError if sentence-transformers begins the texts with another token than layerbeam does."""
    ours, theirs = source.with_marker(prompt).marker, _marker(source, folder, whole, prompt)
    if theirs == ours or (theirs and not ours and _is_one_piece(source, theirs)):
        return
    difference = (
        "layerbeam cuts into several, and sentence-transformers takes for one"
        if theirs
        else "is one to layerbeam, and sentence-transformers cuts into several"
    )
    raise UsageError(
        f"{whole.path}: the prompt {shown(prompt)} begins with the token {shown(theirs or ours)}, which {difference}; "
        f"it must be an added token of the tokenizer such as [unused1], or plain text: {ELSEWHERE}"
    )


def _marker(source: EncoderSource, folder: Path, whole: JsonFile, prompt: str) -> str:
    """The token with which a prompt begins to sentence-transformers; empty if that is text."""
    fast = JsonFile.read(folder / "tokenizer.json", optional=True).fields.get("added_tokens")
    slow = JsonFile.read(folder / "tokenizer_config.json", optional=True).fields.get("added_tokens_decoder")
    tokens = [*(fast or ()), *(slow.values() if isinstance(slow, dict) else ())]
    tokens = [token for token in tokens if isinstance(token, dict) and isinstance(token.get("content"), str)]
    prefix = whole.fields.get("document_prefix")
    if prefix:  # PyLate's, which it adds to the tokenizer if it is an entry
        known = {*source.vocabulary, *(token["content"] for token in tokens)}
        return next((marker for marker in (prefix, *prefix.split()[:1]) if marker in known), "")
    added = {*SPECIAL_TOKENS, "[MASK]", *(token["content"] for token in tokens if not token.get("normalized"))}
    return max((marker for marker in added if marker and prompt.startswith(marker)), key=len, default="")


def _is_one_piece(source: EncoderSource, entry: str) -> bool:
    # Imported here: it loads Beam.
    from layerbeam.transforms.tokenize.tokenizer import load_text_tokenizer

    return len(load_text_tokenizer(source).tokenize(pa.array([entry], pa.string())).ids) == 1


def _prompt_with_prefix(file: JsonFile, name: str) -> str:
    """The text of a prompt after the prefix that PyLate saves, which the prompt may have already."""
    prefix = file.fields.get(f"{name}_prefix") or ""
    if not isinstance(prefix, str):
        raise file.wrong(f"{name}_prefix", "null or a text")
    return prefix + read_prompt(file, name).removeprefix(prefix)
