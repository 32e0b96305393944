"""An architecture's forward pass as a TensorFlow graph: from token ids to the requested layers."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from layerbeam.transforms.encoders import onednn
from layerbeam.transforms.encoders.architectures.architecture import Architecture
from layerbeam.transforms.encoders.attention import ON_CPU, ON_DEVICE, Attention
from layerbeam.transforms.encoders.config_file import Activation
from layerbeam.transforms.encoders.device import DeviceLayer, keeps_layers
from layerbeam.transforms.encoders.formats.weights import take_over
from layerbeam.transforms.encoders.int8 import InputCodes, quantize_weights
from layerbeam.transforms.encoders.memory import batch_bytes
from layerbeam.transforms.flow.blocks import Float32Array, Int32Array
from layerbeam.transforms.hardware import slow_bfloat16, tf
from layerbeam.transforms.views.columns import Layer

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.dense import Dense
    from layerbeam.transforms.views.view import DenseModule

Tensor = Any  # TensorFlow's

ComputeDtype = Literal["float32", "bfloat16", "int8"]

_FUSED_GELU: dict[Activation | None, str] = {"gelu": "GeluExact", "gelu_tanh": "GeluApproximate"}


class Batch(NamedTuple):
    """A batch within the graph: int32 [B, S] token and segment ids, [B] lengths; B and S as tensors.

    `is_long`: whether attention is computed in blocks.
    """

    token_ids: Tensor
    lengths: Tensor
    segment_ids: Tensor
    rows: Tensor
    longest: Tensor
    is_long: bool

    @property
    def is_real(self) -> Tensor:
        """bool [B, S]: whether a place holds a token, not padding."""
        return tf.sequence_mask(self.lengths, self.longest)


class Network:
    """A forward pass that gives `layers`, and the pooled output if `pooler`; several threads may call it at once.

    `weights`: by name, with the shapes of `weight_shapes`; those of blocks that `layers` do not need are ignored. They
    must not change later.
    `pad_id`: for callers that pad batches; padding has no influence. `has_segments`: if not, all segment ids are 0.
    `compute_dtype`: of the matrix products; the residual stream, layer norm and results are float32. `codes`: for
    int8, by product, of its inputs; products that have none, and those of attention, are float32. `xla`: compile it,
    once per batch shape. ValueError for an unknown layer.

    One trace serves all shapes of short texts, and another, made for the first of them, those of long ones. Set
    TensorFlow's threads first (`transforms/hardware.py`). The same batch gives equal bits; in another batch, or at
    another position in it, a text's vectors differ by rounding (MiniLM: up to 5e-6).

    Tried and rejected, measured on 2 cores with AVX-512 (TensorFlow 2.21): products without the padding, in fuller
    batches (MiniLM 1 %, BERT-base bfloat16 1 to 4 % faster); the residual stream in bfloat16, added by the product
    (MiniLM 1 to 4 % faster, BERT-base 1 %, and less exact); packed weights in float32 (MiniLM 1 to 3 % faster,
    BERT-base 2 to 4 % slower, twice the memory); weights as constants (BERT-base: no faster than packed ones, 20 s to
    load, 13 times their memory); XLA on the CPU (float32 8 to 19 % slower, bfloat16 5 times, without such products);
    two threads within an operation (13 % slower, and other bits); means of texts within the graph (MiniLM, 32 texts of
    32 tokens: within 2 % of pooling what it gives, plain and with XLA). Behind the graph of a GPU, `DeviceLayer.pool`
    takes 0.13 ms of Python for a layer of a batch, in another thread than the one that feeds the GPU; as one function
    of TensorFlow 0.5 ms.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, Float32Array],
        *,
        layers: Sequence[int],
        pooler: bool = False,
        pad_id: int = 0,
        has_segments: bool = True,
        compute_dtype: ComputeDtype = "float32",
        codes: Mapping[str, InputCodes] | None = None,
        xla: bool = False,
    ) -> None:
        self.architecture = architecture
        self.pad_id = pad_id
        self.dense_modules: Mapping[DenseModule, Dense] = {}
        self.layers = tuple(layers)
        self.pooler = pooler
        self._has_segments = has_segments
        self._keeps_layers = keeps_layers()
        slow = slow_bfloat16(compute_dtype)
        if slow is not None:
            logging.getLogger(__name__).warning("encoder: %s", slow)
        self._num_blocks = architecture.blocks_needed(layers, pooler=pooler)
        self._codes = codes or {}
        self._dtype = tf.as_dtype("float32" if compute_dtype == "int8" else compute_dtype)
        self._has_kernels = not xla and onednn.is_available(self._dtype.name)
        # float32 products are as fast with weights packed at each call; bfloat16 products are not.
        self._is_packed = self._has_kernels and compute_dtype == "bfloat16"
        # Variables, not constants: see above. One at a time, and in the memory that they were read into if possible.
        self._variables = {}
        self._functions: dict[str, Any] = {}  # of `repeated`
        fused = architecture.fuse(weights, num_blocks=self._num_blocks, pooler=pooler)
        for name, values in quantize_weights(fused, self._codes):
            is_float = name.endswith(("/kernel", "/bias")) and values.dtype != np.int8
            dtype = self._dtype if is_float else values.dtype  # of products, or of the rest
            self._variables[name] = tf.Variable(tf.cast(take_over(values), dtype), trainable=False, name=name)
        self.attention = Attention(
            architecture.num_attention_heads,
            ON_DEVICE if xla or self._keeps_layers else ON_CPU,
            self._dtype,
            onednn.biased_scores if self._has_kernels else _biased_scores,
            varies=not xla,
        )
        ids = tf.TensorSpec([None, None], tf.int32)
        signature = [ids, tf.TensorSpec([None], tf.int32), ids]
        # XLA needs static shapes, and the number of real tokens is not one: they are gathered from its result.
        self._is_compiled = xla
        graph, self._long_graph = (
            tf.function(
                functools.partial(self._encode_batch if xla else self._forward, is_long),
                input_signature=signature,
                autograph=False,
                jit_compile=True if xla else None,
            )
            for is_long in (False, True)
        )
        self._graph = graph if xla else graph.get_concrete_function()

    def __call__(
        self, token_ids: Int32Array, lengths: Int32Array, segment_ids: Int32Array
    ) -> tuple[dict[int, Layer], Float32Array | None]:
        """Layers and pooled output of one batch; see `layerbeam.transforms.encode.forward.Encoder`.

        ValueError if S exceeds the encoder's positions; TensorFlow's InvalidArgumentError for an id outside the
        vocabulary.
        """
        if token_ids.shape[1] > self.architecture.max_length:
            raise ValueError(
                f"token_ids: rows of {token_ids.shape[1]} tokens; the encoder has "
                f"{self.architecture.max_length} positions: lower max_seq_length"
            )
        segment_ids = segment_ids if self._has_segments else np.zeros_like(segment_ids)
        variable = next(iter(self._variables.values()))
        with tf.device(variable.device) if self._is_compiled else contextlib.nullcontext():  # where XLA compiles
            graph = self._long_graph if self.attention.is_long(token_ids.shape[1]) else self._graph
            outputs = graph(*(tf.constant(values, tf.int32) for values in (token_ids, lengths, segment_ids)))
        pooled = np.asarray(outputs.pop()) if self.pooler else None
        if self._is_compiled:  # with padding, which the processor, or a GPU, takes out
            real = np.flatnonzero(np.arange(token_ids.shape[1]) < lengths[:, None])
            outputs = [tf.gather(layer, real) if self._keeps_layers else np.asarray(layer)[real] for layer in outputs]
        layers: Iterable[Layer] = map(DeviceLayer if self._keeps_layers else np.asarray, outputs)
        return dict(zip(self.layers, layers, strict=True)), pooled

    def batch_bytes(self, rows: int, longest: int) -> int | None:
        """What a batch takes of the processor's memory at most; None on another device."""
        is_here = not (self._is_compiled or self._keeps_layers)
        return batch_bytes(self.architecture, self.layers, rows, longest).total if is_here else None

    def _forward(self, is_long: bool, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor) -> list[Tensor]:
        outputs = self._encode_batch(is_long, token_ids, lengths, segment_ids)
        real = tf.sequence_mask(lengths, tf.shape(token_ids)[1])
        real_rows = tf.where(tf.reshape(real, [-1]))[:, 0]
        return [tf.gather(layer, real_rows) for layer in outputs[: len(self.layers)]] + outputs[len(self.layers) :]

    def _encode_batch(self, is_long: bool, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor) -> list[Tensor]:
        """The requested layers, [B S, H] each, and the pooled output if requested."""
        rows, longest = tf.unstack(tf.shape(token_ids))
        batch = Batch(token_ids, lengths, segment_ids, rows, longest, is_long)
        hidden = self.architecture.embed(self, batch)
        outputs = {0: hidden}
        shared = self.architecture.prepare(self, batch)
        for index in range(self._num_blocks):
            hidden = outputs[index + 1] = self.architecture.block(self, batch, index, hidden, shared)
        results = [outputs[layer] for layer in self.layers]
        if self.pooler:
            first = tf.reshape(hidden, [batch.rows, batch.longest, self.architecture.hidden_size])[:, 0]
            results.append(tf.cast(tf.tanh(self.dense("bert/pooler/dense", first)), tf.float32))
        return results

    def weight(self, name: str) -> Tensor:
        """A weight, such as a table of embeddings."""
        return tf.convert_to_tensor(self._variables[name])  # from a variable itself, tf.gather copies it first

    def repeated(self, name: str, compute: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """compute(*inputs), where calls of one name have the same weights: those kept packed are kept once."""
        if not (self._is_packed or self._codes):
            return compute(*inputs)
        if name not in self._functions:  # as nodes of one function, not of each call
            attributes = {"_noinline": True}
            self._functions[name] = tf.function(compute, autograph=False, experimental_attributes=attributes)
        return self._functions[name](*inputs)

    def heads(self, batch: Batch, query_key_value: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """Query, key and value of each head: [B S, sum(counts) d] -> [B, count, S, d] for each of three counts."""
        size = query_key_value.shape[-1] // sum(counts)
        split = tf.reshape(query_key_value, [batch.rows, batch.longest, sum(counts), size])
        three: list[Tensor] = tf.split(tf.transpose(split, [0, 2, 1, 3]), counts, axis=1)
        return three

    def dense(
        self, name: str, values: Tensor, activation: Activation | None = None, *, reader: str | None = None
    ) -> Tensor:
        """activation(values kernel + bias), in the number type of the products.

        `reader`: the one product that takes the result, which then may be what that takes: codes.
        """
        kernel, bias = self._variables[f"{name}/kernel"], self._variables[f"{name}/bias"]
        fused = _FUSED_GELU.get(activation)
        rest = None if fused else activation
        if name in self._codes:
            if values.dtype != tf.quint8:
                values = values * self._variables[f"{name}/inverse"] + self._variables[f"{name}/zero"]
                values = onednn.nearest_codes(values)
            largest = self._variables[f"{name}/largest"]
            gives_codes = reader is not None and reader in self._codes and rest is None
            limits = self._codes[reader].limits if reader is not None and gives_codes else None
            return _activate(onednn.int8_dense(values, kernel, largest, bias, fused, limits), rest)
        values = tf.cast(values, self._dtype)
        if self._is_packed:
            return _activate(onednn.packed_dense(values, kernel, bias, fused), rest)
        # Grappler fuses product, bias and either GELU, or product, bias and residual sum, to one _FusedMatMul (seen in
        # the optimized graph, TensorFlow 2.21, weights as variables).
        return _activate(tf.nn.bias_add(tf.matmul(values, kernel), bias), activation)

    def layer_norm(self, name: str, values: Tensor) -> Tensor:
        """Over the last axis, in float32."""
        beta, gamma = self._variables[f"{name}/LayerNorm/beta"], self._variables[f"{name}/LayerNorm/gamma"]
        epsilon = self.architecture.layer_norm_eps
        if self._has_kernels:
            return onednn.layer_norm(values, gamma, beta, epsilon)
        mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(values, mean, variance, beta, gamma, epsilon)

    def rms_norm(self, name: str, values: Tensor) -> Tensor:
        """Over the last axis, in float32."""
        values = tf.cast(values, tf.float32)
        square = tf.reduce_mean(tf.square(values), axis=-1, keepdims=True)
        normal = values * tf.math.rsqrt(square + self.architecture.layer_norm_eps)
        return normal * self._variables[f"{name}/LayerNorm/gamma"]


def _biased_scores(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    return tf.matmul(query, key, transpose_b=True) + bias


def _activate(values: Tensor, activation: Activation | None) -> Tensor:
    if activation is None:
        return values
    return tf.nn.silu(values) if activation == "silu" else tf.nn.gelu(values, approximate=activation == "gelu_tanh")
