"""An opened encoder as plain values, and what all source formats share: vocabulary, casing, fingerprint."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.config_file import EncoderError, get_it, read_small
from layerbeam.transforms.encoders.formats.weights import Tensor

Kind = Literal["huggingface", "google", "savedmodel"]
Engine = Literal["native", "savedmodel"]

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
# Those that WordPiece finds in texts if `special_in_text` says so.
IN_TEXT = (*SPECIAL_TOKENS, "[MASK]")

_SMALL_VOCABULARY = 0.9
# How an entry is written that may begin a prompt as a token of its own: [unused1], or "[D] ", whose space is its own.
# The folder of a commit in the cache of huggingface_hub.
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")
_MARKER = re.compile(r"\[[^][\s]+\] ?")
# The texts that decide the codes of products in int8, one per line, unless others are given.
CALIBRATION = Path(__file__).with_name("calibration.txt")
# As in Google's reference, a longer word is one [UNK].
MAX_CHARS_PER_WORD = 200


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
class SpecialTokens:
    """The ids around a text, `before` A `behind`, around a pair, `before` A `between` B `behind`, and that of padding.

    `between`: None if the encoder's files do not say how pairs are put together, or in another form.
    `has_second_segment`: whether B and `behind` are segment 1 for the encoder.
    """

    before: tuple[int, ...]
    between: tuple[int, ...] | None
    behind: tuple[int, ...]
    pad: int
    has_second_segment: bool

    @classmethod
    def of_bert(cls, ids: Mapping[str, int]) -> SpecialTokens:
        """[CLS] A [SEP] and [CLS] A [SEP] B [SEP]; `ids`: of the entries."""
        sep = ids["[SEP]"]
        return cls((ids["[CLS]"],), (sep,), (sep,), ids["[PAD]"], has_second_segment=True)

    @property
    def around_text(self) -> int:
        """The number of special tokens of a single text."""
        return len(self.before) + len(self.behind)

    @property
    def around_pair(self) -> int:
        """The number of special tokens of a pair."""
        return self.around_text + len(self.between or ())


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What turns texts into ids: a file on this machine, and the entries in the order of their ids.

    `library`: what cuts the texts, by `file` if that is tokenizers. `sha256`: of all that decides the tokens.
    `max_chars_per_word`: WordPiece makes a longer word one [UNK]. `because`: the reason for `library`. `normalizer`: of
    the library tokenizers, as JSON; "" if there is none. `cuts_left`: whether a long text loses its start.
    """

    library: Literal["tensorflow_text", "tokenizers"]
    file: Path
    entries: tuple[str, ...]
    special: SpecialTokens
    sha256: str
    max_chars_per_word: int = MAX_CHARS_PER_WORD
    because: str = "it does WordPiece as Google's code"
    normalizer: str = ""
    cuts_left: bool = False


@dataclasses.dataclass(frozen=True)
class AdaptedKernel:
    """What an adapter adds to a weight, by its name in `weight_shapes`: scale (B A)' to a kernel, [in, out].

    `a`, `b`: the tensors A, [rank, in], and B, [out, rank]. To a table, [n, width], it adds scale A B: [n, rank] and
    [rank, width].
    """

    name: str
    a: Tensor
    b: Tensor
    scale: float


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A LoRA adapter, by its handle, which is a folder as an encoder's is, or its name in the encoder's own files."""

    handle: str
    kernels: tuple[AdaptedKernel, ...]


@dataclasses.dataclass(frozen=True)
class EncoderSource:
    """An encoder that is opened but not loaded: a few plain values that are sent to workers.

    `folder`: its files on this machine. `engine_because`: the reason for `engine`. `architecture`: None if it is not
    known, and the engine is `savedmodel`. `layers`: those it can give, ascending, from 0 to `num_hidden_layers`.
    `max_position_embeddings`: tokens of the longest sequence; None if unknown. `vocab_size`: rows of the word
    embedding; None if unknown. `tokenizer`: the library that cuts texts, and `tokenizer_because` the reason.
    `vocabulary_file`: in `folder`; `load_vocabulary` reads it where it is needed. `casing_from`: the source of
    `do_lower_case`. `weights_sha256`: of their values or, if the format has no names for them, of the files.
    `fingerprint`: SHA-256 of weights, vocabulary and configuration. `cut_to`: the tokens of one text that its files
    name, if they do. `marker`: the entry whose id is the last before a text, if a prompt gives one. `adapter`: added to
    the weights when they are loaded, and part of `fingerprint`. `normalizer`, `cuts_left`: as in `Vocabulary`.
    `special_in_text`: the setting of that name.
    """

    handle: str
    kind: Kind
    engine: Engine
    engine_because: str
    folder: str
    weight_files: tuple[str, ...]
    weights_sha256: str
    architecture: Architecture | None
    hidden_size: int
    num_hidden_layers: int
    layers: tuple[int, ...]
    max_position_embeddings: int | None
    vocab_size: int | None
    tokenizer: Literal["tensorflow_text", "tokenizers"]
    tokenizer_because: str
    vocabulary_file: str
    vocabulary_size: int
    vocabulary_sha256: str
    special: SpecialTokens
    do_lower_case: bool
    casing_from: str
    has_pooler: bool
    fingerprint: str
    cut_to: int | None = None
    marker: str = ""
    normalizer: str = ""
    cuts_left: bool = False
    adapter: Adapter | None = None
    special_in_text: Literal["text", "token"] | None = None

    @property
    def commit(self) -> str | None:
        """The commit of a repository on Hugging Face; None for other encoders."""
        found = _SNAPSHOT.search(self.folder) if self.handle.startswith("hf://") else None
        return found[1] if found else None

    @property
    def pinned(self) -> str:
        """The handle, at the commit that it named when the encoder was opened."""
        return f"{self.handle.partition('@')[0]}@{self.commit}" if self.commit else self.handle

    @property
    def max_seq_length(self) -> int | None:
        """Tokens of one text, special tokens included, to which programs that follow its files cut; None if unknown."""
        known = (length for length in (self.cut_to, self.max_position_embeddings) if length is not None)
        return min(known, default=None)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The entries in the order of their ids, which each access reads from the encoder's files: keep them."""
        from layerbeam.transforms.encoders.open import load_vocabulary

        return load_vocabulary(self).entries

    @property
    def has_segments(self) -> bool:
        """Whether the second text of a pair is another segment to the encoder."""
        has_second = self.special.has_second_segment
        return has_second and (self.architecture is None or self.architecture.has_segments)

    def with_marker(self, prompt: str) -> EncoderSource:
        """The encoder with the token with which a prompt begins before each text: an entry in brackets, of WordPiece.

        WordPiece would cut it into pieces. Other tokenizers find such tokens in the prompt by themselves.
        """
        if self.marker:
            plain = dataclasses.replace(self.special, before=self.special.before[:-1])
            return dataclasses.replace(self, special=plain, marker="").with_marker(prompt)
        found = _MARKER.match(prompt)
        if found is None or self.tokenizer != "tensorflow_text":
            return self
        ids = {entry: number for number, entry in enumerate(self.vocabulary)}
        marker = next((entry for entry in (found[0], found[0].rstrip()) if entry in ids), None)
        if marker is None:
            return self
        special = dataclasses.replace(self.special, before=(*self.special.before, ids[marker]))
        return dataclasses.replace(self, special=special, marker=marker)

    def describe(self) -> dict[str, Any]:
        """The encoder's entry in a manifest, which does not depend on where the files are."""
        fields = ("handle", "kind", "engine", "engine_because", "fingerprint", "tokenizer", "tokenizer_because")
        sizes = ("has_pooler", "hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size")
        more = ("do_lower_case", "casing_from", *sizes, "vocabulary_size")
        described = {field: getattr(self, field) for field in (*fields, *more)}
        if self.commit is not None:
            described["commit"] = self.commit
        if self.architecture is not None:
            described = dataclasses.asdict(self.architecture) | described
            described["architecture"] = type(self.architecture).__name__
        if self.adapter is not None:
            products = sum(kernel.name.endswith("/kernel") for kernel in self.adapter.kernels)
            described |= {"adapter": self.adapter.handle, "adapted_products": products}
        return described

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
            native = "; engine native has it" if self.architecture else ""
            return f"a SavedModel does not give layer 0, the embedding layer's output; it gives {given}{native}"
        return f"there is no layer {missing[0]}; it gives {given}"

    def check(self, layers: Iterable[int], *, pooler: bool) -> None:
        """Raises EncoderError if the encoder cannot give this."""
        reason = self.unsupported_reason(layers, pooler=pooler)
        if reason is not None:
            raise EncoderError(f"{self.handle}: {reason}")


def native_source(*, architecture: Architecture, **rest: Any) -> EncoderSource:
    """An encoder for the native engine; sizes and layers follow from its architecture."""
    return EncoderSource(
        engine="native",
        architecture=architecture,
        hidden_size=architecture.hidden_size,
        num_hidden_layers=architecture.num_hidden_layers,
        layers=tuple(range(architecture.num_hidden_layers + 1)),
        max_position_embeddings=architecture.max_length,
        **rest,
    )


def common_fields(
    handle: str,
    located: LocalFolder,
    weight_files: Sequence[str],
    vocabulary: Vocabulary,
    vocab_size: int | None,
    casing: tuple[bool, str],
    architecture: Architecture | None,
    weights_sha256: str,
) -> dict[str, Any]:
    """The fields of an EncoderSource that all formats find in the same way.

    `vocab_size`: rows of the word embedding; None if unknown. `casing`: `do_lower_case` and its source.
    `architecture`: the part of the fingerprint that is in no weight file.
    """
    fingerprint = {
        "weights": weights_sha256,
        "vocabulary": vocabulary.sha256,
        "config": dataclasses.asdict(architecture) if architecture else None,
        "architecture": type(architecture).__name__ if architecture else None,
    }
    return {
        "handle": handle,
        "folder": str(located.folder),
        "weight_files": tuple(weight_files),
        "weights_sha256": weights_sha256,
        "vocab_size": vocab_size,
        "tokenizer": vocabulary.library,
        "tokenizer_because": vocabulary.because,
        "vocabulary_file": vocabulary.file.relative_to(located.folder).as_posix(),
        "vocabulary_size": len(vocabulary.entries),
        "vocabulary_sha256": vocabulary.sha256,
        "normalizer": vocabulary.normalizer,
        "cuts_left": vocabulary.cuts_left,
        "special": vocabulary.special,
        "do_lower_case": casing[0],
        "casing_from": casing[1],
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


def read_vocabulary(handle: str, path: Path, vocab_size: int | None) -> Vocabulary:
    """The entries of a vocab.txt, one per line.

    Lines end with `\\n` or `\\r\\n` only: real vocabularies hold U+2028 and the like.

    `vocab_size`: rows of the word embedding; None if unknown. EncoderError if it cannot be used.
    """
    if not path.is_file():
        raise EncoderError(
            f"{handle}: {path} is missing; it holds the vocabulary, one entry per line: {get_it(handle)}"
        )
    try:
        entries = [line.removesuffix("\r") for line in read_small(handle, path).decode("utf-8").split("\n")]
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
    ids = {
        entry: index for index, entry in enumerate(entries)
    }  # of equal entries the last one, as in Google's reference
    return Vocabulary("tensorflow_text", path, tuple(entries), SpecialTokens.of_bert(ids), sha256_of(path))


def casing_of(
    setting: bool | None, declared: tuple[bool, str] | None, located: LocalFolder, vocabulary: Vocabulary
) -> tuple[bool, str]:
    """Whether texts are lower-cased, and the source of that: the setting, what the files say, or a guess."""
    decided = declared if setting is None else (setting, "the setting")
    return decided or lower_cases(located.names, vocabulary.entries)


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


def sha256_of_files(paths: Iterable[str]) -> str:
    """SHA-256, in hex, of the files' SHA-256."""
    hashes = " ".join(sha256_of(Path(path)) for path in paths)
    return hashlib.sha256(hashes.encode()).hexdigest()


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
