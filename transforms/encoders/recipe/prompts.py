"""The prompts of a model's folder, and the token with which one may begin, as sentence-transformers reads them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from layerbeam.transforms.encoders.config_file import ELSEWHERE, EncoderError, JsonFile, shown
from layerbeam.transforms.encoders.source import SPECIAL_TOKENS, EncoderSource


def read_prompt(file: JsonFile, name: str) -> str:
    """The text of a prompt, mostly empty."""
    prompts = file.fields.get("prompts")
    prompt = (prompts.get(name) if isinstance(prompts, dict) else None) or ""
    if not isinstance(prompt, str) or any("\ud800" <= character <= "\udfff" for character in prompt):
        raise EncoderError(f"{file.path}: prompts.{name} is {shown(prompt)}; it must be a text")
    return prompt


def prompt_with_prefix(file: JsonFile, name: str) -> str:
    """The text of a prompt after the prefix that PyLate saves, which the prompt may have already."""
    prefix = file.fields.get(f"{name}_prefix") or ""
    if not isinstance(prefix, str):
        raise file.wrong(f"{name}_prefix", "null or a text")
    return prefix + read_prompt(file, name).removeprefix(prefix)


def check_marker(source: EncoderSource, folder: Path, whole: JsonFile, prompt: str) -> None:
    """EncoderError if sentence-transformers begins the texts with another token than layerbeam does."""
    ours, theirs = source.with_marker(prompt).marker, _marker(source, folder, whole, prompt)
    if theirs == ours or (theirs and not ours and _is_one_piece(source, theirs)):
        return
    difference = (
        "layerbeam cuts into several, and sentence-transformers takes for one"
        if theirs
        else "is one to layerbeam, and sentence-transformers cuts into several"
    )
    raise EncoderError(
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
