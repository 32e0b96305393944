"""An opened encoder as plain values, and what all source formats share: JSON, vocabulary, casing, fingerprint."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from layerbeam.transforms.encoders.bert import Activation, BertConfig

Kind = Literal["huggingface", "google", "savedmodel"]
Engine = Literal["native", "savedmodel"]

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

_SMALL_VOCABULARY = 0.9
# As in Google's reference, a longer word is one [UNK].
MAX_CHARS_PER_WORD = 200


class EncoderError(ValueError):
    """An encoder cannot be used: handle, file, field, what was found, what is allowed, what to do."""


@dataclasses.dataclass(frozen=True)
class LocalFolder:
    """An encoder's folder on this machine.

    `names`: those of the folder, archive or address, the nearest first; they may show the casing. `copy`: the folder in
    a cache that can be deleted to fetch it again, `folder` or a parent of it; None if it is not a copy.
    """

    folder: Path
    names: tuple[str, ...]
    copy: Path | None = None


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The entries in the order of their ids, a hash of all that decides the tokens, and the longest word."""

    entries: tuple[str, ...]
    sha256: str
    max_chars_per_word: int = MAX_CHARS_PER_WORD


@dataclasses.dataclass(frozen=True)
class EncoderSource:
    """An encoder that is opened but not loaded: plain values that are sent to workers.

    `folder`: its files on this machine. `engine_because`: the reason for `engine`. `config`: None if it is not plain
    BERT. `layers`: those it can give, ascending, from 0 to `num_hidden_layers`. `max_position_embeddings`: None if
    unknown. `vocab_size`: rows of the word embedding; None if unknown. `vocabulary`: in the order of the ids.
    `max_chars_per_word`: a longer word is one [UNK]. `casing_from`: the source of `do_lower_case`. `fingerprint`:
    SHA-256 of weights, vocabulary and configuration.
    """

    handle: str
    kind: Kind
    engine: Engine
    engine_because: str
    folder: str
    weight_files: tuple[str, ...]
    config: BertConfig | None
    hidden_size: int
    num_hidden_layers: int
    layers: tuple[int, ...]
    max_position_embeddings: int | None
    vocab_size: int | None
    vocabulary: tuple[str, ...] = dataclasses.field(repr=False)
    max_chars_per_word: int
    do_lower_case: bool
    casing_from: str
    has_pooler: bool
    fingerprint: str

    @property
    def pad_id(self) -> int:
        """The id of [PAD]; of equal entries the last one, as in Google's reference."""
        return len(self.vocabulary) - 1 - self.vocabulary[::-1].index("[PAD]")

    def describe(self) -> dict[str, Any]:
        """The encoder's entry in a manifest, which does not depend on where the files are."""
        fields = ("kind", "engine", "engine_because", "fingerprint", "do_lower_case", "casing_from", "has_pooler")
        sizes = ("hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size")
        described = {field: getattr(self, field) for field in ("handle", *fields)}
        described |= {"vocabulary_size": len(self.vocabulary)} | {field: getattr(self, field) for field in sizes}
        return described | (dataclasses.asdict(self.config) if self.config else {})

    def unsupported_reason(self, layers: Iterable[int], *, pooler: bool) -> str | None:
        """What the encoder cannot give, in one sentence; None if it can give all of this."""
        if pooler and not self.has_pooler:
            return "it has no pooled output (no pooler among its weights or outputs); take cls, mean or max of a layer"
        missing = sorted(set(layers) - set(self.layers))
        given = f"layers {self.layers[0]} to {self.layers[-1]}"
        if not missing:
            return None
        if self.layers == (self.num_hidden_layers,):
            return (
                "the SavedModel has no encoder_outputs: it gives its last layer, -1, and the pooled output, not layer "
                f"{missing[0]}"
            )
        if missing == [0] and self.engine == "savedmodel":
            native = "; engine native has it" if self.config else ""
            return f"a SavedModel does not give layer 0, the embedding layer's output; it gives {given}{native}"
        return f"there is no layer {missing[0]}; it gives {given}"

    def check(self, layers: Iterable[int], *, pooler: bool) -> None:
        """Raises EncoderError if the encoder cannot give this."""
        reason = self.unsupported_reason(layers, pooler=pooler)
        if reason is not None:
            raise EncoderError(f"{self.handle}: {reason}")


def native_source(*, config: BertConfig, **rest: Any) -> EncoderSource:
    """A plain BERT for the native engine; sizes and layers follow from its configuration."""
    return EncoderSource(
        engine="native",
        config=config,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        layers=tuple(range(config.num_hidden_layers + 1)),
        max_position_embeddings=config.max_position_embeddings,
        **rest,
    )


def common_fields(
    handle: str,
    located: LocalFolder,
    weight_files: Sequence[str],
    vocabulary: Vocabulary,
    vocab_size: int | None,
    do_lower_case: tuple[bool | None, tuple[bool, str] | None],
    config: BertConfig | None,
) -> dict[str, Any]:
    """The fields of an EncoderSource that all formats find in the same way.

    `vocab_size`: rows of the word embedding; None if unknown. `do_lower_case`: the setting; what the encoder's files
    say, and where. `config`: the part of the fingerprint that is in no weight file.
    """
    setting, declared = do_lower_case
    decided = declared if setting is None else (setting, "the setting")
    lower_case, casing_from = decided or lower_cases(located.names, vocabulary.entries)
    fingerprint = {
        "weights": [sha256_of(Path(file)) for file in weight_files],
        "vocabulary": vocabulary.sha256,
        "config": dataclasses.asdict(config) if config else None,
    }
    return {
        "handle": handle,
        "folder": str(located.folder),
        "weight_files": tuple(weight_files),
        "vocab_size": vocab_size,
        "vocabulary": vocabulary.entries,
        "max_chars_per_word": vocabulary.max_chars_per_word,
        "do_lower_case": lower_case,
        "casing_from": casing_from,
        "fingerprint": hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest(),
    }


def vocabulary_note(encoder: Mapping[str, Any]) -> str | None:
    """What to check if the vocabulary is much smaller than the word embedding. `encoder`: as `describe` gives it.

    >>> vocabulary_note({"handle": "bert", "vocabulary_size": 28_996, "vocab_size": 29_056})
    >>> vocabulary_note({"handle": "bert", "vocabulary_size": 100, "vocab_size": 1_555})[:73]
    'the vocabulary of bert has 100 entries, its word embedding has 1,555 rows'
    """
    entries, rows = encoder["vocabulary_size"], encoder.get("vocab_size")
    # Embeddings are padded to a multiple of 64 or 128; a model may have a few rows more for later use.
    if rows is None or entries >= _SMALL_VOCABULARY * rows:
        return None
    return (
        f"the vocabulary of {encoder['handle']} has {entries:,} entries, its word embedding has {rows:,} rows: check "
        "that vocab.txt is complete and belongs to the weights; words that it lacks become [UNK]"
    )


def at(handle: str, path: Path) -> str:
    """The start of an error message: the handle, with the path unless that is the handle itself.

    >>> at("bert.zip", Path("bert.zip")), at("hf://org/bert", Path("/cache/config.json"))
    ('bert.zip', 'hf://org/bert: /cache/config.json')
    """
    return handle if handle.rstrip("/") == str(path) else f"{handle}: {path}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if the message is empty.

    >>> first_line(ValueError("not opened:\\n- as gz\\n- as xz")), first_line(EOFError())
    ('not opened', 'EOFError')
    """
    return next(iter(str(error).splitlines()), "").rstrip(":") or type(error).__name__


def bert_config(
    handle: str, path: Path, fields: Mapping[str, Any], *, hidden_act: Activation, layer_norm_eps: float
) -> BertConfig:
    """The configuration in a config.json or bert_config.json. EncoderError unless its sizes are a BERT's."""
    sizes = [field.name for field in dataclasses.fields(BertConfig) if field.type == "int"]
    for field in sizes:
        if type(fields.get(field)) is not int or fields[field] < 1:
            raise wrong_field(handle, path, fields, field, "a positive integer")
    if fields["hidden_size"] % fields["num_attention_heads"]:
        heads = fields["num_attention_heads"]
        raise wrong_field(handle, path, fields, "hidden_size", f"a multiple of num_attention_heads, {heads}")
    return BertConfig(**{field: fields[field] for field in sizes}, hidden_act=hidden_act, layer_norm_eps=layer_norm_eps)


def wrong_field(handle: str, path: Path, fields: Mapping[str, Any], field: str, allowed: str) -> EncoderError:
    """The error for a field of a JSON file."""
    found = json.dumps(fields[field]) if field in fields else "missing"
    return EncoderError(f"{handle}: {path}: {field} is {found}; it must be {allowed}: take another encoder")


def read_json(handle: str, path: Path) -> dict[str, Any]:
    """The object in a JSON file. EncoderError if it holds none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{handle}: {path}: is not JSON ({error}); download it again") from None
    if not isinstance(content, dict):
        raise EncoderError(f"{handle}: {path}: must hold a JSON object, not {str(content)[:40]!r}; download it again")
    return content


def read_vocabulary(handle: str, path: Path, vocab_size: int | None) -> Vocabulary:
    """The entries of a vocab.txt, one per line.

    Lines end with `\\n` or `\\r\\n` only: real vocabularies hold U+2028 and the like.

    `vocab_size`: rows of the word embedding; None if unknown. EncoderError if it cannot be used.
    """
    if not path.is_file():
        raise EncoderError(f"{handle}: {path} is missing; it holds the vocabulary, one entry per line: download it too")
    try:
        entries = [line.removesuffix("\r") for line in path.read_bytes().decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise EncoderError(f"{handle}: {path}: is not UTF-8 at byte {error.start}; download it again") from None
    while entries and not entries[-1]:
        entries.pop()
    missing = [token for token in SPECIAL_TOKENS if token not in entries]
    if missing:
        raise EncoderError(
            f"{handle}: {path}: no entry {', '.join(missing)} among {len(entries):,}; take the vocab.txt of "
            "a BERT encoder"
        )
    if vocab_size is not None and len(entries) > vocab_size:
        raise EncoderError(
            f"{handle}: {path}: has {len(entries):,} entries, the word embedding (vocab_size) has {vocab_size:,} rows; "
            "there may be fewer entries, not more: take the vocab.txt that belongs to the weights"
        )
    return Vocabulary(tuple(entries), sha256_of(path))


def lower_cases(names: Iterable[str], vocabulary: Sequence[str]) -> tuple[bool, str]:
    """Whether an encoder whose files do not say so lower-cases, and the source: a name, else the vocabulary.

    `names`: those of its folder, archive or address, the nearest first.
    Source: `validate_case_matches_checkpoint` in google-research/bert's tokenization.py.

    >>> lower_cases(["wwm_uncased_L-24_H-1024_A-16"], ["A"])
    (True, 'the name wwm_uncased_L-24_H-1024_A-16')
    >>> lower_cases(["multi_cased_L-12_H-768_A-12"], ["a"])
    (False, 'the name multi_cased_L-12_H-768_A-12')
    >>> lower_cases(["4", "chinese_L-12_H-768_A-12"], ["A"])
    (True, 'the name chinese_L-12_H-768_A-12')
    >>> lower_cases(["showcased"], ["[CLS]", "a"])
    (True, 'a guess from the vocabulary')
    """
    for name in names:
        cased = re.search(r"(?<![a-z])(un)?cased(?![a-z])", name.lower())
        if cased:
            return cased[1] is not None, f"the name {name}"
        if re.search(r"(multilingual|chinese)_L-12_H-768_A-12", name):
            return True, f"the name {name}"
    words = (entry for entry in vocabulary if not re.fullmatch(r"\[.*\]", entry))
    return all(word == word.lower() for word in words), "a guess from the vocabulary"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hex, cached per process by size and time; takes about 1 s per 1.5 GB."""
    stat = path.stat()
    return _sha256_of(str(path), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256_of(path: str, size: int, modified: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
