"""Three of TensorFlow's oneDNN kernels, asked for by name: what no public operation gives on a CPU.

Grappler makes the same nodes of a graph where it finds a pattern. It never asks a product to keep its weights packed
unless they are constants of the graph, which take 13 times their size in memory and half a minute for BERT-base.
Source: `mkl_matmul_ops_common.h`, `mkl_batch_matmul_op.cc` and `mkl_layer_norm_op.cc` of TensorFlow 2.21. TensorFlow
2.20 gives the same bits.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from layerbeam.transforms.hardware import instructions, tf

Tensor = Any  # TensorFlow's


def packed_dense(values: Tensor, kernel: Tensor, bias: Tensor, activation: str | None = None) -> Tensor:
    """activation(values kernel + bias), [n, in] -> [n, out], float32 or bfloat16, `kernel` packed at the first call.

    `activation`: GeluExact or GeluApproximate. The kernel is kept packed in the graph's node, which never looks at it
    again: it must not change after that.
    """
    fused = [b"BiasAdd", *([activation.encode()] if activation else [])]
    return _node(
        "_MklNativeFusedMatMul",
        [values, kernel, bias],
        [values.shape[0], kernel.shape[1]],
        num_args={"i": 1},
        fused_ops={"list": {"s": fused}},
        is_filter_const={"b": True},
        _kernel={"s": b"MklNameChangeOp"},
    )


def biased_scores(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """query key' + bias in one pass: [B, heads, S, d] twice -> [B, heads, S, S], to which `bias` broadcasts."""
    return _node(
        "_MklFusedBatchMatMulV2",
        [query, key, tf.constant(1, query.dtype), bias],
        [*query.shape[:3], key.shape[2]],
        num_args={"i": 2},
        fused_ops={"list": {"s": [b"Mul", b"Add"]}},
        adj_x={"b": False},
        adj_y={"b": True},
    )


def layer_norm(values: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """(values - mean) / sqrt(variance + epsilon) gamma + beta over the last axis, in one pass: [n, H] -> [n, H].

    A row's bits depend on nothing but the row.
    """
    return _node("_MklLayerNorm", [values, gamma, beta], values.shape, epsilon={"f": epsilon})


@functools.cache
def is_available(compute_dtype: str) -> bool:
    """Whether this TensorFlow has these kernels in a number type, and they give what the public operations give.

    Not where there is a GPU or TPU, and not where TensorFlow's own switch for oneDNN is off. In bfloat16 they end the
    process on a processor without the instructions that TensorFlow asks for before it makes such nodes itself
    (`IsDataTypeSupportedByOneDNNOnThisCPU` in `util.cc`).
    """
    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        return False
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in ("0", "false"):
        return False
    if compute_dtype == "bfloat16" and not (instructions() or frozenset()) & {"avx512f", "avx_ne_convert"}:
        return False
    random = np.random.default_rng(0)
    rows, kernel = (tf.constant(random.normal(size=shape), tf.float32) for shape in ((4, 64), (64, 32)))
    gamma, beta, bias = (tf.constant(random.normal(size=size), tf.float32) for size in (64, 64, 32))

    heads = tf.reshape(rows, [1, 2, 8, 16])
    masks = [tf.constant(random.normal(size=shape), tf.float32) for shape in ((1, 1, 1, 8), (1, 2, 8, 8))]

    def given() -> list[Tensor]:
        typed = functools.partial(tf.cast, dtype=compute_dtype)
        products = [packed_dense(typed(rows), typed(kernel), typed(bias), "GeluExact")]
        products += [biased_scores(typed(heads), typed(heads), typed(mask)) for mask in masks]
        return [*(tf.cast(values, tf.float32) for values in products), layer_norm(rows, gamma, beta, 1e-12)]

    dense = tf.nn.gelu(tf.nn.bias_add(tf.matmul(rows, kernel), bias), approximate=False)
    mean, variance = tf.nn.moments(rows, axes=[-1], keepdims=True)
    normed = tf.nn.batch_normalization(rows, mean, variance, beta, gamma, 1e-12)
    expected = [dense, *(tf.matmul(heads, heads, transpose_b=True) + mask for mask in masks), normed]
    try:
        found = tf.function(given, autograph=False)()
    except (tf.errors.OpError, ValueError, RuntimeError, AttributeError):
        return False  # another processor or another TensorFlow
    allowed = 1e-4 if compute_dtype == "float32" else 0.5
    return all(bool(tf.reduce_all(tf.abs(a - b) < allowed)) for a, b in zip(found, expected, strict=True))


def _node(kind: str, inputs: list[Tensor], shape: Any, **attributes: dict[str, Any]) -> Tensor:
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    dtype = inputs[0].dtype
    attrs = {name: AttrValue(**value) for name, value in attributes.items()}
    attrs["T"] = AttrValue(type=dtype.as_datatype_enum)
    graph: Any = tf.compat.v1.get_default_graph()
    inputs = [graph.capture(tf.convert_to_tensor(value)) for value in inputs]
    node = graph._create_op_internal(kind, inputs, [dtype], name=kind.strip("_"), attrs=attrs)
    node.outputs[0].set_shape(shape)
    return node.outputs[0]
