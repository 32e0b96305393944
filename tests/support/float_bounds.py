"""How far vectors in float32 may be off, on any processor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from weights import in_float64

from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.reference import forward

EPS = 2.0**-23
DRAWS = 8
FACTOR = 8

# How far two computations of the encoders in tests/data may be apart: more than twice their bound, by a test, and twice
# what `layerbeam verify` allows to one. A wrong token, text, layer or pooling is off by 0.01 and more.
OF_TWO = 2e-4


class Bounded(NamedTuple):
    """Values [n, H] in float64, and how far those of a row may be off in float32, [n, 1]."""

    values: np.ndarray
    bound: np.ndarray

    def share(self, found: np.ndarray) -> float:
        """The largest part of the bound that a value is off; NaN if one is NaN."""
        assert found.shape == self.values.shape
        return float(np.max(np.abs(found - self.values) / self.bound))

    def assert_allows(self, found: np.ndarray, *, computations: int = 1) -> None:
        """`computations`: 2 if `found` is compared with values in float32, by which `values` were replaced."""
        share = self.share(found) / computations
        assert share <= 1, f"off by {share:.3g} times what float32 may be off"


def bounded_layers(
    architecture: Architecture,
    weights: Mapping[str, np.ndarray],
    token_ids: np.ndarray,
    lengths: np.ndarray,
    segment_ids: np.ndarray,
    draws: int = DRAWS,
) -> tuple[list[Bounded], Bounded | None]:
    """All layers of a batch's tokens and the pooled output, by NumPy in float64, with what float32 may be off.

    Let u be 2^-24. In float32, a sum of n products x w is off by at most n u times the sum of all |x w|, in any order,
    with or without FMA (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1). Roundings
    have either sign, so it is off by about sqrt(n) u times that (Higham and Mary, https://doi.org/10.1137/18M1226312):
    it is the exact sum for weights that are each off by about sqrt(n) u. Such weights are drawn 8 times. Those that are
    no factors in long sums, of embeddings, norms and biases, are off by u, as are the values computed with them. What
    float64 computes with these weights shows what depth, attention and norms make of float32's rounding, token by
    token: little of a large vector, much of one that is the small rest of large terms.

    The bound of a row is 8 times its largest deviation in 8 draws, plus 8 eps times its largest value. Of a normal
    deviate the largest of 8 is below 0.6 standard deviations once in 400 cases, so 8 times that is 5 of them. With the
    kernels of an AVX2 processor, the architectures of the tests reach 0.02 to 0.14 of the bound. Fewer `draws` are
    enough for long texts: the values of a row are draws, too.
    """
    exact = _all_layers(architecture, in_float64(weights), token_ids, lengths, segment_ids)
    deviations = [np.zeros((len(values), 1)) for values in exact]
    for seed in range(draws):
        drawn = _all_layers(architecture, _drawn(weights, seed), token_ids, lengths, segment_ids)
        for deviation, values, of_exact in zip(deviations, drawn, exact, strict=True):
            np.maximum(deviation, np.abs(values - of_exact).max(axis=1, keepdims=True), out=deviation)
    found = [
        Bounded(values, FACTOR * (deviation + EPS * np.abs(values).max(axis=1, keepdims=True)))
        for deviation, values in zip(deviations, exact, strict=True)
    ]
    num_layers = architecture.num_hidden_layers + 1
    return found[:num_layers], found[num_layers] if len(found) > num_layers else None


def _drawn(weights: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The weights in float64, each off by a normal deviate times u, and times sqrt(n) in a sum of n products."""
    random = np.random.default_rng(seed)
    drawn = {}
    for name, values in weights.items():
        n = math.prod(values.shape[:-1]) if name.endswith("/kernel") else 1
        drawn[name] = values * (1 + EPS / 2 * math.sqrt(n) * random.standard_normal(values.shape))
    return drawn


def _all_layers(
    architecture: Architecture,
    weights: Mapping[str, np.ndarray],
    token_ids: np.ndarray,
    lengths: np.ndarray,
    segment_ids: np.ndarray,
) -> list[np.ndarray]:
    """The layers, [n, H] each, of all tokens, and the pooled output [B, H] if there is one."""
    texts = [
        forward(architecture, weights, ids[:length], segments[:length])
        for ids, length, segments in zip(token_ids, lengths, segment_ids, strict=True)
    ]
    layers = [np.concatenate(layer) for layer in zip(*(of_text for of_text, _ in texts), strict=True)]
    pooled = [of_text for _, of_text in texts if of_text is not None]
    return [*layers, np.stack(pooled)] if pooled else layers
