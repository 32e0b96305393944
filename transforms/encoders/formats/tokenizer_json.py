"""`tokenizer.json` of Hugging Face's tokenizers: a BERT's vocabulary and casing, or the reason why it is not BERT's.

Source of the format: https://huggingface.co/docs/tokenizers/api/tokenizer
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerbeam.transforms.encoders.source import SPECIAL_TOKENS, EncoderError, Vocabulary, read_json

_MAX_SHOWN = 80
# A word of more characters is one [UNK]; transformers writes 100. The limit keeps TensorFlow Text's buffers small.
_MAX_CHARS_PER_WORD = 1000


@dataclasses.dataclass(frozen=True)
class FastTokenizer:
    """What a tokenizer.json says. `strip_accents`: None if that follows `lowercase`."""

    vocabulary: Vocabulary
    lowercase: bool
    strip_accents: bool | None


def read_tokenizer_json(handle: str, path: Path, vocab_size: int) -> FastTokenizer:
    """The tokenizer in a file. EncoderError unless it is BERT's WordPiece with at most `vocab_size` entries."""
    content = read_json(handle, path)

    def refuse(field: str, found: Any, allowed: str) -> EncoderError:
        shown = json.dumps(found)
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
        return EncoderError(
            f"{handle}: {path}: {field} is {shown}; it must be {allowed}: texts would be cut into other tokens than "
            "the encoder was trained on; take another encoder"
        )

    def section(name: str) -> Mapping[str, Any]:
        found = content.get(name)
        if not isinstance(found, dict):
            raise refuse(name, found, "an object")
        return found

    model, normalizer = section("model"), section("normalizer")
    limit = model.get("max_input_chars_per_word", 100)
    needed: dict[str, tuple[Any, Sequence[Any]]] = {
        # The oldest files do not name the model.
        "model.type": (model.get("type", "WordPiece"), ["WordPiece"]),
        "model.unk_token": (model.get("unk_token"), ["[UNK]"]),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), ["##"]),
        "normalizer.type": (normalizer.get("type"), ["BertNormalizer"]),
        "normalizer.clean_text": (normalizer.get("clean_text"), [True]),
        "normalizer.handle_chinese_chars": (normalizer.get("handle_chinese_chars"), [True]),
        "normalizer.lowercase": (normalizer.get("lowercase"), [True, False]),
        "normalizer.strip_accents": (normalizer.get("strip_accents"), [None, True, False]),
        "pre_tokenizer.type": (section("pre_tokenizer").get("type"), ["BertPreTokenizer"]),
    }
    for field, (found, allowed) in needed.items():
        # As JSON, because 1 == True.
        if json.dumps(found) not in map(json.dumps, allowed):
            raise refuse(field, found, " or ".join(map(json.dumps, allowed)))
    if type(limit) is not int or not 1 <= limit <= _MAX_CHARS_PER_WORD:
        raise refuse("model.max_input_chars_per_word", limit, f"a number from 1 to {_MAX_CHARS_PER_WORD:,}")

    ids = model.get("vocab")
    if not isinstance(ids, dict):
        raise refuse("model.vocab", ids, "an object of entries and their ids")
    added = content.get("added_tokens") or []
    if not isinstance(added, list):
        raise refuse("added_tokens", added, "a list")
    for token in added:
        entry = token.get("content") if isinstance(token, dict) else None
        if entry not in (*SPECIAL_TOKENS, "[MASK]") or ids.setdefault(entry, token.get("id")) != token.get("id"):
            raise refuse(
                "a token of added_tokens",
                token,
                "one of [PAD], [UNK], [CLS], [SEP], [MASK] with its id in model.vocab (others are cut out of the text "
                "before WordPiece; remove them from the file if your texts do not contain them)",
            )
    entries = [""] * len(ids)
    for entry, number in ids.items():
        if type(number) is not int or not 0 <= number < vocab_size:
            raise refuse(f"the id of {entry[:_MAX_SHOWN]!r}", number, f"from 0 to {vocab_size - 1:,} (vocab_size)")
        # A vocab.txt with duplicate entries leaves gaps between the ids.
        entries += [""] * (number + 1 - len(entries))
        if entries[number]:
            raise refuse(f"the id of {entry[:_MAX_SHOWN]!r}", number, f"another than that of {entries[number]!r}")
        entries[number] = entry
    while entries and not entries[-1]:
        entries.pop()
    try:
        "".join(entries).encode()
    except UnicodeEncodeError as error:
        raise EncoderError(f"{handle}: {path}: model.vocab has an entry that is not Unicode text ({error})") from None
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise EncoderError(f"{handle}: {path}: no entry {', '.join(missing)} among {len(ids):,} of model.vocab")
    if not _adds_cls_and_sep(content.get("post_processor"), ids):
        raise refuse("post_processor", content.get("post_processor"), "[CLS] A [SEP] and [CLS] A [SEP] B [SEP]")

    # Not of the file: padding and truncation, which layerbeam does not use, are in it too.
    digest = hashlib.sha256(json.dumps([entries, limit]).encode()).hexdigest()
    return FastTokenizer(
        Vocabulary(tuple(entries), digest, limit), normalizer["lowercase"], normalizer.get("strip_accents")
    )


def check_same_entries(handle: str, vocabulary: Vocabulary, other: Vocabulary) -> None:
    """Raises EncoderError if vocab.txt and tokenizer.json give an entry different ids."""
    # Of equal entries in vocab.txt the last one counts.
    ids, others = ({entry: index for index, entry in enumerate(v.entries) if entry} for v in (vocabulary, other))
    differing = [entry for entry in ids | others if ids.get(entry) != others.get(entry)]
    if differing:
        entry = differing[0]
        raise EncoderError(
            f"{handle}: vocab.txt and tokenizer.json differ in {len(differing):,} entries, such as "
            f"{entry[:_MAX_SHOWN]!r}: id {ids.get(entry, 'missing')} and {others.get(entry, 'missing')}; remove the "
            "one that does not belong to the weights (transformers reads tokenizer.json)"
        )


def _adds_cls_and_sep(processor: Any, ids: Mapping[str, int]) -> bool:
    """Whether a post-processor makes BERT's sequences of one and of two texts."""
    if not isinstance(processor, dict):
        return False
    tokens = {name: ids[name] for name in ("[CLS]", "[SEP]")}
    if processor.get("type") == "BertProcessing":
        return {"cls": processor.get("cls"), "sep": processor.get("sep")} == {
            "cls": ["[CLS]", tokens["[CLS]"]],
            "sep": ["[SEP]", tokens["[SEP]"]],
        }

    def special(name: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    first = [special("[CLS]", 0), {"Sequence": {"id": "A", "type_id": 0}}, special("[SEP]", 0)]
    return (
        processor.get("type") == "TemplateProcessing"
        and processor.get("single") == first
        and processor.get("pair") == [*first, {"Sequence": {"id": "B", "type_id": 1}}, special("[SEP]", 1)]
        and processor.get("special_tokens")
        == {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in tokens.items()}
    )
