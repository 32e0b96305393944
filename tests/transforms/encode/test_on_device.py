"""Layers that stay where they are computed give the vectors of layers that are fetched whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from repository import DATA

from layerbeam.transforms import columns
from layerbeam.transforms.blocks import TextBlock
from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import Forward
from layerbeam.transforms.encoders import load_encoder, network, open_encoder
from layerbeam.transforms.encoders.device import DeviceLayer
from layerbeam.transforms.settings import EncodeSettings, SequenceSettings
from layerbeam.transforms.tokenize.tokenizer import Tokenizer
from layerbeam.transforms.views import View

TEXTS = ["the river bank", "a well", "the money in the bank and the river", "the", "a river and a bank " * 9]
VIEWS = [
    *itertools.product(("text", "word"), ["separate"], ("mean", "max", "first", "last", "sum")),
    *itertools.product(
        ["text"], ("sum", "concat", "mean"), ("mean", "max", "mean_max", "mean_sqrt_len", "weighted_mean")
    ),
    ("text", "sum", "cls"),
    ("text", "sum", "none"),
    ("token", "separate", "mean"),
    ("record", "mean", "mean"),
]


@pytest.fixture(scope="module")
def source():
    return open_encoder(str(DATA / "hf_uncased"))


def vectors_of(source, view: View, window: bool) -> list[np.ndarray]:
    long_text = "window" if window else "truncate"
    tokens = Tokenizer(source, (view,), SequenceSettings(16, long_text))(TextBlock.of(TEXTS))
    forward = Forward(load_encoder(source, layers=(1, 3), pooler=False))
    return encode_block(tokens, forward, (view,), EncodeSettings(64, 16, 4)).vectors[view.name]


@pytest.mark.nightly_but(
    *(f"text-separate-{pooling}-True" for pooling in ("mean", "max", "first", "last", "sum")),
    *(f"text-{combine}-weighted_mean-True" for combine in ("sum", "concat", "mean")),
    *("text-sum-cls-True", "text-sum-none-True", "word-separate-last-True", "token-separate-mean-True"),
    "record-mean-mean-False",
)
@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize(("level", "combine", "pooling"), VIEWS)
def test_every_view_has_the_same_vectors(source, monkeypatch, level, combine, pooling, window):
    view = View(name="v", level=level, layers=(1, 3), hidden_size=source.hidden_size, combine=combine, pooling=pooling)
    monkeypatch.setattr(network, "keeps_layers", lambda: False)  # also where there is a GPU
    expected = vectors_of(source, view, window)
    monkeypatch.setattr(network, "keeps_layers", lambda: True)
    found = vectors_of(source, view, window)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-5)


def test_token_vectors_of_pooled_views_are_not_fetched(source, monkeypatch):
    view = View(name="v", level="text", layers=(1, 3), hidden_size=source.hidden_size, combine="sum", pooling="mean")
    monkeypatch.setattr(network, "keeps_layers", lambda: True)
    fetched = []
    monkeypatch.setattr(DeviceLayer, "take", lambda *_: fetched.append("take"))
    monkeypatch.setattr(DeviceLayer, "__array__", lambda *_: fetched.append("all"))
    assert np.abs(vectors_of(source, view, window=False)[0]).min() > 0
    assert fetched == []


def test_a_row_without_tokens_is_zero():
    layer = DeviceLayer(network.tf.constant(np.ones((3, 2), np.float32)))
    positions, splits = np.array([0, 1, 2]), np.array([0, 0, 2, 3])
    for pooling in ("first", "last", "max", *columns.SUMS):
        expected = columns.pool(np.ones((3, 2), np.float32), splits, pooling)
        assert layer.pool(positions, splits, pooling).tolist() == expected.tolist()


def test_compiled_layers_that_stay_there_have_the_same_vectors(source, monkeypatch):
    batch = np.array([[2, 7, 9, 3], [2, 3, 0, 0]], np.int32), np.array([4, 2], np.int32), np.zeros((2, 4), np.int32)
    expected, _ = load_encoder(source, layers=(1, 3), pooler=False, xla=True)(*batch)
    monkeypatch.setattr(network, "keeps_layers", lambda: True)
    found, _ = load_encoder(source, layers=(1, 3), pooler=False, xla=True)(*batch)
    for layer in (1, 3):
        assert isinstance(found[layer], DeviceLayer)
        assert np.asarray(found[layer]).tobytes() == np.asarray(expected[layer]).tobytes()
        assert len(np.asarray(expected[layer])) == 6
