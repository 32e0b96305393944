"""What the device computes, compared with NumPy: the layers in every number type, with and without XLA; whole runs.

`make test-gpu` runs them on a GPU, `make test-gpu DEVICE=cpu` on the processor. Each comparison prints its tolerance.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import write_encoder
from corpora import random_lines
from float_bounds import Bounded, bounded_layers
from workplace import Workplace

from layerbeam.pipeline.verify.compare import DirectionTolerance, cosines
from layerbeam.transforms.encoders import load_encoder, load_weights, open_encoder
from layerbeam.transforms.encoders.device import DeviceLayer
from layerbeam.transforms.encoders.source import EncoderSource
from layerbeam.transforms.hardware import Hardware, load_tensorflow

LENGTHS = np.array([61, 7, 1, 20], np.int32)

# TF32 keeps 10 bits of each factor. With factors rounded to 10 bits, the smallest cosine is 1 - 1.3e-6 on a CPU, in
# ModernBERT 1 - 1.8e-5, and the lengths are off by 0.0026. Allowed are four times that error, whose square is in the
# cosine.
TF32 = DirectionTolerance(cosine=1 - 2e-5, length=0.01, products="TF32")
TF32_MODERNBERT = DirectionTolerance(cosine=1 - 3e-4, length=0.01, products="TF32")

# bfloat16 keeps 7 bits, of sums too. On a CPU the smallest cosine is 1 - 1.5e-4, in ModernBERT 1 - 3e-3, and the
# lengths are off by 0.023. Allowed are four times that error.
BFLOAT16 = DirectionTolerance(cosine=1 - 2.4e-3, length=0.1, products="bfloat16")
BFLOAT16_MODERNBERT = DirectionTolerance(cosine=1 - 5e-2, length=0.1, products="bfloat16")

# {name: (compute_dtype, whether TF32 is on, tolerance, ModernBERT's)}: ModernBERT never normalizes its residual stream.
# None: the bound of float32.
MODES = {
    "float32": ("float32", False, None, None),
    "TF32": ("float32", True, TF32, TF32_MODERNBERT),
    "bfloat16": ("bfloat16", False, BFLOAT16, BFLOAT16_MODERNBERT),
}
VIEWS = {
    "token": {"level": "token", "layers": [-1, -2]},
    "text": {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True},
}


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("device"))


@pytest.fixture(scope="session")
def tf(device: str) -> Any:
    return load_tensorflow(Hardware(1, device))


@pytest.fixture(scope="session")
def has_tf32(tf: Any, device: str) -> bool:
    """Whether the device has TF32: GPUs since Ampere."""
    gpus = tf.config.get_visible_devices("GPU") if device == "gpu" else []
    return any(tf.config.experimental.get_device_details(gpu)["compute_capability"] >= (8, 0) for gpu in gpus)


@pytest.fixture
def set_tf32(tf: Any) -> Iterator[Callable[[bool], None]]:
    yield tf.config.experimental.enable_tensor_float_32_execution
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture(scope="session")
def source_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], EncoderSource]:
    """An encoder by name: `minilm`, or a small one with random weights."""
    root = tmp_path_factory.mktemp("encoders")
    return functools.cache(
        lambda name: open_encoder(name if name == "minilm" else str(write_encoder(root / name, name)))
    )


@pytest.fixture(scope="session")
def expected_of(source_of: Callable[[str], EncoderSource]) -> Callable[[str], tuple[np.ndarray, list[Bounded]]]:
    """Token ids [B, S] for an encoder, and NumPy's layers of them in float64, [n, H] each."""

    @functools.cache
    def expected(name: str) -> tuple[np.ndarray, list[Bounded]]:
        source = source_of(name)
        shape = (len(LENGTHS), LENGTHS.max())
        token_ids = np.random.default_rng(5).integers(0, source.vocab_size, shape).astype(np.int32)
        weights = load_weights(source)
        return token_ids, bounded_layers(source.architecture, weights, token_ids, LENGTHS, np.zeros_like(token_ids))[0]

    return expected


@pytest.mark.parametrize("xla", [False, True], ids=["plain", "xla"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert", "minilm"])
def test_layers_agree_with_numpy(name, mode, xla, device, source_of, expected_of, set_tf32, has_tf32, capsys):
    compute_dtype, tf32, tolerance, of_modernbert = MODES[mode]
    tolerance = of_modernbert if name == "modernbert" else tolerance
    token_ids, expected = expected_of(name)
    set_tf32(tf32)
    numbers = list(range(len(expected)))
    encoder = load_encoder(source_of(name), layers=numbers, pooler=False, compute_dtype=compute_dtype, xla=xla)
    layers, _ = encoder(token_ids, LENGTHS, np.zeros_like(token_ids))
    if device == "gpu":
        assert all(isinstance(layer, DeviceLayer) and "GPU" in layer._values.device for layer in layers.values())
    found = [np.asarray(layers[number], np.float64) for number in numbers]
    off = max(np.abs(one - other.values).max() for one, other in zip(found, expected, strict=True))
    cosine = min(cosines(one, other.values).min() for one, other in zip(found, expected, strict=True))
    share = max(other.share(one) for one, other in zip(found, expected, strict=True))
    with capsys.disabled():
        allowed = f"{1 / share:.1f} times that" if tolerance is None else str(tolerance).partition(" after products")[0]
        print(f"\n{name}, {mode}: off by {off:.2g}, cosine 1 - {1 - cosine:.2g}; allowed: {allowed}", end=" ")
    for one, other in zip(found, expected, strict=True):
        if tolerance is None:
            other.assert_allows(one)
        else:
            assert tolerance.allows(one, other.values).all()
    # Otherwise the products were those of float32, and the test shows nothing. For the small ones, 24 wide, a GPU may
    # take a kernel without TF32.
    if mode == "bfloat16" or (mode == "TF32" and has_tf32 and name == "minilm"):
        assert off > 4e-4


@pytest.mark.parametrize(
    ("level", "settings"),
    [("token", {}), ("text", {}), ("text", {"compute_dtype": "bfloat16", "xla": True, "length_buckets": [32, 64]})],
    ids=["token", "text", "text-bfloat16-xla"],
)
def test_runs_are_verified(level, settings, device, workplace: Workplace):
    """`verify` compares with NumPy, to 1e-4 in float32: less than what TF32 would be off."""
    workplace.write("corpus/a.txt", "\n".join(random_lines(60)))
    encoder = {"device": device, "max_seq_length": 64, "batch_tokens": 1024}
    workplace.configure(encoder=encoder | settings, views={"v": VIEWS[level]})
    workplace.run()
    assert "pass" in workplace.verify().out
    record = json.loads(Path("out/_runs/1.json").read_text())
    assert record["counts"]["encoded_tokens"] > 1000
