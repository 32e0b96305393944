"""The bounds that the tests of vectors use: rounding stays below half of them, and small faults exceed them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import CONFIGS, batch_of
from float_bounds import OF_TWO, Bounded, bounded_layers
from repository import DATA
from weights import Weights, in_float64

from layerbeam.transforms.encoders import load_weights, open_encoder
from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.reference import forward

OTHER_ACTIVATION = {"gelu": "gelu_tanh", "gelu_tanh": "gelu", "silu": "gelu"}


class Case:
    """An encoder, texts of 16 tokens and of 1, and the bounds of its layers."""

    def __init__(self, folder: Path) -> None:
        source = open_encoder(str(folder))
        assert source.architecture is not None
        self.architecture: Architecture = source.architecture
        self.weights = load_weights(source)
        token_ids, lengths, segment_ids = batch_of([16, 1], 16)
        self.batch = token_ids, lengths, segment_ids * source.has_segments
        self.bounded: list[Bounded] = bounded_layers(self.architecture, self.weights, *self.batch)[0]

    def share(self, architecture: Architecture, weights: Weights) -> float:
        """The largest part of the bound that another computation is off."""
        texts = [
            forward(architecture, weights, ids[:length], segments[:length])[0]
            for ids, length, segments in zip(*self.batch, strict=True)
        ]
        layers = map(np.concatenate, zip(*texts, strict=True))
        return max(bounded.share(layer) for bounded, layer in zip(self.bounded, layers, strict=True))


@pytest.fixture(scope="module")
def case_of(folders: dict[str, Path]) -> Callable[[str], Case]:
    return lambda name: Case(folders[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_rounding_is_half_of_the_bound_at_most_and_faults_exceed_it(case_of, name):
    case = case_of(name)
    exact = in_float64(case.weights)
    assert case.share(case.architecture, exact) == 0
    assert 0 < case.share(case.architecture, case.weights) < 0.5  # NumPy in float32

    def fault(**fields: Any) -> float:
        return case.share(dataclasses.replace(case.architecture, **fields), exact)

    assert fault(hidden_act=OTHER_ACTIVATION[case.architecture.hidden_act]) > 4
    assert fault(layer_norm_eps=case.architecture.layer_norm_eps + 1e-4) > 4
    # A key's bias moves all scores of a row alike.
    added = [
        name for name in exact if name.endswith(("/bias", "/beta")) and "/key/" not in name and "pooler" not in name
    ]
    for weight in added:
        assert case.share(case.architecture, exact | {weight: np.zeros_like(exact[weight])}) > 4, weight
    kernel = next(name for name in exact if name.endswith("output/dense/kernel"))
    rounded = case.weights[kernel].view(np.uint32) & np.uint32(0xFFFFE000)  # to the 10 bits of TF32
    assert case.share(case.architecture, exact | {kernel: rounded.view(np.float32).astype(np.float64)}) > 4


@pytest.mark.parametrize("name", ["hf_uncased", "google_cased"])
def test_two_computations_of_the_small_encoders(name):
    case = Case(DATA / name)
    assert max(bounded.bound.max() for bounded in case.bounded) < OF_TWO / 2
