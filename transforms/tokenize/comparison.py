"""How a word that a user names is compared with a word of a text: the one rule of selections, reports and searches.

Both are put into Unicode's form NFC, then normalized as the encoder does it; what is left is compared without case.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.encoders import load_normalizer
from layerbeam.transforms.flow.blocks import Int64Array
from layerbeam.transforms.panics import panics_as_errors
from layerbeam.transforms.reference import ReferenceWordPiece

# Scripts without spaces between words: Han, kana, bopomofo, Thai, Lao, Myanmar, Khmer. Their words are the pieces.
WITHOUT_SPACES = re.compile(
    "[\u3005-\u3007\u3021-\u3029\u3031-\u3035\u303b\u3041-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff\uff66-\uff9d"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
    "\u0e01-\u0e4e\u0e81-\u0edf\u1000-\u109f\u1780-\u17d3\uaa60-\uaa7f\ua9e0-\ua9fe]+"
)


def nfc(text: str) -> str:
    """The text in NFC: equal for two texts that look alike because they differ in combining characters only.

    >>> nfc("cafe\\u0301") == "caf\\u00e9"
    True
    """
    return unicodedata.normalize("NFC", text)


def key_of_form(form: str) -> str:
    """What a normalized word has in common with all that count as the same: its letters without case.

    >>> key_of_form("Cafe\\u0301") == key_of_form("caf\\u00e9"), key_of_form("Caf\\u00e9") == key_of_form("cafe")
    (True, False)
    """
    return nfc(form).lower().replace("\u03c2", "\u03c3")  # a sigma at the end of a word


def word_parts(text: str, *, with_symbols: bool = False) -> list[str]:
    """The runs of letters and digits with their marks, and those of a script without spaces.

    `with_symbols`: and each other character that is not white space.

    >>> word_parts("ba\\u0301nk\U0001f602, 2_\u94f6\u884cs") == ["ba\\u0301nk", "2", "\u94f6\u884c", "s"]
    True
    """
    runs = ((kind, "".join(run)) for kind, run in itertools.groupby(text, key=_kind))
    return [part for kind, run in runs for part in ([run] if kind else run.replace(" ", "") if with_symbols else "")]


@functools.lru_cache(maxsize=1 << 16)
def _kind(character: str) -> int:
    """0 for a character between words, 1 of a word, 2 of a script without spaces."""
    if WITHOUT_SPACES.match(character):
        return 2
    category = unicodedata.category(character)
    return int(category[0] in "LMN" or category == "Cf")


def in_nfc(words: pa.DictionaryArray) -> tuple[Int64Array, pa.StringArray]:
    """(the number of each word's form, the distinct forms): the words in NFC."""
    if pc.all(pc.string_is_ascii(words.dictionary), min_count=0).as_py():
        return words.indices.to_numpy(zero_copy_only=False), words.dictionary
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
