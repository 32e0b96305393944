"""The reference implementation: WordPiece in pure Python, the encoders in NumPy, one text at a time.

It shares no code with the fast implementation, which `layerbeam verify` and the tests compare with it.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.int8 import InputCodes

Array = npt.NDArray[Any]

MAX_INPUT_CHARS_PER_WORD = 200
LARGEST_CODE = 127  # of a weight in int8
_ERF_STEPS = 1 << 16
_SCORES = 1 << 23  # of attention that are in memory at once
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
        self,
        vocab: Sequence[str],
        do_lower_case: bool,
        max_chars_per_word: int = MAX_INPUT_CHARS_PER_WORD,
        special: tuple[list[int], list[int], list[int]] | None = None,
        in_text: Sequence[str] = (),
    ) -> None:
        self.ids = {entry: index for index, entry in enumerate(vocab)}
        self.do_lower_case = do_lower_case
        self.max_chars_per_word = max_chars_per_word
        self.special = special  # before, between and after the texts; None: [CLS], [SEP], [SEP]
        self.in_text = [token for token in in_text if token in self.ids]  # are tokens where a text has them

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text."""
        pattern = "|".join(map(re.escape, self.in_text))
        ids: list[int] = []
        for part in re.split(f"({pattern})", text) if pattern else [text]:
            if part in self.in_text:
                ids.append(self.ids[part])
            else:
                ids += [self.ids[piece] for word in self.words(part) for piece in self.pieces(word)]
        return ids

    def sequence(self, first: str | list[str], second: str, max_seq_length: int) -> tuple[list[int], list[int]]:
        """(ids, segment ids) of [CLS] first [SEP] second [SEP], without an empty second text. A list: given words."""
        before, between, after = self.special or ([self.ids["[CLS]"]], [self.ids["[SEP]"]], [self.ids["[SEP]"]])
        words = [first] if isinstance(first, str) else first
        one, two = [token_id for word in words for token_id in self.tokenize(word)], self.tokenize(second)
        cut_pair(one, two, max_seq_length - len(before + (between if two else []) + after))
        ids = before + one + (between if two else after)
        more = two + after if two else []
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


class ReferenceLibraryTokenizer:
    """A tokenizer of the library `tokenizers`, text by text, special tokens included."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def sequence(self, first: str | list[str], second: str, max_seq_length: int) -> tuple[list[int], list[int]]:
        """(ids, segment ids) of a text or a pair, cut to length, without an empty second text. A list: given words."""
        one, two = (
            self._tokenizer.encode(text, is_pretokenized=isinstance(text, list), add_special_tokens=False)
            for text in (first, second)
        )
        kept, kept_second = list(one.ids), list(two.ids)
        cut_pair(kept, kept_second, max_seq_length - self._tokenizer.num_special_tokens_to_add(is_pair=len(two) > 0))
        one.truncate(len(kept))
        two.truncate(len(kept_second))
        whole = self._tokenizer.post_process(one, two if len(two) else None)
        second_from = whole.sequence_ids.index(1) if 1 in whole.sequence_ids else len(whole)
        return whole.ids, [int(place >= second_from) for place in range(len(whole))]


def cut_pair(first: list[int], second: list[int], room: int) -> None:
    """Cut the longer of two texts, or the second of equals, until both fit: `_truncate_seq_pair`."""
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()


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


def dense(values: Array, weights: Array, bias: Array, activation: str) -> Array:
    """activation(values weights + bias) in float64: a linear layer after pooling. `weights`: [in, out]."""
    product = values.astype(np.float64) @ weights.astype(np.float64) + bias
    functions: dict[str, Callable[[Array], Array]] = {
        "identity": np.asarray,
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "gelu": lambda x: gelu(x, "gelu"),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    }
    return np.asarray(functions[activation](product))


class ReferenceNetwork:
    """The parts of an encoder's forward pass for one text without padding, in the number type of `weights`.

    A bias or beta that `weights` do not have is 0. `codes`: of the inputs of products in int8, whose kernels are those
    of `round_kernels`. Source: Vaswani et al., https://arxiv.org/abs/1706.03762.
    """

    def __init__(
        self, architecture: Architecture, weights: Mapping[str, Array], codes: Mapping[str, InputCodes]
    ) -> None:
        self.architecture = architecture
        self.weights = weights
        self.codes = codes

    def dense(self, name: str, x: Array) -> Array:
        codes = _codes_of(name, self.codes)
        if codes is not None:
            x = (np.clip(np.rint(x / codes.step + codes.zero), 0, 255) - codes.zero) * codes.step
        return np.asarray(x @ self.weights[f"{name}/kernel"] + self.weights.get(f"{name}/bias", 0))

    def layer_norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.architecture.layer_norm_eps)
        gamma, beta = self.weights[f"{name}/LayerNorm/gamma"], self.weights.get(f"{name}/LayerNorm/beta", 0)
        return np.asarray(normal * gamma + beta)

    def rms_norm(self, name: str, x: Array, gamma_from: float) -> Array:
        normal = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.architecture.layer_norm_eps)
        return np.asarray(normal * (self.weights[f"{name}/LayerNorm/gamma"] + gamma_from))

    def activation(self, x: Array) -> Array:
        if self.architecture.hidden_act == "silu":
            return np.asarray(x * (0.5 + 0.5 * np.tanh(x / 2)), x.dtype)
        return gelu(x, self.architecture.hidden_act)

    def heads(self, x: Array, count: int | None = None) -> Array:
        """[S, heads d] -> [heads, S, d]."""
        return np.transpose(x.reshape(len(x), count or self.architecture.num_attention_heads, -1), (1, 0, 2))

    def attend(self, query: Array, key: Array, value: Array, bias: Callable[[slice], Array | float]) -> Array:
        """softmax(Q K' / sqrt(d) + bias) V: three of [heads, S, d] -> [S, heads d].

        `bias`: of some queries, [heads or 1, queries, S]. A long text's are computed some at a time.
        """
        heads, length, size = query.shape
        step = max(_SCORES // (heads * length), 1)
        contexts = []
        for rows in (slice(first, first + step) for first in range(0, length, step)):
            scores = query[:, rows] @ key.transpose(0, 2, 1) / math.sqrt(size) + bias(rows)
            weight = np.exp(scores - scores.max(-1, keepdims=True))
            contexts.append(weight / weight.sum(-1, keepdims=True) @ value)
        context = np.concatenate(contexts, axis=1)
        return np.asarray(context.transpose(1, 0, 2).reshape(length, -1), value.dtype)


def round_kernels(weights: Mapping[str, Array], codes: Mapping[str, InputCodes]) -> dict[str, Array]:
    """The weights, with the kernels of products in int8 as their codes stand for them.

    In each column, step times weight is rounded to a 127th of the largest.
    """
    rounded = dict(weights)
    for name, kernel in weights.items():
        inputs = _codes_of(name.removesuffix("/kernel"), codes)
        if inputs is not None and name.endswith("/kernel"):
            scaled = kernel * inputs.step.reshape(-1, 1)
            unit = np.abs(scaled).max(axis=0) / LARGEST_CODE
            unit[unit == 0] = 1
            rounded[name] = np.rint(scaled / unit) * unit / inputs.step.reshape(-1, 1)
    return rounded


def _codes_of(name: str, codes: Mapping[str, InputCodes]) -> InputCodes | None:
    """Those of a product, or of the one that a graph has for it and others (query, key and value)."""
    return codes.get(name) or codes.get(name.rpartition("/")[0])


def forward(
    architecture: Architecture,
    weights: Mapping[str, Array],
    token_ids: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    codes: Mapping[str, InputCodes] | None = None,
) -> tuple[list[Array], Array | None]:
    """(all layers [S, H] from 0 up, pooled output [H]) of one text without padding.

    Computed in the number type of `weights`, which are named as in `weight_shapes`. The pooled output is None without
    the pooler's weights. `codes`: as for `ReferenceNetwork`.
    """
    net = ReferenceNetwork(architecture, weights, codes or {})
    layers = [architecture.reference_embed(net, np.asarray(token_ids), np.asarray(segment_ids))]
    for index in range(architecture.num_hidden_layers):
        layers.append(architecture.reference_block(net, index, layers[-1]))
    pooled = np.tanh(net.dense("bert/pooler/dense", layers[-1][0])) if "bert/pooler/dense/kernel" in weights else None
    return layers, pooled
