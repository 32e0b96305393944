"""The BERT forward pass as a TensorFlow graph: from token ids to the requested layers.

Weights have the names of Google's checkpoints (`bert/encoder/layer_0/attention/self/query/kernel`), kernels [in, out].
Layer 0 is the embedding layer's output, layer k the output of the k-th Transformer block.
Source of the formulas: `modeling.py` of google-research/bert; Devlin et al., https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from layerbeam.transforms.blocks import Float32Array, Int32Array, Layer
from layerbeam.transforms.encoders import onednn
from layerbeam.transforms.encoders.device import DeviceLayer, has_accelerator
from layerbeam.transforms.hardware import slow_bfloat16, tf

Tensor = Any  # TensorFlow's

Activation = Literal["gelu", "gelu_tanh"]
ComputeDtype = Literal["float32", "bfloat16"]

# Added to the scores of padding: exp(x - 1e9) is exactly 0 in float32, and the sum stays finite, whereas the
# largest negative number would overflow. A row without any real token gives numbers, not NaN.
_MASKED = -1e9

_FUSED_GELU: dict[Activation | None, str] = {"gelu": "GeluExact", "gelu_tanh": "GeluApproximate"}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The architecture. `hidden_act`: `gelu` is the erf form, `gelu_tanh` the tanh approximation (Google's own)."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    hidden_act: Activation
    layer_norm_eps: float


def weight_shapes(
    config: BertConfig, *, num_blocks: int | None = None, pooler: bool = True
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of the first `num_blocks` blocks (all if None), and the pooler's.

    >>> shapes = weight_shapes(BertConfig(30522, 768, 12, 12, 3072, 512, 2, "gelu_tanh", 1e-12))
    >>> len(shapes), shapes["bert/encoder/layer_11/intermediate/dense/kernel"]
    (199, (768, 3072))
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (config.vocab_size, hidden),
        "bert/embeddings/token_type_embeddings": (config.type_vocab_size, hidden),
        "bert/embeddings/position_embeddings": (config.max_position_embeddings, hidden),
    }

    def layer_norm(name: str) -> None:
        shapes[f"{name}/LayerNorm/beta"] = shapes[f"{name}/LayerNorm/gamma"] = (hidden,)

    def dense(name: str, size_in: int, size_out: int) -> None:
        shapes[f"{name}/kernel"] = (size_in, size_out)
        shapes[f"{name}/bias"] = (size_out,)

    layer_norm("bert/embeddings")
    for index in range(config.num_hidden_layers if num_blocks is None else num_blocks):
        block = f"bert/encoder/layer_{index}"
        for part in ("query", "key", "value"):
            dense(f"{block}/attention/self/{part}", hidden, hidden)
        dense(f"{block}/attention/output/dense", hidden, hidden)
        layer_norm(f"{block}/attention/output")
        dense(f"{block}/intermediate/dense", hidden, inner)
        dense(f"{block}/output/dense", inner, hidden)
        layer_norm(f"{block}/output")
    if pooler:
        dense("bert/pooler/dense", hidden, hidden)
    return shapes


def blocks_needed(config: BertConfig, layers: Sequence[int], *, pooler: bool) -> int:
    """Number of Transformer blocks for these layers; the pooler reads the last. ValueError for an unknown layer."""
    wrong = [layer for layer in layers if not 0 <= layer <= config.num_hidden_layers]
    if wrong or not (layers or pooler):
        raise ValueError(
            f"layers: are {list(layers)}, pooler {pooler}; wanted is at least one of 0 to {config.num_hidden_layers}, "
            "or the pooler"
        )
    return config.num_hidden_layers if pooler else max(layers)


class Bert:
    """A forward pass that gives `layers`, and the pooled output if `pooler`; several threads may call it at once.

    `weights`: by name, with the shapes of `weight_shapes`; those of blocks that `layers` do not need are ignored.
    `pad_id`: for callers that pad batches; padding has no influence. `compute_dtype`: of the matrix products; the
    residual stream, layer norm and results are float32. `xla`: compile it, once per batch shape. ValueError for an
    unknown layer.

    One trace serves all shapes. Set TensorFlow's threads first (`transforms/hardware.py`). The same batch gives equal
    bits; in another batch, or at another position in it, a text's vectors differ by rounding (MiniLM: up to 5e-6).

    Tried and rejected, measured on 2 cores with AVX-512 (TensorFlow 2.21): products without the padding, in fuller
    batches (MiniLM 1 %, BERT-base bfloat16 1 to 4 % faster); the residual stream in bfloat16, added by the product
    (MiniLM 1 to 4 % faster, BERT-base 1 %, and less exact); packed weights in float32 (MiniLM 1 to 3 % faster,
    BERT-base 2 to 4 % slower, twice the memory); weights as constants (BERT-base: no faster than packed ones, 20 s to
    load, 13 times their memory); XLA on the CPU (float32 8 to 19 % slower, bfloat16 5 times, without such products);
    two threads within an operation (13 % slower, and other bits).
    """

    def __init__(
        self,
        config: BertConfig,
        weights: Mapping[str, Float32Array],
        *,
        layers: Sequence[int],
        pooler: bool = False,
        pad_id: int = 0,
        compute_dtype: ComputeDtype = "float32",
        xla: bool = False,
    ) -> None:
        self.config = config
        self.pad_id = pad_id
        self.layers = tuple(layers)
        self.pooler = pooler
        self._on_accelerator = has_accelerator()
        slow = slow_bfloat16(compute_dtype)
        if slow is not None:
            logging.getLogger(__name__).warning("encoder: %s", slow)
        self._num_blocks = blocks_needed(config, layers, pooler=pooler)
        self._dtype = tf.as_dtype(compute_dtype)
        self._has_kernels = not xla and onednn.is_available()
        # float32 products are as fast with weights packed at each call; bfloat16 products are not.
        self._is_packed = self._has_kernels and compute_dtype == "bfloat16"
        # Variables, not constants: see above. One at a time, so that no weight is in memory three times.
        self._variables = {}
        for name, values in _fused_weights(config, weights, num_blocks=self._num_blocks, pooler=pooler):
            dtype = self._dtype if name.endswith(("/kernel", "/bias")) else tf.float32  # of products, or of the rest
            self._variables[name] = tf.Variable(tf.cast(values, dtype), trainable=False, name=name)
        self._encode = tf.function(self._encode_batch, autograph=False, jit_compile=True) if xla else self._encode_batch
        ids = tf.TensorSpec([None, None], tf.int32)
        signature = [ids, tf.TensorSpec([None], tf.int32), ids]
        self._graph = tf.function(self._forward, input_signature=signature, autograph=False).get_concrete_function()

    def __call__(
        self, token_ids: Int32Array, lengths: Int32Array, segment_ids: Int32Array
    ) -> tuple[dict[int, Layer], Float32Array | None]:
        """Layers and pooled output of one batch; see `layerbeam.transforms.encode.forward.Encoder`.

        ValueError if S exceeds the encoder's positions; TensorFlow's InvalidArgumentError for an id outside the
        vocabulary.
        """
        if token_ids.shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"token_ids: rows of {token_ids.shape[1]} tokens; the encoder has "
                f"{self.config.max_position_embeddings} positions: lower max_seq_length"
            )
        outputs = self._graph(*(tf.constant(values, tf.int32) for values in (token_ids, lengths, segment_ids)))
        pooled = np.asarray(outputs.pop()) if self.pooler else None
        layers: Iterable[Layer] = map(DeviceLayer if self._on_accelerator else np.asarray, outputs)
        return dict(zip(self.layers, layers, strict=True)), pooled

    def _forward(self, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor) -> list[Tensor]:
        outputs = self._encode(token_ids, lengths, segment_ids)
        # XLA needs static shapes, and the number of real tokens is not one: gather them from its result.
        real = tf.sequence_mask(lengths, tf.shape(token_ids)[1])
        real_rows = tf.where(tf.reshape(real, [-1]))[:, 0]
        return [tf.gather(layer, real_rows) for layer in outputs[: len(self.layers)]] + outputs[len(self.layers) :]

    def _encode_batch(self, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor) -> list[Tensor]:
        """The requested layers, [B S, H] each, and the pooled output if requested."""
        rows, longest = tf.unstack(tf.shape(token_ids))
        real = tf.sequence_mask(lengths, longest)
        mask_bias = tf.cast(tf.where(real, 0.0, _MASKED)[:, None, None, :], self._dtype)
        hidden = self._embed(token_ids, segment_ids)
        outputs = {0: hidden}
        for index in range(self._num_blocks):
            hidden = outputs[index + 1] = self._block(index, hidden, mask_bias, rows, longest)
        results = [outputs[layer] for layer in self.layers]
        if self.pooler:
            first = tf.reshape(hidden, [rows, longest, self.config.hidden_size])[:, 0]
            results.append(tf.cast(tf.tanh(self._dense("bert/pooler/dense", first)), tf.float32))
        return results

    def _embed(self, token_ids: Tensor, segment_ids: Tensor) -> Tensor:
        def table(name: str) -> Tensor:
            return self._variables[f"bert/embeddings/{name}"]

        positions = table("position_embeddings")[: tf.shape(token_ids)[1]]
        words = tf.gather(table("word_embeddings"), token_ids)
        segments = tf.gather(table("token_type_embeddings"), segment_ids)
        summed = words + segments + positions
        return self._layer_norm("bert/embeddings", tf.reshape(summed, [-1, self.config.hidden_size]))

    def _block(self, index: int, hidden: Tensor, mask_bias: Tensor, rows: Tensor, longest: Tensor) -> Tensor:
        name = f"bert/encoder/layer_{index}"
        context = self._attend(self._dense(f"{name}/attention/self", hidden), mask_bias, rows, longest)
        attended = self._dense(f"{name}/attention/output/dense", context)
        hidden = self._layer_norm(f"{name}/attention/output", hidden + tf.cast(attended, tf.float32))
        inner = self._dense(f"{name}/intermediate/dense", hidden, self.config.hidden_act)
        outer = self._dense(f"{name}/output/dense", inner)
        return self._layer_norm(f"{name}/output", hidden + tf.cast(outer, tf.float32))

    def _attend(self, query_key_value: Tensor, mask_bias: Tensor, rows: Tensor, longest: Tensor) -> Tensor:
        """softmax(Q K' / sqrt(d) + mask) V: [B S, 3 H] -> [B S, H]; the query's weights include the scale."""
        heads = self.config.num_attention_heads
        split = tf.reshape(query_key_value, [rows, longest, 3, heads, self.config.hidden_size // heads])
        query, key, value = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))
        if self._has_kernels:
            scores = onednn.masked_scores(query, key, mask_bias)
        else:
            scores = tf.matmul(query, key, transpose_b=True) + mask_bias
        context = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
        return tf.reshape(context, [rows * longest, self.config.hidden_size])

    def _dense(self, name: str, values: Tensor, activation: Activation | None = None) -> Tensor:
        """activation(values kernel + bias), in the number type of the products."""
        values = tf.cast(values, self._dtype)
        kernel, bias = self._variables[f"{name}/kernel"], self._variables[f"{name}/bias"]
        if self._is_packed:
            return onednn.packed_dense(values, kernel, bias, _FUSED_GELU.get(activation))
        # Grappler fuses product, bias and either GELU, or product, bias and residual sum, to one _FusedMatMul (seen in
        # the optimized graph, TensorFlow 2.21, weights as variables).
        product = tf.nn.bias_add(tf.matmul(values, kernel), bias)
        return tf.nn.gelu(product, approximate=activation == "gelu_tanh") if activation else product

    def _layer_norm(self, name: str, values: Tensor) -> Tensor:
        """Over the last axis, in float32."""
        beta, gamma = self._variables[f"{name}/LayerNorm/beta"], self._variables[f"{name}/LayerNorm/gamma"]
        if self._has_kernels:
            return onednn.layer_norm(values, gamma, beta, self.config.layer_norm_eps)
        mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(values, mean, variance, beta, gamma, self.config.layer_norm_eps)


def _fused_weights(
    config: BertConfig, weights: Mapping[str, Float32Array], *, num_blocks: int, pooler: bool
) -> Iterator[tuple[str, Float32Array]]:
    """The weights as the graph needs them: query, key and value side by side, the query scaled by 1/sqrt(d)."""
    scale = np.float32(1 / math.sqrt(config.hidden_size // config.num_attention_heads))
    for name in weight_shapes(config, num_blocks=num_blocks, pooler=pooler):
        if "/self/query/" in name:
            others = (name.replace("query", which) for which in ("key", "value"))
            three = [weights[name] * scale, *(weights[other] for other in others)]
            yield name.replace("query/", ""), np.concatenate(three, axis=-1)
        elif "/self/" not in name:
            yield name, weights[name]
