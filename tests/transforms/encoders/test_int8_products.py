"""Products of int8: codes against literals, networks against the same arithmetic in NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from architectures import batch_of
from weights import in_float64

from layerbeam.pipeline.verify.compare import cosines
from layerbeam.transforms.encode.forward import Encoder
from layerbeam.transforms.encoders import (
    EncoderError,
    EncoderSource,
    load_encoder,
    load_weights,
    onednn,
    open_encoder,
)
from layerbeam.transforms.encoders import open as open_module
from layerbeam.transforms.encoders.calibrate import calibrate
from layerbeam.transforms.encoders.int8 import InputCodes, kernel_codes, quantize_weights
from layerbeam.transforms.encoders.source import CALIBRATION
from layerbeam.transforms.reference import forward, round_kernels

pytestmark = pytest.mark.usefixtures("threads")


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_steps_and_zeros():
    # 1.1 * 255 / 255 is 1.1, and the next power of 2^(1/8) is 2^(2/8) = 1.189; the second channel's is half of it.
    codes = InputCodes.of_range(array(0, -31.875), array(255, 31.875), one_step=False)
    np.testing.assert_allclose(codes.step, [2 ** (2 / 8), 2 ** (-6 / 8)], rtol=1e-6)
    assert codes.zero.tolist() == [20, 128]
    one = InputCodes.of_range(array(0, -31.875), array(255, 31.875), one_step=True)
    # 1.05 * 286.875 / 255 is 1.181, and the next power of 2^(1/64) is 2^(16/64) = 1.189.
    np.testing.assert_allclose([one.step], [2 ** (16 / 64)], rtol=1e-6)
    assert one.limits == pytest.approx((-34 * 2 ** (16 / 64), 221 * 2 ** (16 / 64)))


def test_a_channel_without_a_range():
    codes = InputCodes.of_range(array(3, 0, -1), array(3, 0, 1), one_step=False)
    assert np.isfinite(codes.step).all()
    assert (codes.step > 0).all()
    x = array(3, 0, 0.5)
    back = (np.rint(x / codes.step + codes.zero) - codes.zero) * codes.step
    assert (np.abs(back - x) <= codes.step / 2 + 1e-6).all()


def test_codes_of_a_kernel():
    inputs = InputCodes(array(0.5, 2), array(10, 20))
    kernel = np.array([[2, 0, 8], [-0.25, 0, 2]], np.float32)
    codes, scale = kernel_codes(kernel, inputs)
    assert codes.tolist() == [[127, 0, 127], [-64, 0, 127]]  # of 1 and -0.5, of 0 and 0, of 4 and 4
    np.testing.assert_allclose(scale, [1 / 127, 1, 4 / 127], rtol=1e-6)


def test_a_bias_includes_the_zeros():
    inputs = {"a/dense": InputCodes(array(1, 1), array(10, 20))}
    pairs = [("a/dense/kernel", np.eye(2, dtype=np.float32)), ("x/kernel", array(7)), ("a/dense/bias", array(1, 2))]
    given = dict(quantize_weights(pairs, inputs))
    assert list(given) == [
        *(f"a/dense/{part}" for part in ("kernel", "largest", "inverse", "zero")),
        "x/kernel",
        "a/dense/bias",
    ]
    np.testing.assert_allclose(given["a/dense/bias"], [1 - 10, 2 - 20], rtol=1e-6)
    np.testing.assert_allclose(given["a/dense/largest"], [1, 1], rtol=1e-6)
    assert given["x/kernel"].tolist() == [7]


# One for each way in which blocks call products, and fewer texts than ship with the package.
NAMES = ("bert", "albert", "deberta", "modernbert", "gemma3")
TEXTS = CALIBRATION.read_text(encoding="utf-8").splitlines()[::8]


class Loaded(NamedTuple):
    source: EncoderSource
    encoder: Encoder
    codes: dict[str, InputCodes]


@pytest.fixture(scope="module")
def load(folders) -> Callable[[str], Loaded]:
    """All layers of an encoder in int8, and the codes with which it was loaded."""

    def load(name: str) -> Loaded:
        source = open_encoder(str(folders[name]))
        codes: dict[str, InputCodes] = {}

        def keep(*arguments: Any, **settings: Any) -> dict[str, InputCodes]:
            codes.update(calibrate(*arguments, **settings))
            return codes

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(open_module, "calibrate", keep)
            settings = {"pooler": source.has_pooler, "compute_dtype": "int8", "calibration": TEXTS}
            return Loaded(source, load_encoder(source, layers=range(4), **settings), codes)

    return load


@pytest.fixture(scope="module")
def loaded(load) -> Callable[[str], Loaded]:
    """The same, loaded once."""
    return functools.cache(load)


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_numpy_and_is_near_float32(loaded, name, int8_products):
    source, encoder, codes = loaded(name)
    layers = range(4)
    token_ids, lengths, segment_ids = batch_of([61, 7, 1, 20], 61)
    found, pooled = encoder(token_ids, lengths, segment_ids)
    weights = dict(load_weights(source))
    rounded = round_kernels(weights, codes)
    texts = [
        (ids[:length], segments[:length] * source.has_segments)
        for ids, length, segments in zip(token_ids, lengths, segment_ids, strict=True)
    ]
    expected = [forward(source.architecture, rounded, *text, codes)[0] for text in texts]
    exact = [forward(source.architecture, in_float64(weights), *text)[0] for text in texts]
    for layer in layers:
        wanted = np.concatenate([of_text[layer] for of_text in expected])
        # An input that rounding takes to the next code moves its token by a hundredth, and the others of its text by
        # less. Of a gated layer's random products few tokens have small sums, whose directions depend on that.
        assert np.quantile(cosines(found[layer], wanted), 0.1) > 0.995
        assert np.median(cosines(found[layer], np.concatenate([of_text[layer] for of_text in exact]))) > 0.9
    # In the first block most texts have equal codes, the one of a single token all but surely.
    off = np.abs(found[1] - np.concatenate([of_text[1] for of_text in expected]))
    assert min(of_text.max() for of_text in np.split(off, np.cumsum(lengths)[:-1])) < 1e-4
    assert np.abs(found[3] - np.concatenate([of_text[3] for of_text in exact])).max() > 1e-3
    assert source.has_pooler == (pooled is not None)


def test_no_product_of_int8_is_before_layer_0(folders, loaded, int8_products):
    source, encoder, _ = loaded("bert")
    batch = batch_of([30, 9], 30)
    exact = load_encoder(source, layers=[0], pooler=False)(*batch)[0][0]
    np.testing.assert_array_equal(encoder(*batch)[0][0], exact)
    alone = load_encoder(source, layers=[0], pooler=False, compute_dtype="int8", calibration=TEXTS[:1])
    np.testing.assert_array_equal(alone(*batch)[0][0], exact)


def test_same_bytes_again_and_in_a_batch_of_other_texts(load, loaded, int8_products):
    """With scales of its own, whatever was loaded between."""
    token_ids, lengths, segment_ids = batch_of([40] * 30, 40)
    encoders = loaded("bert").encoder, loaded("albert").encoder, load("bert").encoder
    found = [encoder(token_ids, lengths, segment_ids)[0][3] for encoder in encoders]
    np.testing.assert_array_equal(found[0], found[2])
    assert np.abs(found[0] - found[1]).max() > 0.1
    few = encoders[2](token_ids[7:9], lengths[7:9], segment_ids[7:9])[0][3]
    np.testing.assert_array_equal(few, found[2][280:360])


def test_refused_without_the_instructions(folders, monkeypatch):
    monkeypatch.setattr(onednn, "instructions", lambda: frozenset({"avx2"}))
    with pytest.raises(EncoderError, match=r"compute_dtype: int8 needs a processor with VNNI .* take float32"):
        load_encoder(open_encoder(str(folders["bert"])), layers=[1], pooler=False, compute_dtype="int8")
