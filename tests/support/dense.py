"""Encoders with Dense modules of sentence-transformers, and these in NumPy."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
from repository import DATA
from safetensors.numpy import save_file

TANH = "torch.nn.modules.activation.Tanh"
IDENTITY = "torch.nn.modules.linear.Identity"
_FUNCTIONS = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": np.vectorize(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def write_dense(
    encoder: Path, name: str, in_features: int, out_features: int, *, activation: str = TANH, bias: bool = True
) -> dict[str, np.ndarray]:
    """Writes a module with random weights into an encoder's folder; returns them."""
    random = np.random.default_rng(in_features + out_features)
    weights = {"linear.weight": random.normal(0, 0.2, (out_features, in_features)).astype(np.float32)}
    if bias:
        weights["linear.bias"] = random.normal(0, 1, out_features).astype(np.float32)
    folder = encoder / name
    folder.mkdir()
    config = {"in_features": in_features, "out_features": out_features, "bias": bias, "activation_function": activation}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return weights


def encoder_with_dense(folder: Path) -> list[dict[str, np.ndarray]]:
    """Copies the small encoder and adds 2_Dense, 64 -> 48 with tanh, and 3_Dense, 48 -> 32 without bias."""
    shutil.copytree(DATA / "hf_uncased", folder)
    return [
        write_dense(folder, "2_Dense", 64, 48),
        write_dense(folder, "3_Dense", 48, 32, activation=IDENTITY, bias=False),
    ]


def dense_in_numpy(values: np.ndarray, weights: dict[str, np.ndarray], activation: str) -> np.ndarray:
    """The module's output in float64. `activation`: the class in torch.nn."""
    product = values.astype(np.float64) @ weights["linear.weight"].T.astype(np.float64)
    return _FUNCTIONS[activation](product + weights.get("linear.bias", 0))
