"""Dense modules of sentence-transformers: linear layers after pooling, each in a folder within the encoder's.

Source: sentence_transformers/base/modules/dense.py of sentence-transformers 6.2.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from layerbeam.transforms.encoders.config_file import ConfigFile, EncoderError
from layerbeam.transforms.encoders.formats.huggingface import (
    find_weight_files,
    hash_tensors,
    list_tensors,
    tensor_reader,
)
from layerbeam.transforms.encoders.formats.safetensors_file import FLOATS
from layerbeam.transforms.encoders.formats.weights import Tensor
from layerbeam.transforms.encoders.source import EncoderSource
from layerbeam.transforms.flow.blocks import Float32Array
from layerbeam.transforms.hardware import tf
from layerbeam.transforms.views.view import WITHIN_ENCODER, DenseModule

_WEIGHT, _BIAS = "linear.weight", "linear.bias"
_ACTIVATION = re.compile(r"torch\.nn\.(?:modules\.(?:activation|linear)\.)?(?P<name>\w+)")
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid")
_DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"


def read_dense_config(handle: str, encoder_folder: Path, folder: str) -> DenseModule:
    """The module that a folder's config.json describes, without its weights. EncoderError if it is another one."""
    if folder == WITHIN_ENCODER:
        return _within_encoder(handle, encoder_folder)
    path = encoder_folder / folder / "config.json"
    if not path.is_file():
        others = sorted(file.parent.name for file in encoder_folder.glob("*/config.json"))
        raise EncoderError(
            f"{handle}: {path} is missing; a Dense module is a folder next to the encoder's own files (there: "
            f"{', '.join(others) or 'none'})"
        )
    config = ConfigFile(handle, path)
    given = config.fields.get("activation_function", _DEFAULT_ACTIVATION)
    match = _ACTIVATION.fullmatch(given) if isinstance(given, str) else None
    if match is None or match["name"] not in _ACTIVATIONS:
        raise config.wrong("activation_function", f"{', '.join(_ACTIVATIONS[:-1])} or {_ACTIVATIONS[-1]} of torch.nn")
    config.require("use_residual", False)
    return DenseModule(
        folder,
        config.integer("in_features"),
        config.integer("out_features"),
        config.require("bias", True, False),
        match["name"].lower(),
    )


def _within_encoder(handle: str, folder: Path) -> DenseModule:
    """The linear layer among an encoder's own weights, as Stanford's ColBERT has it. EncoderError if there is none."""
    files = find_weight_files(handle, folder)
    found = list_tensors(handle, files)
    weight = found.get(_WEIGHT)
    if weight is None or len(weight.shape) != 2 or 0 in weight.shape:
        raise EncoderError(
            f"{handle}: {files[0]}: has no matrix {_WEIGHT} next to the encoder's weights, which is what dense: "
            f"[{WITHIN_ENCODER}] takes; give the folder of a Dense module, such as 2_Dense"
        )
    out_features, in_features = weight.shape
    return DenseModule(WITHIN_ENCODER, in_features, out_features, _BIAS in found, "identity")


def open_dense(source: EncoderSource, folder: str) -> DenseModule:
    """The module in a folder within the encoder's, from its small file and a hash of its weights.

    EncoderError if it cannot be used.
    """
    try:
        module = read_dense_config(source.handle, Path(source.folder), folder)
        return dataclasses.replace(module, sha256=hash_tensors(source.handle, *_find_tensors(source, module)))
    except OSError as error:
        path = error.filename or Path(source.folder, folder)
        raise EncoderError(f"{source.handle}: {path}: cannot be read: {error.strerror or error}") from error


def _find_tensors(source: EncoderSource, module: DenseModule) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """(the files, the module's tensors by name) as PyTorch has them: the weight is [out, in]."""
    folder = Path(source.folder, module.folder)
    files = find_weight_files(source.handle, folder)
    found = list_tensors(source.handle, files)
    expected: dict[str, tuple[int, ...]] = {_WEIGHT: (module.out_features, module.in_features)}
    if module.has_bias:
        expected[_BIAS] = (module.out_features,)
    for name, shape in expected.items():
        tensor = found.get(name)
        if tensor is None or tensor.shape != shape or tensor.dtype not in FLOATS:
            given = f"{tensor.dtype} {list(tensor.shape)}" if tensor else f"missing among {', '.join(found) or 'none'}"
            raise EncoderError(
                f"{source.handle}: {files[0]}: {name} is {given}; by {folder / 'config.json'} it must be "
                f"one of {', '.join(FLOATS)} {list(shape)}: download both again"
            )
    return files, {name: found[name] for name in expected}


def read_dense_weights(source: EncoderSource, module: DenseModule) -> tuple[Float32Array, Float32Array]:
    """(weights [in, out], bias [out]; zeros if it has none). EncoderError if they are damaged."""
    files, tensors = _find_tensors(source, module)
    read = tensor_reader(source.handle, files)
    arrays = {name: read(tensor) for name, tensor in tensors.items()}
    if not all(np.isfinite(values).all() for values in arrays.values()):
        folder = Path(source.folder, module.folder)
        raise EncoderError(f"{source.handle}: {folder}: the weights hold NaN or infinite values; download them again")
    return arrays[_WEIGHT].T, arrays.get(_BIAS, np.zeros(module.out_features, np.float32))


class Dense:
    """A loaded module, which computes in float32; several threads may call it at once.

    By TensorFlow, on the processor: with one thread in an operation, the bits do not depend on the number of cores, as
    those of NumPy's products may.
    """

    def __init__(self, weights: Float32Array, bias: Float32Array, activation: str) -> None:
        self._activation = activation
        with tf.device("/CPU:0"):
            self._weights, self._bias = tf.constant(weights), tf.constant(bias)

    def __call__(self, vectors: Float32Array) -> Float32Array:
        """[r, out_features] from [r, in_features]."""
        with tf.device("/CPU:0"):
            values = tf.nn.bias_add(tf.matmul(tf.constant(vectors, tf.float32), self._weights), self._bias)
            return np.asarray(_activate(values, self._activation))


def _activate(values: Any, activation: str) -> Any:
    functions = {"tanh": tf.tanh, "relu": tf.nn.relu, "gelu": tf.nn.gelu, "sigmoid": tf.sigmoid}
    return functions[activation](values) if activation != "identity" else values


def load_dense(source: EncoderSource, module: DenseModule) -> Dense:
    """The module with its weights, ready to be called. Imports TensorFlow. EncoderError if it has changed."""
    if open_dense(source, module.folder) != module:
        raise EncoderError(f"{source.handle}: {module.folder} has changed since the run was started; start it again")
    return Dense(*read_dense_weights(source, module), module.activation)
