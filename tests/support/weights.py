"""Encoders with random weights, checkpoints, and comparisons of vectors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from repository import DATA
from safetensors.numpy import load_file, save_file

from layerbeam.transforms.encoders import EncoderError, load_weights, open_encoder
from layerbeam.transforms.encoders.architectures import Bert
from layerbeam.transforms.hardware import import_tensorflow

Weights = dict[str, np.ndarray]


def refused(handle: Path | str, **settings: Any) -> str:
    """The error message for an encoder that cannot be used. It begins with the handle."""
    with pytest.raises(EncoderError) as caught:
        open_encoder(str(handle), **settings)
    assert str(caught.value).startswith(f"{handle}: ")
    return str(caught.value)


def same_weights(one: Path, other: Path) -> bool:
    """Whether two folders hold the same encoder weights."""
    first, second = load_weights(open_encoder(str(one))), load_weights(open_encoder(str(other)))
    return list(first) == list(second) and all(np.array_equal(first[name], second[name]) for name in first)


def random_weights(config: Bert, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 weights of an untrained encoder."""
    random = np.random.default_rng(seed)
    shapes = config.weight_shapes()
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    gamma = 1 - getattr(config, "gamma_from", 0)
    return {name: gamma + values if name.endswith("gamma") else values for name, values in weights.items()}


def in_float64(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.astype(np.float64) for name, values in weights.items()}


def write_large_word(folder: Path, word: str) -> Path:
    """The small encoder, whose embedding of one word does not fit in float16."""
    shutil.copytree(DATA / "hf_uncased", folder)
    weights = load_file(folder / "model.safetensors")
    names = ("embeddings.word_embeddings.weight", "embeddings.LayerNorm.weight")
    words, scale = (weights[name].copy() for name in names)
    words[(folder / "vocab.txt").read_text().split("\n").index(word), 5] = 1_000
    scale[5] = 12_000
    save_file(weights | dict(zip(names, (words, scale), strict=True)), folder / "model.safetensors")
    return folder


def vectors(table: pa.Table, column: str) -> np.ndarray:
    """[n, W] of a column of fixed-size lists."""
    values = table[column].combine_chunks()
    return values.flatten().to_numpy(zero_copy_only=False).reshape(-1, values.type.list_size)


def read_checkpoint(folder: Path, name: str = "bert_model.ckpt") -> Weights:
    """All that a checkpoint holds."""
    reader = import_tensorflow().train.load_checkpoint(str(folder / name))
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def write_checkpoint(folder: Path, weights: Weights, name: str = "bert_model.ckpt") -> None:
    tf = import_tensorflow()
    for file in folder.glob(f"{name}.*"):
        file.unlink()
    names = sorted(weights)
    tf.raw_ops.SaveV2(
        prefix=str(folder / name),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(weights[key]) for key in names],
    )
