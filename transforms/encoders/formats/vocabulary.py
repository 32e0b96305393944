"""The vocabulary of an encoder, and whether it lower-cases its input."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from layerbeam.transforms.encoders.source import EncoderError

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def read_vocabulary(handle: str, path: Path, *, vocab_size: int | None) -> tuple[str, ...]:
    """The entries, one per line. Lines end with `\\n` or `\\r\\n` only: real vocabularies hold U+2028 and the like.

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
    missing = [token for token in _SPECIAL_TOKENS if token not in entries]
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
    return tuple(entries)


def decide_casing(
    setting: bool | None, declared: tuple[bool, str] | None, names: Iterable[str], vocabulary: Sequence[str]
) -> tuple[bool, str]:
    """(whether it lower-cases, the source of that): the setting, the encoder's files, its names or its vocabulary."""
    if setting is not None:
        return setting, "the setting"
    return declared or lower_cases(names, vocabulary)


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
