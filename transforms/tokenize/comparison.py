"""How a word that a user names is compared with a word of a text: the one rule of selections, reports and searches.

Both are put into Unicode's form NFC, then normalized as the encoder does it; what is left is compared without case.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from layerbeam.transforms.encoders import load_normalizer
from layerbeam.transforms.flow.blocks import Int64Array
from layerbeam.transforms.panics import panics_as_errors
from layerbeam.transforms.reference import ReferenceWordPiece


def nfc(text: str) -> str:
    """The text in NFC: equal for two texts that look alike because they differ in combining characters only.

    >>> nfc("cafe\\u0301") == "caf\\u00e9"
    True
    """
    return unicodedata.normalize("NFC", text)


def key_of_form(form: str) -> str:
    """What a normalized word has in common with all that count as the same.

    >>> key_of_form("Cafe\\u0301") == key_of_form("caf\\u00e9"), key_of_form("Caf\\u00e9") == key_of_form("cafe")
    (True, False)
    """
    return nfc(form).lower()


def in_nfc(words: pa.DictionaryArray) -> tuple[Int64Array, pa.StringArray]:
    """(the number of each word's form, the distinct forms): the words in NFC."""
    # Arrow's own utf8_normalize gives NFD for "NFC" (pyarrow 25).
    forms = pa.array(map(nfc, words.dictionary.to_pylist()), pa.string()).dictionary_encode()
    return forms.indices.take(words.indices).to_numpy(zero_copy_only=False), forms.dictionary


class WordComparison:
    """The comparison of an encoder, given as its entry in a manifest, and the normalizer of its tokenizer.json.

    EncoderError for another `normalizer`, ImportError without the library tokenizers.
    """

    def __init__(self, encoder: Mapping[str, Any], normalizer: Mapping[str, Any] | None) -> None:
        self._normalize: Callable[[str], str] = str
        if encoder.get("tokenizer") != "tokenizers":
            reference = ReferenceWordPiece([], bool(encoder["do_lower_case"]))
            self._normalize = lambda word: "".join(reference.words(word))
        elif normalizer is not None:
            self._normalize = functools.partial(normalized, load_normalizer(normalizer))

    def key(self, word: str) -> str:
        """Equal for words that count as the same."""
        return key_of_form(self._normalize(nfc(word)))


@panics_as_errors()
def normalized(normalizer: Any, word: str) -> str:
    """The word as a normalizer of the library tokenizers makes it, without spaces around it."""
    form: str = normalizer.normalize_str(nfc(word))
    return form.strip()
