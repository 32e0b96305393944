"""Some of TensorFlow's oneDNN kernels, asked for by name: what no public operation gives on a CPU.

Grappler makes the same nodes of a graph where it finds a pattern. It never asks a product to keep its weights packed
unless they are constants of the graph, which take 13 times their size in memory and half a minute for BERT-base.
Source: `mkl_matmul_ops_common.h`, `mkl_batch_matmul_op.cc`, `mkl_layer_norm_op.cc`, `mkl_matmul_op_fused.cc` and
`mkl_quantize_op.cc` of TensorFlow 2.21. TensorFlow 2.20 gives the same bits.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Iterable
from typing import Any

import numpy as np

from layerbeam.transforms.encoders.config_file import first_line
from layerbeam.transforms.hardware import instructions, tf

Tensor = Any  # TensorFlow's
# Values of ONEDNN_MAX_CPU_ISA, by which oneDNN uses no later instructions.
_WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI")


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


def nearest_codes(values: Tensor) -> Tensor:
    """The nearest codes 0 to 255, quint8, of float32 values; of two equally near codes the even one."""
    return _node(
        "_MklQuantizeV2",
        [values, tf.constant(0.0), tf.constant(255.0)],
        values.shape,
        outputs=[tf.quint8, tf.float32, tf.float32],
        T=_type(tf.quint8),
        mode={"s": b"SCALED"},
        round_mode={"s": b"HALF_TO_EVEN"},
        _kernel={"s": b"QuantizedMklOp"},
    )


def int8_dense(
    codes: Tensor,
    kernel: Tensor,
    largest: Tensor,
    bias: Tensor,
    activation: str | None = None,
    outputs: tuple[float, float] | None = None,
) -> Tensor:
    """activation(codes kernel + bias): quint8 [n, in] -> float32 [n, out].

    `kernel`: int8 [in, out], packed at the first call; 127 in a column stands for its value in `largest`, [out].
    `outputs`: the values that the codes 0 and 255 of the result stand for; it is quint8 then.
    """
    fused = [b"BiasAdd", *([activation.encode()] if activation else []), b"Requantize" if outputs else b"Dequantize"]
    result = tf.quint8 if outputs else tf.float32
    inputs = [codes, tf.bitcast(kernel, tf.qint8), bias]
    ranges = [tf.constant(0.0), tf.constant(255.0), -largest, largest, *map(tf.constant, outputs or ())]
    limits = [tf.float32] * (2 if outputs else 0)
    return _node(
        "_QuantizedMatMul",
        [*inputs, *ranges],
        [codes.shape[0], kernel.shape[1]],
        outputs=[result, *limits],
        Tdevice_inputs=_types(value.dtype for value in inputs),
        Thost_inputs=_types([tf.float32] * len(ranges)),
        Tdevice_outputs=_types([result]),
        Thost_outputs=_types(limits),
        T1=_type(tf.quint8),
        T2=_type(tf.qint8),
        Tbias=_type(tf.float32),
        U=_type(tf.float32),
        Tout=_type(result),
        fused_ops={"list": {"s": fused}},
        input_quant_mode={"s": b"SCALED"},
        output_quant_mode={"s": b"MIN_FIRST"},
    )


def int8_problem() -> str | None:
    """Why this process cannot compute products of int8, and what to do; None if it can.

    Without VNNI, sums of two products are cut to 16 bits: other vectors, and useless ones.
    """
    problem = _int8_problem()
    needed = "int8 needs a processor with VNNI instructions, no GPU or TPU, and TensorFlow with oneDNN"
    return problem and f"{needed}; {problem}: take float32, or such a machine"


def _int8_problem() -> str | None:
    known = instructions()
    if known is not None and not known & {"avx512_vnni", "avx_vnni", "amx_int8"}:
        return f"the processor of {platform.node()} has none"
    if not is_available("float32"):
        return "here is a GPU or TPU, or oneDNN is switched off"

    def products() -> list[Tensor]:
        codes = nearest_codes(tf.fill([4, 64], 300.0))
        kernel, largest = tf.fill([64, 32], tf.constant(127, tf.int8)), tf.fill([32], 0.5)
        kept = int8_dense(codes, kernel, largest, tf.ones([32]))
        return [kept, tf.bitcast(int8_dense(codes, kernel, largest, tf.ones([32]), None, (-1.0, 16384.0)), tf.uint8)]

    try:
        kept, codes = tf.function(products, autograph=False)()
    except (tf.errors.OpError, ValueError, RuntimeError, AttributeError) as error:
        return f"TensorFlow {tf.__version__} lacks a kernel ({first_line(error)})"
    is_right = np.allclose(kept, 255 * 64 * 0.5 + 1) and np.all(codes == np.rint((255 * 64 * 0.5 + 2) / 16385 * 255))
    return None if is_right else f"TensorFlow {tf.__version__} computes something else on {platform.node()}"


@functools.cache
def is_available(compute_dtype: str) -> bool:
    """Whether this TensorFlow has these kernels in a number type, and they give what the public operations give.

    Not where there is a GPU or TPU, and not where TensorFlow's own switch for oneDNN is off. In bfloat16 they end the
    process on a processor without the instructions that TensorFlow asks for before it makes such nodes itself
    (`IsDataTypeSupportedByOneDNNOnThisCPU` in `util.cc`), and where oneDNN may not use them.
    """
    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        return False
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in ("0", "false"):
        return False
    if compute_dtype == "bfloat16" and (
        not (instructions() or frozenset()) & {"avx512f", "avx_ne_convert"}
        or os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _WITHOUT_BFLOAT16
    ):
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


def _type(dtype: Any) -> dict[str, Any]:
    return {"type": dtype.as_datatype_enum}


def _types(dtypes: Iterable[Any]) -> dict[str, Any]:
    return {"list": {"type": [dtype.as_datatype_enum for dtype in dtypes]}}


def _node(
    kind: str, inputs: list[Tensor], shape: Any, outputs: list[Any] | None = None, **attributes: dict[str, Any]
) -> Tensor:
    """The first output of a node. `outputs`: their types; None for one, of the type `T`, which is the first input's."""
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    if outputs is None:
        outputs, attributes["T"] = [inputs[0].dtype], _type(inputs[0].dtype)
    attrs = {name: AttrValue(**value) for name, value in attributes.items()}
    graph: Any = tf.compat.v1.get_default_graph()
    inputs = [graph.capture(tf.convert_to_tensor(value)) for value in inputs]
    node = graph._create_op_internal(kind, inputs, outputs, name=kind.strip("_"), attrs=attrs)
    node.outputs[0].set_shape(shape)
    return node.outputs[0]
