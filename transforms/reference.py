"""The reference implementation: WordPiece in pure Python, BERT in NumPy, one text at a time.

It shares no code with the fast implementation, which `layerbeam verify` and the tests compare with it.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.encoders.bert import BertConfig

Array = npt.NDArray[Any]

MAX_INPUT_CHARS_PER_WORD = 200
_ERF_STEPS = 1 << 16
CHINESE = [
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
]


class ReferenceWordPiece:
    """BERT's FullTokenizer as published, without [CLS] and [SEP]. The last of equal entries in `vocab` wins.

    Written from the algorithm of `tokenization.py` of google-research/bert.
    """

    def __init__(
        self, vocab: Sequence[str], do_lower_case: bool, max_chars_per_word: int = MAX_INPUT_CHARS_PER_WORD
    ) -> None:
        self.ids = {entry: index for index, entry in enumerate(vocab)}
        self.do_lower_case = do_lower_case
        self.max_chars_per_word = max_chars_per_word

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text."""
        return [self.ids[piece] for word in self.words(text) for piece in self.pieces(word)]

    def sequence(self, first: list[int], second: list[int], max_seq_length: int) -> tuple[list[int], list[int]]:
        """(ids, segment ids) of [CLS] first [SEP] second [SEP], cut to length as `_truncate_seq_pair` does."""
        first, second = list(first), list(second)
        if second:
            while len(first) + len(second) > max_seq_length - 3:
                (first if len(first) > len(second) else second).pop()
        first = first[: max_seq_length - 2]
        ids = [self.ids["[CLS]"], *first, self.ids["[SEP]"]]
        more = [*second, self.ids["[SEP]"]] if second else []
        return ids + more, [0] * len(ids) + [1] * len(more)

    def words(self, text: str) -> list[str]:
        """BERT's basic tokens."""
        words: list[str] = []
        for token in "".join(map(_clean, text)).split():
            if self.do_lower_case:
                token = "".join(
                    c for c in unicodedata.normalize("NFD", token.lower()) if unicodedata.category(c) != "Mn"
                )
            words += "".join(map(_space_out_punctuation, token)).split()
        return words

    def pieces(self, word: str) -> list[str]:
        """The word cut greedily: its longest prefix in the vocabulary, then that of the rest, and so on."""
        if len(word) > self.max_chars_per_word:
            return ["[UNK]"]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            end = len(word)
            while start < end and prefix + word[start:end] not in self.ids:
                end -= 1
            if start == end:
                return ["[UNK]"]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


@functools.cache
def _clean(char: str) -> str:
    """The character; a space for white space, "" for a control character, spaces around a Chinese character."""
    category = unicodedata.category(char)
    if char in " \t\n\r" or category == "Zs":
        return " "
    if char in "\x00\ufffd" or category in ("Cc", "Cf"):
        return ""
    return f" {char} " if any(first <= ord(char) <= last for first, last in CHINESE) else char


@functools.cache
def _space_out_punctuation(char: str) -> str:
    """The character; punctuation between spaces. In ASCII, all but letters and digits is punctuation, also `$`."""
    code = ord(char)
    in_ascii = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return f" {char} " if in_ascii or unicodedata.category(char).startswith("P") else char


@functools.cache
def _erf_table() -> Array:
    return np.array([math.erf(place / _ERF_STEPS) for place in range(-6 * _ERF_STEPS, 6 * _ERF_STEPS + 2)])


def _erf(x: Array) -> Array:
    """The error function, interpolated in a table with steps of 2^-16: error at most 3e-11, 10 times faster."""
    place = (np.clip(x, -6, 6).astype(np.float64) + 6) * _ERF_STEPS
    index = place.astype(np.int64)
    below, above = _erf_table()[index], _erf_table()[index + 1]
    return np.asarray(below + (above - below) * (place - index))


def gelu(x: Array, hidden_act: str) -> Array:
    """GELU by erf (`gelu`) or by the tanh approximation. Source: Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415"""
    is_exact = hidden_act == "gelu"
    tail = _erf(x / math.sqrt(2)) if is_exact else np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    return np.asarray(0.5 * x * (1 + tail), x.dtype)


def forward(
    config: BertConfig, weights: Mapping[str, Array], token_ids: npt.ArrayLike, segment_ids: npt.ArrayLike
) -> tuple[list[Array], Array | None]:
    """(all layers [S, H] from 0 up, pooled output [H]) of one text without padding.

    Computed in the number type of `weights`, which are named as in `transforms/encoders/bert.py`. The pooled output is
    None without the pooler's weights. Source: Devlin et al., https://arxiv.org/abs/1810.04805; Vaswani et al., https://arxiv.org/abs/1706.03762.
    """

    def dense(name: str, x: Array) -> Array:
        return np.asarray(x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"])

    def layer_norm(name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return np.asarray(normal * weights[f"{name}/LayerNorm/gamma"] + weights[f"{name}/LayerNorm/beta"])

    def heads(x: Array) -> Array:
        return np.transpose(x.reshape(len(x), config.num_attention_heads, -1), (1, 0, 2))

    def table(name: str) -> Array:
        return weights[f"bert/embeddings/{name}"]

    words, segments = np.asarray(token_ids), np.asarray(segment_ids)
    x = table("word_embeddings")[words] + table("token_type_embeddings")[segments]
    layers = [layer_norm("bert/embeddings", x + table("position_embeddings")[: len(words)])]
    for index in range(config.num_hidden_layers):
        block, x = f"bert/encoder/layer_{index}", layers[-1]
        query, key, value = (heads(dense(f"{block}/attention/self/{part}", x)) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        context = weight / weight.sum(-1, keepdims=True) @ value
        attended = dense(f"{block}/attention/output/dense", context.transpose(1, 0, 2).reshape(x.shape))
        x = layer_norm(f"{block}/attention/output", x + attended)
        inner = gelu(dense(f"{block}/intermediate/dense", x), config.hidden_act)
        layers.append(layer_norm(f"{block}/output", x + dense(f"{block}/output/dense", inner)))
    pooled = np.tanh(dense("bert/pooler/dense", layers[-1][0])) if "bert/pooler/dense/kernel" in weights else None
    return layers, pooled
