"""Encoders of any architecture and size with random weights in the layout of Hugging Face.

Random weights are enough for benchmarks: speed does not depend on them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from layerbeam.transforms.encoders.architectures import Architecture, Bert

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from tensor_files import file_tensors

BASE = Bert(
    vocab_size=30522,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=512,
    type_vocab_size=2,
    hidden_act="gelu",
    layer_norm_eps=1e-12,
)


def make_weights(architecture: Architecture) -> dict[str, np.ndarray]:
    """BERT's own initializer: normal, standard deviation 0.02.

    Biases are random, too: TensorFlow would remove zeros from the graph.
    """
    random = np.random.default_rng(0)
    weights = {}
    for name, shape in architecture.weight_shapes().items():
        values = 0.02 * random.standard_normal(shape, np.float32)
        one = 1 - getattr(architecture, "gamma_from", 0.0)
        weights[name] = values + np.float32(one if name.endswith("gamma") else 0)
    return weights


def write_huggingface(folder: Path, config: Bert, weights: dict[str, np.ndarray]) -> None:
    sizes = {name: value for name, value in vars(config).items() if isinstance(value, int)}
    fields = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, **sizes}
    (folder / "config.json").write_text(json.dumps(fields))
    write_safetensors(folder, config, weights)


def write_safetensors(folder: Path, architecture: Architecture, weights: dict[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    save_file(file_tensors(architecture, weights), folder / "model.safetensors", metadata={"format": "pt"})
