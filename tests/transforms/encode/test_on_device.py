"""Layers that stay where they are computed give the vectors of layers that are fetched whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from repository import DATA

from layerbeam.transforms.encode.block import encode_block
from layerbeam.transforms.encode.forward import Forward
from layerbeam.transforms.encoders import load_weights, network, open_encoder
from layerbeam.transforms.encoders.device import DeviceLayer
from layerbeam.transforms.encoders.network import Network
from layerbeam.transforms.flow.blocks import TextBlock
from layerbeam.transforms.settings import EncodeSettings, SequenceSettings
from layerbeam.transforms.tokenize.tokenizer import Tokenizer
from layerbeam.transforms.views import columns
from layerbeam.transforms.views.view import ViewSpec

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


BATCH = np.array([[2, 7, 9, 3], [2, 3, 0, 0]], np.int32), np.array([4, 2], np.int32), np.zeros((2, 4), np.int32)


@pytest.fixture(scope="module")
def source():
    return open_encoder(str(DATA / "hf_uncased"))


def load(source, layers: tuple[int, ...], *, on_device: bool, xla: bool = False) -> Network:
    """Also where there is, or is not, a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "keeps_layers", lambda: on_device)
        encoder = Network(source.architecture, load_weights(source), layers=layers, xla=xla)
    assert {type(layer) for layer in encoder(*BATCH)[0].values()} == {DeviceLayer if on_device else np.ndarray}
    return encoder


@pytest.fixture(scope="module")
def fetched(source):
    return load(source, (1, 3), on_device=False)


@pytest.fixture(scope="module")
def kept(source):
    return load(source, (1, 3), on_device=True)


def vectors_of(source, view: ViewSpec, long_text: str, *encoders: Network) -> list[list[np.ndarray]]:
    tokens = Tokenizer(source, (view,), SequenceSettings(16, long_text))(TextBlock.of(TEXTS))
    settings = EncodeSettings(64, 16, 4)
    return [encode_block(tokens, Forward(encoder), (view,), settings).vectors[view.name] for encoder in encoders]


@pytest.mark.parametrize("long_text", ["truncate", "window"])
@pytest.mark.parametrize(("level", "combine", "pooling"), VIEWS)
def test_every_view_has_the_same_vectors(source, fetched, kept, level, combine, pooling, long_text):
    view = ViewSpec(
        name="v", level=level, layers=(1, 3), hidden_size=source.hidden_size, combine=combine, pooling=pooling
    )
    expected, found = vectors_of(source, view, long_text, fetched, kept)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-5)


def test_token_vectors_of_pooled_views_are_not_fetched(source, kept, monkeypatch):
    view = ViewSpec(
        name="v", level="text", layers=(1, 3), hidden_size=source.hidden_size, combine="sum", pooling="mean"
    )
    calls = []
    monkeypatch.setattr(DeviceLayer, "take", lambda *_: calls.append("take"))
    monkeypatch.setattr(DeviceLayer, "__array__", lambda *_: calls.append("all"))
    ((vectors,),) = vectors_of(source, view, "truncate", kept)
    assert np.abs(vectors).min() > 0
    assert calls == []


def test_a_row_without_tokens_is_zero():
    layer = DeviceLayer(network.tf.constant(np.ones((3, 2), np.float32)))
    positions, splits = np.array([0, 1, 2]), np.array([0, 0, 2, 3])
    for pooling in ("first", "last", "max", *columns.SUMS):
        expected = columns.pool(np.ones((3, 2), np.float32), splits, pooling)
        assert layer.pool(positions, splits, pooling).tolist() == expected.tolist()


def test_compiled_layers_that_stay_there_have_the_same_vectors(source):
    expected, found = (load(source, (0, 1), on_device=on_device, xla=True)(*BATCH)[0] for on_device in (False, True))
    for layer in (0, 1):
        assert np.asarray(found[layer]).tobytes() == np.asarray(expected[layer]).tobytes()
        assert len(np.asarray(expected[layer])) == 6
