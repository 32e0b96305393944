"""What every tokenizer gives: the pieces of texts, their places, and the words that they belong to."""

from __future__ import annotations

import dataclasses
import itertools
import unicodedata
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.transforms.encoders import SpecialTokens
from layerbeam.transforms.flow.blocks import Int32Array, Int64Array, row_splits_of
from layerbeam.transforms.panics import PanicError

# The stage of rejects.
STAGE = "tokenize"

UInt32Array = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of T texts, one text after the other; text t has `row_splits[t]:row_splits[t + 1]`.

    `row_splits`: int64 [T + 1]; `ids`, `start`, `end`, `word_char`, `word_index`, `form`: int32 [P]. `start` and `end`
    count code points of the source text; `word_char` is a character of the piece's word. `word_index` counts words
    from 0 in each text. `forms[form]` is the normalized word that the piece belongs to, in NFC; `forms` are distinct. A
    piece of white space alone belongs to no word: the last three are -1.
    """

    row_splits: Int64Array
    ids: Int32Array
    start: Int32Array
    end: Int32Array
    word_char: Int32Array
    word_index: Int32Array
    form: Int32Array
    forms: pa.StringArray

    def words(self) -> list[list[str]]:
        """The normalized words of each text."""
        forms = self.forms.to_pylist()
        pieces = list(zip(self.word_index.tolist(), self.form.tolist(), strict=True))
        of_texts = (dict(pieces[begin:end]) for begin, end in itertools.pairwise(self.row_splits.tolist()))
        return [[forms[form] for word, form in of_text.items() if word >= 0] for of_text in of_texts]


class TextTokenizer(Protocol):
    """Cuts texts into pieces. Not thread-safe: use one instance per thread."""

    special: SpecialTokens

    def tokenize(self, texts: pa.StringArray) -> Pieces:
        """The pieces of `texts`: string [T] without nulls. PanicError if the library fails at one of them."""


def find_panics(num_texts: int, cut: Callable[[Int64Array], Any]) -> dict[int, str]:
    """{index: why it cannot be cut} of each text at which the tokenizer panics. PanicError if none does alone.

    `cut`: cuts the texts with these indices.
    """
    reasons = {}
    for index in range(num_texts):
        try:
            cut(np.array([index]))
        except PanicError as error:
            reasons[index] = f"the tokenizer cannot cut the text: {error}"
    if not reasons:
        raise PanicError("the tokenizer panics at these texts together, and at none alone")
    return reasons


def join_texts(texts: list[str]) -> tuple[UInt32Array, Int64Array]:
    """(code points of the texts, a line end after each but the last; the index of each text's first: int64 [T])."""
    lengths = np.array([len(text) for text in texts], np.int64)
    return code_points("\n".join(texts)), row_splits_of(lengths + 1)[:-1]


def is_punctuation(character: str) -> bool:
    """Whether a character that is no white space is punctuation to BERT's reference.

    In ASCII that is all but letters and digits, also `$`, `+`, `^`, `` ` ``.
    """
    return unicodedata.category(character)[0] == "P" or (character.isascii() and not character.isalnum())


def code_points(text: str) -> UInt32Array:
    """The code points of a text."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
