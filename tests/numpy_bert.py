"""The BERT forward pass in plain NumPy, one text at a time: what the graph is tested against."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from transforms.bert import BertConfig, weight_shapes

_erf = np.vectorize(math.erf, otypes=[np.float64])


def random_weights(config: BertConfig, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = weight_shapes(config)
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: 1 + values if name.endswith("gamma") else values for name, values in weights.items()}


def gelu(x: np.ndarray, hidden_act: str) -> np.ndarray:
    if hidden_act == "gelu":
        return x * 0.5 * (1 + _erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def forward(
    config: BertConfig, weights: Mapping[str, np.ndarray], token_ids: np.ndarray, segment_ids: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """All layers [S, H], from 0 up, and the pooled output [H] of one text without padding, in float64."""
    w = {name.removeprefix("bert/"): values.astype(np.float64) for name, values in weights.items()}

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]

    def layer_norm(name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return normal * w[f"{name}/LayerNorm/gamma"] + w[f"{name}/LayerNorm/beta"]

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), config.num_attention_heads, -1).transpose(1, 0, 2)

    x = w["embeddings/word_embeddings"][token_ids] + w["embeddings/token_type_embeddings"][segment_ids]
    layers = [layer_norm("embeddings", x + w["embeddings/position_embeddings"][: len(token_ids)])]
    for index in range(config.num_hidden_layers):
        block, x = f"encoder/layer_{index}", layers[-1]
        query, key, value = (heads(dense(f"{block}/attention/self/{part}", x)) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        context = weight / weight.sum(-1, keepdims=True) @ value
        attended = dense(f"{block}/attention/output/dense", context.transpose(1, 0, 2).reshape(x.shape))
        x = layer_norm(f"{block}/attention/output", x + attended)
        inner = gelu(dense(f"{block}/intermediate/dense", x), config.hidden_act)
        layers.append(layer_norm(f"{block}/output", x + dense(f"{block}/output/dense", inner)))
    return layers, np.tanh(dense("pooler/dense", layers[-1][0]))
