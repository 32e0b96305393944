"""ModernBERT: layer norm before each sum, rotary positions, gated GELU, local attention in most blocks.

Source: Warner et al., https://arxiv.org/abs/2412.13663; Su et al. (rotary), https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from layerbeam.transforms.blocks import Float32Array
from layerbeam.transforms.encoders.architectures.architecture import (
    SIZES,
    Architecture,
    Array,
    Tensor,
    dense_shapes,
    layer_norm_shapes,
    scale_query,
)
from layerbeam.transforms.encoders.config_file import ConfigFile
from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch, Network
    from layerbeam.transforms.reference import ReferenceNetwork

_KINDS = ("full_attention", "sliding_attention")
# {our name after the block: transformers' name}
_PARTS = {
    "attention/LayerNorm/gamma": "attn_norm.weight",
    "attention/LayerNorm/beta": "attn_norm.bias",
    "attention/self/kernel": "attn.Wqkv.weight",
    "attention/self/bias": "attn.Wqkv.bias",
    "attention/output/dense/kernel": "attn.Wo.weight",
    "attention/output/dense/bias": "attn.Wo.bias",
    "intermediate/LayerNorm/gamma": "mlp_norm.weight",
    "intermediate/LayerNorm/beta": "mlp_norm.bias",
    "intermediate/dense/kernel": "mlp.Wi.weight",
    "intermediate/dense/bias": "mlp.Wi.bias",
    "output/dense/kernel": "mlp.Wo.weight",
    "output/dense/bias": "mlp.Wo.bias",
}
_OUTSIDE = {
    "bert/embeddings/word_embeddings": "embeddings.tok_embeddings.weight",
    "bert/embeddings/LayerNorm/gamma": "embeddings.norm.weight",
    "bert/embeddings/LayerNorm/beta": "embeddings.norm.bias",
    "bert/LayerNorm/gamma": "final_norm.weight",
    "bert/LayerNorm/beta": "final_norm.bias",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBert(Architecture):
    """ModernBERT. The output of the last block is normalized, as in transformers.

    `is_local`: whether attention reaches `reach` tokens to each side only, for each block. `thetas`: base of the
    rotation's periods, with global and with local attention. `norm_bias`, `attention_bias`, `mlp_bias`: whether the
    file has these biases; without one it is 0.
    """

    is_local: tuple[bool, ...]
    reach: int
    thetas: tuple[float, float]
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool

    title: ClassVar[str] = "ModernBERT"
    model_types: ClassVar[tuple[str, ...]] = ("modernbert",)
    prefix: ClassVar[str] = "model."

    @classmethod
    def read(cls, config: ConfigFile) -> ModernBert:
        sizes = config.sizes({name: name for name in SIZES})
        if sizes["hidden_size"] // sizes["num_attention_heads"] % 2:
            raise config.wrong("hidden_size", "num_attention_heads times an even number")
        return cls(
            **sizes,
            hidden_act=config.activation("hidden_activation"),
            layer_norm_eps=config.number("norm_eps", 1e-5),
            is_local=_local_blocks(config, sizes["num_hidden_layers"]),
            reach=config.integer("local_attention") // 2,
            thetas=_thetas(config),
            norm_bias=config.require("norm_bias", False, True),
            attention_bias=config.require("attention_bias", False, True),
            mlp_bias=config.require("mlp_bias", False, True),
        )

    def weight_shapes(self, *, num_blocks: int | None = None, pooler: bool = True) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden_size, self.intermediate_size

        def layer_norm(name: str) -> dict[str, tuple[int, ...]]:
            return layer_norm_shapes(name, hidden, has_bias=self.norm_bias)

        shapes: dict[str, tuple[int, ...]] = {"bert/embeddings/word_embeddings": (self.vocab_size, hidden)}
        shapes |= layer_norm("bert/embeddings")
        last = self.num_hidden_layers if num_blocks is None else num_blocks
        for index in range(last):
            block = f"bert/encoder/layer_{index}"
            if index:  # the first block's input is normalized already
                shapes |= layer_norm(f"{block}/attention")
            shapes |= dense_shapes(f"{block}/attention/self", hidden, 3 * hidden, has_bias=self.attention_bias)
            shapes |= dense_shapes(f"{block}/attention/output/dense", hidden, hidden, has_bias=self.attention_bias)
            shapes |= layer_norm(f"{block}/intermediate")
            shapes |= dense_shapes(f"{block}/intermediate/dense", hidden, 2 * inner, has_bias=self.mlp_bias)
            shapes |= dense_shapes(f"{block}/output/dense", inner, hidden, has_bias=self.mlp_bias)
        return shapes | (layer_norm("bert") if last == self.num_hidden_layers else {})

    def spellings(self, name: str) -> tuple[str, ...]:
        if name in _OUTSIDE:
            return (_OUTSIDE[name],)
        block, part = name.removeprefix("bert/encoder/layer_").split("/", 1)
        return (f"layers.{block}.{_PARTS[part]}",)

    def fuse(
        self, weights: Mapping[str, Float32Array], *, num_blocks: int, pooler: bool
    ) -> Iterator[tuple[str, Float32Array]]:
        with_biases = dataclasses.replace(self, norm_bias=True, attention_bias=True, mlp_bias=True)
        own = self.weight_shapes(num_blocks=num_blocks)
        for name, shape in with_biases.weight_shapes(num_blocks=num_blocks).items():
            values = weights[name] if name in own else np.zeros(shape, np.float32)
            if "/attention/self/" in name:
                query, rest = np.split(values, [self.hidden_size], axis=-1)
                yield name, np.concatenate([scale_query(query, self._head_size), rest], axis=-1)
            elif "/intermediate/dense/" in name:  # two products, so that GELU can be fused with the first
                inner, gate = np.split(values, 2, axis=-1)
                yield name, np.ascontiguousarray(inner)
                yield name.replace("/dense/", "/gate/"), np.ascontiguousarray(gate)
            else:
                yield name, values

    @property
    def _head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def _periods(self, theta: float) -> Array:
        """Radians per position of each pair of a head's dimensions, in float32 as in PyTorch."""
        exponent = np.arange(0, self._head_size, 2, dtype=np.float32) / np.float32(self._head_size)
        return np.asarray(np.float32(1) / np.float32(theta) ** exponent)

    def embed(self, net: Network, batch: Batch) -> Tensor:
        words = tf.gather(net.weight("bert/embeddings/word_embeddings"), batch.token_ids)
        return net.layer_norm("bert/embeddings", tf.reshape(words, [-1, self.hidden_size]))

    def prepare(self, net: Network, batch: Batch) -> Any:
        """(bias of the scores, cosines, sines) of blocks with global and with local attention."""
        place = tf.range(batch.longest)
        is_far = tf.abs(place[:, None] - place[None, :]) > self.reach
        biases = (net.mask_bias(batch), net.mask_bias(batch, is_hidden=is_far[None, None]))
        angles = [tf.cast(place, tf.float32)[:, None] * self._periods(theta) for theta in self.thetas]
        return [(bias, tf.cos(angle), tf.sin(angle)) for bias, angle in zip(biases, angles, strict=True)]

    def block(self, net: Network, batch: Batch, index: int, hidden: Tensor, shared: Any) -> Tensor:
        name = f"bert/encoder/layer_{index}"
        bias, cosine, sine = shared[self.is_local[index]]
        normal = net.layer_norm(f"{name}/attention", hidden) if index else hidden
        query, key, value = net.heads(batch, net.dense(f"{name}/attention/self", normal))
        context = net.attend(batch, _rotate(query, cosine, sine), _rotate(key, cosine, sine), value, bias)
        hidden += tf.cast(net.dense(f"{name}/attention/output/dense", context), tf.float32)
        normal = net.layer_norm(f"{name}/intermediate", hidden)
        inner = net.dense(f"{name}/intermediate/dense", normal, self.hidden_act)
        gated = inner * net.dense(f"{name}/intermediate/gate", normal)
        hidden += tf.cast(net.dense(f"{name}/output/dense", gated), tf.float32)
        return net.layer_norm("bert", hidden) if index == self.num_hidden_layers - 1 else hidden

    def reference_embed(self, net: ReferenceNetwork, token_ids: Array, segment_ids: Array) -> Array:
        return net.layer_norm("bert/embeddings", net.weights["bert/embeddings/word_embeddings"][token_ids])

    def reference_block(self, net: ReferenceNetwork, index: int, hidden: Array) -> Array:
        name, local = f"bert/encoder/layer_{index}", self.is_local[index]
        place = np.arange(len(hidden))
        far = np.abs(place[:, None] - place) > self.reach
        angle = place.astype(np.float32)[:, None] * np.tile(self._periods(self.thetas[local]), 2)

        def rotate(x: Array) -> Array:
            turned = np.concatenate([-x[..., self._head_size // 2 :], x[..., : self._head_size // 2]], axis=-1)
            return np.asarray(x * np.cos(angle) + turned * np.sin(angle), x.dtype)

        normal = net.layer_norm(f"{name}/attention", hidden) if index else hidden
        three = np.split(net.dense(f"{name}/attention/self", normal), 3, axis=-1)
        query, key, value = (net.heads(x) for x in three)
        context = net.attend(rotate(query), rotate(key), value, np.where(far & local, -np.inf, 0))
        hidden = hidden + net.dense(f"{name}/attention/output/dense", context)
        inner, gate = np.split(
            net.dense(f"{name}/intermediate/dense", net.layer_norm(f"{name}/intermediate", hidden)), 2, axis=-1
        )
        hidden = hidden + net.dense(f"{name}/output/dense", net.gelu(inner) * gate)
        return net.layer_norm("bert", hidden) if index == self.num_hidden_layers - 1 else hidden


def _rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """[B, heads, S, d]: each pair (i, i + d / 2) of dimensions turned by its position's angle, in float32."""
    first, second = tf.split(tf.cast(values, tf.float32), 2, axis=-1)
    turned = tf.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return tf.cast(turned, values.dtype)


def _local_blocks(config: ConfigFile, num_blocks: int) -> tuple[bool, ...]:
    """Whether each block attends locally: by `layer_types`, or, in older files, all but every n-th."""
    kinds = config.fields.get("layer_types")
    if kinds is None:
        every = config.integer("global_attn_every_n_layers")
        return tuple(index % every != 0 for index in range(min(num_blocks, 10_000)))
    if not isinstance(kinds, list) or len(kinds) != num_blocks or not all(kind in _KINDS for kind in kinds):
        raise config.wrong("layer_types", f"a list of {' or '.join(_KINDS)} for each of the {num_blocks:,} blocks")
    return tuple(kind == "sliding_attention" for kind in kinds)


def _thetas(config: ConfigFile) -> tuple[float, float]:
    """The rotations' bases for global and local attention, from `rope_parameters` or older files' fields."""
    parameters = config.fields.get("rope_parameters")
    if parameters is None:
        config.require("rope_scaling", None)
        defaults = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
        first, second = (config.number(name, default, below=1e12) for name, default in defaults.items())
        return first, second
    try:
        first, second = (float(parameters[kind]["rope_theta"]) for kind in _KINDS)
        types = {parameters[kind].get("rope_type", "default") for kind in _KINDS}
    except (TypeError, KeyError, AttributeError, ValueError):
        raise config.wrong("rope_parameters", f"an object with rope_theta for {' and '.join(_KINDS)}") from None
    if types != {"default"} or not (first > 0 and second > 0):
        raise config.wrong("rope_parameters", 'of rope_type "default", with positive rope_theta')
    return first, second
