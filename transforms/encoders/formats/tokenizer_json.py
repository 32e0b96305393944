"""`tokenizer.json` of Hugging Face's tokenizers: BERT's WordPiece, or a tokenizer that the library itself runs.

Source of the format: https://huggingface.co/docs/tokenizers/api/tokenizer
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from layerbeam.transforms.encoders.config_file import MAX_SHOWN, EncoderError, first_line, read_json, shown
from layerbeam.transforms.encoders.source import SPECIAL_TOKENS, SpecialTokens, Vocabulary
from layerbeam.transforms.panics import panics_as_errors

# A word of more characters is one [UNK]; transformers writes 100. The limit keeps TensorFlow Text's buffers small.
_MAX_CHARS_PER_WORD = 1000
_LIBRARY_MODELS = ("BPE", "Unigram", "WordLevel")
# The special tokens of MPNet's WordPiece; the order is that of SPECIAL_TOKENS.
_OF_MPNET = ("<pad>", "[UNK]", "<s>", "</s>")
# The error for a field, what was found and what is allowed.
Refuse: TypeAlias = Callable[[str, Any, str], EncoderError]
_Token: TypeAlias = tuple[str, int]  # its entry and id
_Part: TypeAlias = tuple[str, str, int]  # of a template: kind, name, segment
_FIRST_TEXT: _Part = ("Sequence", "A", 0)
_ADDED = (*SPECIAL_TOKENS, "[MASK]", "<pad>", "<unk>", "<s>", "</s>", "<mask>")
# What ColBERT's models put before queries and documents. In a text it is cut, as are the tokens above.
_MARKERS = re.compile(r"\[(unused\d+|Q|D)\] ?")


@dataclasses.dataclass(frozen=True)
class FastTokenizer:
    """What a tokenizer.json says. `strip_accents`: None if that follows `lowercase`."""

    vocabulary: Vocabulary
    lowercase: bool
    strip_accents: bool | None


def read_tokenizer_json(handle: str, path: Path, vocab_size: int | None) -> FastTokenizer:
    """The tokenizer in a file, with at most `vocab_size` entries. EncoderError if texts cannot be cut by it.

    Cached per process by size and time of the file: that of XLM-R takes a second.
    """
    stat = path.stat()
    return _read(handle, path, vocab_size, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read(handle: str, path: Path, vocab_size: int | None, size: int, modified: int) -> FastTokenizer:
    content = read_json(handle, path)
    model = content.get("model")
    if isinstance(model, dict) and model.get("type") in _LIBRARY_MODELS:
        return _of_library(handle, path, content, vocab_size)
    return _wordpiece(handle, path, content, vocab_size)


def load_library_tokenizer(handle: str, path: Path) -> Any:
    """The `tokenizers.Tokenizer` in a file, which never cuts or pads; thread-safe. EncoderError if there is none."""
    stat = path.stat()
    try:
        return _load(str(path), stat.st_size, stat.st_mtime_ns)
    except ImportError:
        raise EncoderError(
            f"{handle}: {path}: this tokenizer is run by the package tokenizers, which is not installed; run: "
            "pip install 'layerbeam[hf]'"
        ) from None
    except Exception as error:  # the library raises nothing narrower
        raise EncoderError(f"{handle}: {path}: tokenizers cannot read it ({first_line(error)})") from None


@functools.lru_cache(maxsize=2)
@panics_as_errors()
def _load(path: str, size: int, modified: int) -> Any:
    from tokenizers import Tokenizer, models

    content = Path(path).read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(content)
    model = json.loads(content)["model"]
    if model.get("type") == "Unigram":
        # The library reads some scores with an error in the last bit, which decides between equally good pieces of a
        # text: "...." as "..." and "." or the reverse. Python reads them exactly, and transformers takes Python's.
        scores = [(entry, score) for entry, score in model["vocab"]]
        tokenizer.model = models.Unigram(scores, model.get("unk_id"), model.get("byte_fallback", False))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@panics_as_errors()
def _of_library(handle: str, path: Path, content: Mapping[str, Any], vocab_size: int | None) -> FastTokenizer:
    tokenizer = load_library_tokenizer(handle, path)
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    last = max(ids.values(), default=-1)
    if vocab_size is not None and last >= vocab_size:
        raise EncoderError(
            f"{handle}: {path}: has ids up to {last:,}, the word embedding (vocab_size) has {vocab_size:,} rows: take "
            "the tokenizer.json that belongs to the weights"
        )
    entries = [""] * (last + 1)
    for entry, number in ids.items():
        entries[number] = entry
    special = _special_tokens(content.get("post_processor"), ids, ids.get("<pad>", ids.get("[PAD]")))
    if special is None:
        raise _refusal(
            handle, path, "post_processor", content.get("post_processor"), "special tokens before and behind a text"
        )
    normalizer = tokenizer.normalizer
    lowercase = normalizer is not None and "A" not in normalizer.normalize_str("A")
    decisive = {name: value for name, value in content.items() if name not in ("version", "padding", "truncation")}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return FastTokenizer(Vocabulary("tokenizers", path, tuple(entries), special, digest), lowercase, None)


def _refusal(handle: str, path: Path, field: str, found: Any, allowed: str) -> EncoderError:
    return EncoderError(
        f"{handle}: {path}: {field} is {shown(found)}; it must be {allowed}: texts would be cut into other tokens than "
        "the encoder was trained on; take another encoder"
    )


def _wordpiece(handle: str, path: Path, content: Mapping[str, Any], vocab_size: int | None) -> FastTokenizer:
    """BERT's WordPiece, which TensorFlow Text runs."""
    refuse = functools.partial(_refusal, handle, path)

    def section(name: str) -> Mapping[str, Any]:
        found = content.get(name)
        if not isinstance(found, dict):
            raise refuse(name, found, "an object")
        return found

    model, normalizer = section("model"), section("normalizer")
    limit = model.get("max_input_chars_per_word", 100)
    needed: dict[str, tuple[Any, Sequence[Any]]] = {
        # The oldest files do not name the model.
        "model.type": (model.get("type", "WordPiece"), ["WordPiece", *_LIBRARY_MODELS]),
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
    ids = _read_ids(model, content.get("added_tokens") or [], refuse)
    entries = _in_order(ids, vocab_size, refuse)
    try:
        "".join(entries).encode()
    except UnicodeEncodeError as error:
        raise EncoderError(f"{handle}: {path}: model.vocab has an entry that is not Unicode text ({error})") from None
    names = _OF_MPNET if "<s>" in ids and "[CLS]" not in ids else SPECIAL_TOKENS
    missing = [token for token in names if token not in ids]
    if missing:
        raise EncoderError(f"{handle}: {path}: no entry {', '.join(missing)} among {len(ids):,} of model.vocab")
    pad, _, cls, sep = names
    special = _special_tokens(content.get("post_processor"), ids, ids[pad])
    around = None if special is None else (special.before, {*(special.between or ())}, special.behind)
    if special is None or around != ((ids[cls],), {ids[sep]}, (ids[sep],)):
        pair = f"{cls} A {sep} and {cls} A {sep} B {sep}"
        raise refuse("post_processor", content.get("post_processor"), pair)

    # Not of the file: padding and truncation, which layerbeam does not use, are in it too.
    digest = hashlib.sha256(json.dumps([entries, limit]).encode()).hexdigest()
    vocabulary = Vocabulary("tensorflow_text", path, tuple(entries), special, digest, limit)
    return FastTokenizer(vocabulary, normalizer["lowercase"], normalizer.get("strip_accents"))


def _read_ids(model: Mapping[str, Any], added: Any, refuse: Refuse) -> dict[str, Any]:
    """The ids of the entries and added tokens of WordPiece, which may have any values."""
    ids = model.get("vocab")
    if not isinstance(ids, dict):
        raise refuse("model.vocab", ids, "an object of entries and their ids")
    if not isinstance(added, list):
        raise refuse("added_tokens", added, "a list")
    for token in added:
        entry = token.get("content") if isinstance(token, dict) else None
        is_known = entry in _ADDED or (isinstance(entry, str) and _MARKERS.fullmatch(entry))
        if not is_known or ids.setdefault(entry, token.get("id")) != token.get("id"):
            raise refuse(
                "a token of added_tokens",
                token,
                f"one of {', '.join(_ADDED)}, [unused1], [Q], [D] with its id in model.vocab (others are cut out of "
                "the text before WordPiece; remove them from the file if your texts do not contain them)",
            )
    return ids


def _in_order(ids: Mapping[str, Any], vocab_size: int | None, refuse: Refuse) -> list[str]:
    """The entries in the order of their ids; "" for an id of none."""
    entries, rows = [""] * len(ids), 1 << 31 if vocab_size is None else vocab_size
    for entry, number in ids.items():
        if type(number) is not int or not 0 <= number < rows:
            raise refuse(f"the id of {entry[:MAX_SHOWN]!r}", number, f"from 0 to {rows - 1:,} (vocab_size)")
        # A vocab.txt with duplicate entries leaves gaps between the ids.
        entries += [""] * (number + 1 - len(entries))
        if entries[number]:
            raise refuse(f"the id of {entry[:MAX_SHOWN]!r}", number, f"another than that of {entries[number]!r}")
        entries[number] = entry
    while entries and not entries[-1]:
        entries.pop()
    return entries


def check_same_entries(handle: str, vocabulary: Vocabulary, other: Vocabulary) -> None:
    """Raises EncoderError if vocab.txt and tokenizer.json give an entry different ids."""
    # Of equal entries in vocab.txt the last one counts.
    ids, others = ({entry: index for index, entry in enumerate(v.entries) if entry} for v in (vocabulary, other))
    differing = [entry for entry in ids | others if ids.get(entry) != others.get(entry)]
    if differing:
        entry = differing[0]
        raise EncoderError(
            f"{handle}: vocab.txt and tokenizer.json differ in {len(differing):,} entries, such as "
            f"{entry[:MAX_SHOWN]!r}: id {ids.get(entry, 'missing')} and {others.get(entry, 'missing')}; remove the "
            "one that does not belong to the weights (transformers reads tokenizer.json)"
        )


def _special_tokens(processor: Any, ids: Mapping[str, int], pad: int | None) -> SpecialTokens | None:
    """The special tokens that a post-processor adds to texts; None if it does something else.

    `pad`: the id of padding; None for any, since padding has no influence.
    """
    try:
        before, between, behind, has_second_segment = _around(processor)
        tokens = [*before, *(between or []), *behind]
        if [ids[token] for token, _ in tokens] != [number for _, number in tokens]:
            return None
    except (TypeError, KeyError, ValueError, IndexError):
        return None
    first = tokens[0][1] if tokens else 0
    return SpecialTokens(
        before=tuple(number for _, number in before),
        between=None if between is None else tuple(number for _, number in between),
        behind=tuple(number for _, number in behind),
        pad=first if pad is None else pad,
        has_second_segment=has_second_segment,
    )


def _around(processor: Any) -> tuple[list[_Token], list[_Token] | None, list[_Token], bool]:
    """(tokens before a text, between two, behind; whether the second is segment 1). ValueError for another form."""
    if processor is None:
        return [], [], [], True
    steps = processor["processors"] if processor["type"] == "Sequence" else [processor]
    steps = [step for step in steps if step["type"] != "ByteLevel"]  # it only corrects offsets
    if not steps:
        return [], [], [], True
    (step,) = steps
    if step["type"] in ("BertProcessing", "RobertaProcessing"):
        cls, sep = ((step[name][0], step[name][1]) for name in ("cls", "sep"))
        is_bert = step["type"] == "BertProcessing"
        return [cls], [sep] if is_bert else [sep, sep], [sep], is_bert
    if step["type"] != "TemplateProcessing":
        raise ValueError(f"no post-processor of special tokens: {step['type']}")
    single, pair = (_parts(step[name]) for name in ("single", "pair"))
    place = single.index(_FIRST_TEXT)
    before, behind = single[:place], single[place + 1 :]
    if any((kind, segment) != ("SpecialToken", 0) for kind, _, segment in before + behind):
        raise ValueError("not special tokens around one text")

    def tokens(parts: list[_Part]) -> list[_Token]:
        ids = (step["special_tokens"][name]["ids"] for _, name, _ in parts)
        return [(name, number) for (_, name, _), (number,) in zip(parts, ids, strict=True)]

    between, segment = _between(pair, before, behind)
    return tokens(before), None if between is None else tokens(between), tokens(behind), segment == 1


def _between(pair: list[_Part], before: list[_Part], behind: list[_Part]) -> tuple[list[_Part] | None, int]:
    """(special tokens between two texts; the second's segment). None if pairs differ from texts in more than these."""
    first = [*before, _FIRST_TEXT]
    for segment in (0, 1):
        second = [("Sequence", "B", segment), *((kind, name, segment) for kind, name, _ in behind)]
        between = pair[len(first) : len(pair) - len(second)]
        is_special = all((kind, at) == ("SpecialToken", 0) for kind, _, at in between)
        if is_special and pair == [*first, *between, *second]:
            return between, segment
    return None, 0


def _parts(template: Any) -> list[_Part]:
    """(kind, name, segment) of each part of a template."""
    return [(kind, part["id"], part["type_id"]) for item in template for kind, part in item.items()]
