"""`tokenizer.json` of Hugging Face's tokenizers: BERT's own WordPiece, or a tokenizer that the library itself runs.

Source of the format: https://huggingface.co/docs/tokenizers/api/tokenizer
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from layerbeam.transforms.encoders.config_file import MAX_SHOWN, EncoderError, first_line, read_json, shown
from layerbeam.transforms.encoders.source import SPECIAL_TOKENS, SpecialTokens, Vocabulary
from layerbeam.transforms.panics import panics_as_errors

# A word of more characters is one [UNK]; transformers writes 100. The limit keeps TensorFlow Text's buffers small.
_MAX_CHARS_PER_WORD = 1000
_MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")
# What transformers' classes for WordPiece build from a vocabulary, and what TensorFlow Text does.
_OF_BERT: dict[str, Any] = {
    "model.unk_token": "[UNK]",
    "model.continuing_subword_prefix": "##",
    "normalizer.type": "BertNormalizer",
    "normalizer.clean_text": True,
    "normalizer.handle_chinese_chars": True,
    "pre_tokenizer.type": "BertPreTokenizer",
    "post_processor": "[CLS] A [SEP] and [CLS] A [SEP] B [SEP]",
    "the list of entries that model.vocab lacks": [],
}
# Classes of transformers that take a tokenizer.json as it is; "Fast" at the end is left out.
_AS_IN_FILE = ("TokenizersBackend", "PreTrainedTokenizer")
# The special tokens of MPNet's WordPiece; the order is that of SPECIAL_TOKENS.
_OF_MPNET = ("<pad>", "[UNK]", "<s>", "</s>")
# How many times as long a text may become before it is cut.
_MOST_GROWTH = 64
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
    """What a tokenizer.json says.

    `wordpiece`: what decides the tokens of WordPiece besides its vocabulary, by field; None for other models.
    """

    vocabulary: Vocabulary
    lowercase: bool
    wordpiece: Mapping[str, Any] | None = None
    cuts_left: bool = False


def read_tokenizer_json(
    handle: str, path: Path, vocab_size: int | None, do_lower_case: bool | None = None
) -> FastTokenizer:
    """The tokenizer in a file, with at most `vocab_size` entries. EncoderError if texts cannot be cut by it.

    `do_lower_case`: what TensorFlow Text is to do instead of what the file says. Cached per process by size and time of
    the file: that of XLM-R takes a second.
    """
    stat = path.stat()
    return _read(handle, path, vocab_size, do_lower_case, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read(
    handle: str, path: Path, vocab_size: int | None, do_lower_case: bool | None, size: int, modified: int
) -> FastTokenizer:
    content = read_json(handle, path)
    model = content.get("model")
    if not isinstance(model, dict):
        raise _refusal(handle, path, "model", model, "an object")
    kind = model.get("type", "WordPiece")  # the oldest files do not name it
    if kind not in _MODELS:
        raise _refusal(handle, path, "model.type", kind, " or ".join(map(json.dumps, _MODELS)))
    if kind == "WordPiece":
        fast = _wordpiece(handle, path, content, vocab_size, do_lower_case)
    else:
        fast = _of_library(handle, path, content, vocab_size, f"model.type is {json.dumps(kind)}")
    truncation = content.get("truncation")
    return dataclasses.replace(fast, cuts_left=isinstance(truncation, dict) and truncation.get("direction") == "Left")


def check_built(handle: str, path: Path, fast: FastTokenizer, config: Mapping[str, Any]) -> None:
    """Raises EncoderError if transformers does not cut texts as a tokenizer.json of WordPiece says.

    Its classes take the vocabulary and the added tokens from there, and the rest from `config`, the
    tokenizer_config.json. Source: convert_to_native_format of transformers 5.20.2.
    """
    if fast.wordpiece is None or str(config.get("tokenizer_class")).removesuffix("Fast") in _AS_IN_FILE:
        return
    lowercase, strip_accents = config.get("do_lower_case", True), config.get("strip_accents")
    added = config.get("added_tokens_decoder")
    built = _OF_BERT | {
        "normalizer.lowercase": lowercase,
        "normalizer.strip_accents": lowercase if strip_accents is None else strip_accents,
        "normalizer.handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "model.max_input_chars_per_word": 100,
        "added_tokens": _unusual(added.values()) if isinstance(added, dict) else fast.wordpiece["added_tokens"],
    }
    for field in _differing(fast.wordpiece, built):
        raise EncoderError(
            f"{handle}: {path}: {field} is {shown(fast.wordpiece[field])}; transformers ignores it and takes "
            f"{shown(built[field])}, by tokenizer_config.json: correct the file that does not say how the encoder was "
            'trained (with "tokenizer_class": "PreTrainedTokenizerFast" there, tokenizer.json counts)'
        )


def _differing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The fields that are not as wanted."""
    # As JSON, because 1 == True.
    return [field for field in wanted if json.dumps(found[field]) != json.dumps(wanted[field])]


def load_library_tokenizer(
    handle: str, path: Path, special_in_text: str | None = None, *, of_words: bool = False
) -> Any:
    """The `tokenizers.Tokenizer` in a file, which never cuts or pads; thread-safe. EncoderError if there is none.

    `of_words`: for words one by one, where byte-level BPE gets a blank before each, as by transformers'
    `add_prefix_space`.
    """
    stat = path.stat()
    try:
        return _load(str(path), special_in_text == "text", of_words, stat.st_size, stat.st_mtime_ns)
    except ImportError:
        raise EncoderError(
            f"{handle}: {path}: this tokenizer is run by the package tokenizers, which is not installed; run: "
            "pip install 'layerbeam[hf]'"
        ) from None
    except Exception as error:  # the library raises nothing narrower
        raise EncoderError(f"{handle}: {path}: tokenizers cannot read it ({first_line(error)})") from None


@functools.lru_cache(maxsize=2)
@panics_as_errors()
def _load(path: str, special_is_text: bool, of_words: bool, size: int, modified: int) -> Any:
    from tokenizers import Tokenizer, models

    text = Path(path).read_text(encoding="utf-8")
    content = json.loads(text)
    tokenizer = Tokenizer.from_str(json.dumps(_before_words(content)) if of_words else text)
    model = content["model"]
    if model.get("type") == "Unigram":
        # The library reads some scores with an error in the last bit, which decides between equally good pieces of a
        # text: "...." as "..." and "." or the reverse. Python reads them exactly, and transformers takes Python's.
        scores = [(entry, score) for entry, score in model["vocab"]]
        tokenizer.model = models.Unigram(scores, model.get("unk_id"), model.get("byte_fallback", False))
    if model.get("dropout"):
        tokenizer.model.dropout = None  # of training: a text would be cut in another way each time
    tokenizer.encode_special_tokens = special_is_text
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _before_words(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tokenizer with a blank before what it cuts, if it is byte-level."""
    cutter = content.get("pre_tokenizer") or {}
    if cutter.get("type") == "ByteLevel":
        return {**content, "pre_tokenizer": {**cutter, "add_prefix_space": True}}
    if not any(one.get("type") == "ByteLevel" for one in cutter.get("pretokenizers", ())):
        return content
    # Here the setting would put a blank before each part of a word.
    normalizers = [*filter(None, [content.get("normalizer")]), {"type": "Prepend", "prepend": " "}]
    return {**content, "normalizer": {"type": "Sequence", "normalizers": normalizers}}


@panics_as_errors()
def _of_library(
    handle: str, path: Path, content: Mapping[str, Any], vocab_size: int | None, other: str
) -> FastTokenizer:
    """`other`: what TensorFlow Text does not do."""
    if _growth_of(content.get("normalizer")) > _MOST_GROWTH:
        raise _refusal(handle, path, "normalizer", content["normalizer"], f"at most {_MOST_GROWTH} times as long")
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
    because = f"in {path.name}, {other}, which TensorFlow Text does not do"
    normalizer_json = "" if normalizer is None else json.dumps(content["normalizer"])
    return FastTokenizer(
        Vocabulary("tokenizers", path, tuple(entries), special, digest, because=because, normalizer=normalizer_json),
        lowercase,
    )


def load_normalizer(content: Any) -> Any:
    """The normalizer of the library tokenizers that JSON describes. EncoderError if it is none, or makes texts long."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    described = json.dumps({"version": "1.0", "model": model, "normalizer": content})
    try:
        if isinstance(content, dict) and _growth_of(content) <= _MOST_GROWTH:
            return panics_as_errors()(Tokenizer.from_str)(described).normalizer
    except Exception as error:  # the library raises nothing narrower
        raise EncoderError(f"is no normalizer: {first_line(error)}") from None
    raise EncoderError(f"is no normalizer, or makes texts more than {_MOST_GROWTH} times as long")


def _growth_of(normalizer: Any) -> float:
    """How many times as long a normalizer can make a text, at most."""
    return math.prod(map(_growth, _normalizers(normalizer)))


def _normalizers(given: Any) -> Iterator[Mapping[str, Any]]:
    """A normalizer, or those of a sequence."""
    if isinstance(given, dict):
        inner = given.get("normalizers")
        yield given
        for one in inner if isinstance(inner, list) else ():
            yield from _normalizers(one)


def _growth(normalizer: Mapping[str, Any]) -> float:
    """How many times as long it can make a text, at most."""
    if normalizer.get("type") == "Prepend":
        return max(len(str(normalizer.get("prepend"))), 1)
    if normalizer.get("type") == "Replace":
        pattern = normalizer.get("pattern")
        replaced = pattern.get("String") if isinstance(pattern, dict) else None
        return max(len(str(normalizer.get("content"))) / max(len(replaced or ""), 1), 1)
    return 1


def _refusal(handle: str, path: Path, field: str, found: Any, allowed: str) -> EncoderError:
    return EncoderError(
        f"{handle}: {path}: {field} is {shown(found)}; it must be {allowed}: texts would be cut into other tokens than "
        "the encoder was trained on; take another encoder"
    )


def _wordpiece(
    handle: str, path: Path, content: Mapping[str, Any], vocab_size: int | None, do_lower_case: bool | None
) -> FastTokenizer:
    """WordPiece: BERT's own is for TensorFlow Text, any other for the library."""
    refuse = functools.partial(_refusal, handle, path)
    model, added = content["model"], content.get("added_tokens") or []
    ids = _read_ids(model, added, refuse)
    entries = _in_order(ids, vocab_size, refuse)
    _check_entries(handle, path, entries)
    if model.get("unk_token") not in ids:  # the library would reject each text with an unknown word
        raise refuse("model.unk_token", model.get("unk_token"), "an entry of model.vocab")
    names = _OF_MPNET if "<s>" in ids and "[CLS]" not in ids else SPECIAL_TOKENS
    pad, _, cls, sep = (ids.get(name) for name in names)
    special = _special_tokens(content.get("post_processor"), ids, pad)
    around = special and (special.before, {*(special.between or ())}, special.behind)
    is_bert = around == ((cls,), {sep}, (sep,))
    normalizer, pre_tokenizer = _section(content, "normalizer"), _section(content, "pre_tokenizer")
    said, limit = normalizer.get("lowercase"), model.get("max_input_chars_per_word", 100)
    lowercase, strip_accents = said if do_lower_case is None else do_lower_case, normalizer.get("strip_accents")
    fields = {
        "model.unk_token": model["unk_token"],
        "model.continuing_subword_prefix": model.get("continuing_subword_prefix"),
        "model.max_input_chars_per_word": limit,
        **{f"normalizer.{name}": normalizer.get(name) for name in ("type", "clean_text", "handle_chinese_chars")},
        "normalizer.lowercase": said,
        "normalizer.strip_accents": lowercase if strip_accents is None else strip_accents,
        "pre_tokenizer.type": pre_tokenizer.get("type"),
        "post_processor": _OF_BERT["post_processor"] if is_bert else content.get("post_processor"),
        "the list of entries that model.vocab lacks": [name for name in names if name not in ids],
        "added_tokens": _unusual(added),
    }
    in_tensorflow_text = _OF_BERT | {
        "normalizer.lowercase": said is True,
        "normalizer.strip_accents": lowercase,
        "model.max_input_chars_per_word": limit if type(limit) is int and 1 <= limit <= _MAX_CHARS_PER_WORD else 100,
        "added_tokens": [],
    }
    differing = _differing(fields, in_tensorflow_text)
    if differing or special is None:
        other = f"{differing[0]} is {shown(fields[differing[0]])}" if differing else ""
        found = _of_library(handle, path, content, vocab_size, other)
        _check_added(added, found.vocabulary.entries, refuse)
        return dataclasses.replace(found, wordpiece=fields)
    # Not of the file: padding and truncation, which layerbeam does not use, are in it too.
    digest = hashlib.sha256(json.dumps([entries, limit]).encode()).hexdigest()
    vocabulary = Vocabulary("tensorflow_text", path, tuple(entries), special, digest, limit)
    return FastTokenizer(vocabulary, said is True)


def _check_added(added: Iterable[Mapping[str, Any]], entries: Sequence[str], refuse: Refuse) -> None:
    """EncoderError for a token with another id than the library gives it."""
    for token in added:
        if entries[token["id"]] != token["content"]:
            raise refuse("a token of added_tokens", token, "with the id that tokenizers gives it, the next free one")


def _section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a tokenizer.json; empty if there is none."""
    section = content.get(name)
    return section if isinstance(section, dict) else {}


def _check_entries(handle: str, path: Path, entries: Iterable[str]) -> None:
    """EncoderError if an entry of a vocabulary is no Unicode text."""
    try:
        "".join(entries).encode()
    except UnicodeEncodeError as error:
        raise EncoderError(f"{handle}: {path}: model.vocab has an entry that is not Unicode text ({error})") from None


def _unusual(added: Iterable[Any]) -> list[str]:
    """Those of added tokens that the library cuts out of texts: others than special tokens and markers."""
    return sorted(token["content"] for token in added if not is_known_token(token["content"]))


def is_known_token(content: str) -> bool:
    """Whether it is a special token or a marker."""
    return content in _ADDED or _MARKERS.fullmatch(content) is not None


def _read_ids(model: Mapping[str, Any], added: Any, refuse: Refuse) -> dict[str, Any]:
    """The ids of the entries and added tokens of WordPiece, which may have any values."""
    ids = model.get("vocab")
    if not isinstance(ids, dict):
        raise refuse("model.vocab", ids, "an object of entries and their ids")
    if not isinstance(added, list):
        raise refuse("added_tokens", added, "a list")
    for token in added:
        entry = token.get("content") if isinstance(token, dict) else None
        if not isinstance(entry, str) or ids.setdefault(entry, token.get("id")) != token.get("id"):
            raise refuse("a token of added_tokens", token, "a token with its id in model.vocab, or another id")
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
