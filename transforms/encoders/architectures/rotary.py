"""What the architectures share that rotate queries and keys by their positions: ModernBERT, GTE, Qwen3 and others.

Sources: Su et al. (rotation), https://arxiv.org/abs/2104.09864; Shazeer (gated layers), https://arxiv.org/abs/2002.05202;
Ainslie et al. (grouped heads), https://arxiv.org/abs/2305.13245; Zhang and Sennrich (RMSNorm),
https://arxiv.org/abs/1910.07467.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from layerbeam.transforms.encoders.architectures.architecture import (
    SIZES,
    Architecture,
    Array,
    Tensor,
    dense_shapes,
    layer_norm_shapes,
)
from layerbeam.transforms.encoders.config_file import ConfigFile
from layerbeam.transforms.flow.blocks import Float32Array
from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch, Network
    from layerbeam.transforms.reference import ReferenceNetwork

KINDS = ("full_attention", "sliding_attention")  # of a block's attention, in config.json
_LARGEST_THETA = 1e12
_WORDS, _SEGMENTS = "bert/embeddings/word_embeddings", "bert/embeddings/token_type_embeddings"

# {our name of a product in a block: its name in transformers' decoders}
PRODUCTS = {
    "attention/self/query": "self_attn.q_proj",
    "attention/self/key": "self_attn.k_proj",
    "attention/self/value": "self_attn.v_proj",
    "attention/output/dense": "self_attn.o_proj",
    "intermediate/dense": "mlp.gate_proj",
    "intermediate/gate": "mlp.up_proj",
    "output/dense": "mlp.down_proj",
}
ATTENTION_PRODUCTS = tuple(name for name in PRODUCTS if name.startswith("attention/"))
QUERY_KEY_VALUE = tuple(PRODUCTS[f"attention/self/{part}"] for part in ("query", "key", "value"))
# {a field of config.json: the products that have a bias if it is true}
_BIASES = {
    "attention_bias": ATTENTION_PRODUCTS,
    "mlp_bias": tuple(name for name in PRODUCTS if name not in ATTENTION_PRODUCTS),
}
# The same for norms after each sum.
POST_NORMS = {"attention/output/LayerNorm": "post_attention_layernorm", "output/LayerNorm": "post_mlp_layernorm"}
EMBEDDINGS = {_WORDS: "embed_tokens", "bert/LayerNorm": "norm"}
BERT_EMBEDDINGS = {
    _WORDS: "embeddings.word_embeddings",
    _SEGMENTS: "embeddings.token_type_embeddings",
    "bert/embeddings/LayerNorm": "embeddings.LayerNorm",
}


class Rotation(NamedTuple):
    """The position p turns the i-th pair of a head's d dimensions by p / (slowdown theta^(2 i / d)) radians."""

    theta: float
    slowdown: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary(Architecture):
    """A Transformer with rotated queries and keys. What a class's `parts` and `outside` name is what it has.

    `head_size`: d. `num_key_value_heads`: of keys and values; each serves as many heads of queries. `rotations`: of
    blocks with global and with local attention. `is_local`: whether a block's attention is local: it reaches `reach`
    tokens to each side. `is_causal`: whether it reaches no later token. `biased`: the parts with a bias.
    """

    head_size: int
    num_key_value_heads: int
    rotations: tuple[Rotation, Rotation]
    is_local: tuple[bool, ...]
    reach: int = 0
    is_causal: bool = False
    biased: tuple[str, ...] = ()
    type_vocab_size: int = 0

    # {our name of a part: transformers' name}, without "bert/encoder/layer_0/" and "layers.0."
    parts: ClassVar[Mapping[str, str]]
    outside: ClassVar[Mapping[str, str]]
    norm: ClassVar[Literal["layer_norm", "rms_norm"]] = "rms_norm"
    gamma_from: ClassVar[float] = 0.0  # what is added to the gammas of a file

    @classmethod
    def sizes(cls, config: ConfigFile) -> dict[str, Any]:
        """The sizes of transformers' decoders and of their heads."""
        sizes: dict[str, Any] = config.sizes({name: name for name in SIZES})
        heads = sizes["num_attention_heads"]
        given = config.fields.get("head_dim")
        sizes["head_size"] = sizes["hidden_size"] // heads if given is None else config.integer("head_dim")
        if sizes["head_size"] % 2:
            field = "hidden_size" if given is None else "head_dim"
            raise config.wrong(field, "num_attention_heads times an even number" if given is None else "even")
        grouped = config.fields.get("num_key_value_heads")
        sizes["num_key_value_heads"] = heads if grouped is None else config.integer("num_key_value_heads")
        if heads % sizes["num_key_value_heads"]:
            raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
        return sizes

    @property
    def has_segments(self) -> bool:
        return self.type_vocab_size > 1

    @property
    def attention_width(self) -> int:
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_size

    @property
    def queries_of_key(self) -> int:
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def query_scale(self) -> float:
        """What queries are multiplied with."""
        return float(1 / np.sqrt(self.head_size))

    @property
    def embedding_scale(self) -> float:
        """What the embeddings of words are multiplied with."""
        return 1.0

    def weight_shapes(self, *, num_blocks: int | None = None, pooler: bool = True) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        of_queries, of_keys = (heads * self.head_size for heads in (self.num_attention_heads, self.num_key_value_heads))
        products = {
            "attention/self/query": (hidden, of_queries),
            "attention/self/key": (hidden, of_keys),
            "attention/self/value": (hidden, of_keys),
            "attention/output/dense": (of_queries, hidden),
            "intermediate/dense": (hidden, inner),
            "intermediate/gate": (hidden, inner),
            "output/dense": (inner, hidden),
            "bert/pooler/dense": (hidden, hidden),
        }
        last = self.num_hidden_layers if num_blocks is None else num_blocks
        shapes: dict[str, tuple[int, ...]] = {}
        for name, part in self._names(last, pooler=pooler):
            if part in products:
                shapes |= dense_shapes(name, *products[part], has_bias=part in (*self.biased, "bert/pooler/dense"))
            elif part.endswith("/LayerNorm"):
                size = self.head_size if part.startswith("attention/self/") else hidden
                shapes |= layer_norm_shapes(name.removesuffix("/LayerNorm"), size, has_bias=self.has_beta)
            else:
                shapes[name] = (self.vocab_size if part == _WORDS else self.type_vocab_size, hidden)
        return shapes

    @property
    def has_beta(self) -> bool:
        """Whether the norms add a vector."""
        return self.norm == "layer_norm"

    def has_part(self, index: int, part: str) -> bool:
        """Whether a block has a part."""
        return part in self.parts

    def _names(self, last: int, *, pooler: bool) -> Iterator[tuple[str, str]]:
        """(name, part) of all tables, products and norms that the first `last` blocks need."""
        for name in self.outside:
            needed = {"bert/pooler/dense": pooler, "bert/LayerNorm": False, _SEGMENTS: self.type_vocab_size > 0}
            if needed.get(name, True):
                yield name, name
        for index in range(last):
            for part in self.parts:
                if self.has_part(index, part):
                    yield f"bert/encoder/layer_{index}/{part}", part
        if "bert/LayerNorm" in self.outside and last == self.num_hidden_layers:
            yield "bert/LayerNorm", "bert/LayerNorm"

    def spellings(self, name: str) -> tuple[str, ...]:
        if name in self.outside:
            return (f"{self.outside[name]}.weight",)
        whole, _, leaf = name.rpartition("/")
        kind = "weight" if leaf in ("kernel", "gamma") else "bias"
        if whole in self.outside:
            return (f"{self.outside[whole]}.{kind}",)
        index, part = whole.removeprefix("bert/encoder/layer_").split("/", 1)
        return (f"layers.{index}.{self.parts[part]}.{kind}",)

    def fuse(
        self, weights: Mapping[str, Float32Array], *, num_blocks: int, pooler: bool
    ) -> Iterator[tuple[str, Float32Array]]:
        shapes = self.weight_shapes(num_blocks=num_blocks, pooler=pooler)
        scale = np.float32(self.query_scale)
        is_normed = "attention/self/query/LayerNorm" in self.parts
        for name, part in self._names(num_blocks, pooler=pooler):
            if part.endswith("/LayerNorm"):
                by = scale if part == "attention/self/query/LayerNorm" else np.float32(1)
                gamma = weights[f"{name}/gamma"]
                yield f"{name}/gamma", (gamma + np.float32(self.gamma_from)) * by
                if self.norm == "layer_norm":
                    yield f"{name}/beta", weights[f"{name}/beta"] if self.has_beta else np.zeros_like(gamma)
            elif part in (_WORDS, _SEGMENTS):
                yield name, weights[name]
            elif part == "attention/self/query":
                three = [f"{name.removesuffix('query')}{kind}" for kind in ("query", "key", "value")]
                for leaf in ("kernel", "bias"):
                    query, *others = (_or_zeros(weights, shapes, f"{one}/{leaf}") for one in three)
                    query = query if is_normed else query * scale
                    yield f"{name.removesuffix('/query')}/{leaf}", np.concatenate([query, *others], axis=-1)
            elif part not in ("attention/self/key", "attention/self/value"):
                for leaf in ("kernel", "bias"):
                    yield f"{name}/{leaf}", _or_zeros(weights, shapes, f"{name}/{leaf}")

    def embed(self, net: Network, batch: Batch) -> Tensor:
        summed = tf.gather(net.weight(_WORDS), batch.token_ids)
        if self.embedding_scale != 1:
            summed *= self.embedding_scale
        if self.type_vocab_size:
            summed += tf.gather(net.weight(_SEGMENTS), batch.segment_ids)
        summed = tf.reshape(summed, [-1, self.hidden_size])
        return self._norm(net, "bert/embeddings", summed) if "bert/embeddings/LayerNorm" in self.outside else summed

    def prepare(self, net: Network, batch: Batch) -> Any:
        """(scope of attention, cosines, sines) of blocks with global and with local attention."""
        place = tf.cast(tf.range(batch.longest), tf.float32)
        angles = [place[:, None] * self._frequencies(kind) for kind in self.rotations]
        scopes = [net.attention.scope(batch, reach=reach, is_causal=self.is_causal) for reach in (None, self.reach)]
        return [(scope, tf.cos(angle), tf.sin(angle)) for scope, angle in zip(scopes, angles, strict=True)]

    def _frequencies(self, rotation: Rotation) -> Array:
        """Radians per position of each pair of a head's dimensions, in float32 as in PyTorch.

        Its powers are those of float64, rounded; NumPy's in float32 are often off by one bit, which turns the vectors
        of position 8,000 by up to 5e-4.
        """
        exponent = np.arange(0, self.head_size, 2, dtype=np.float32) / np.float32(self.head_size)
        power = (float(rotation.theta) ** exponent.astype(np.float64)).astype(np.float32)
        return np.asarray(np.float32(1) / power / np.float32(rotation.slowdown))

    def block(self, net: Network, batch: Batch, index: int, hidden: Tensor, shared: Any) -> Tensor:
        name = f"bert/encoder/layer_{index}"
        scope, cosine, sine = shared[self.is_local[index]]
        has_before = self.has_part(index, "attention/LayerNorm")
        normal = self._norm(net, f"{name}/attention", hidden) if has_before else hidden
        counts = [self.num_attention_heads, self.num_key_value_heads, self.num_key_value_heads]
        query, key, value = net.heads(batch, net.dense(f"{name}/attention/self", normal), counts)
        if "attention/self/query/LayerNorm" in self.parts:
            query, key = (
                tf.cast(self._norm(net, f"{name}/attention/self/{kind}", values), value.dtype)
                for kind, values in (("query", query), ("key", key))
            )
        context = net.attention(_rotate(query, cosine, sine), _rotate(key, cosine, sine), value, scope)
        hidden = self._add(
            net, f"{name}/attention/output", hidden, net.dense(f"{name}/attention/output/dense", context)
        )
        has_before = "intermediate/LayerNorm" in self.parts
        normal = self._norm(net, f"{name}/intermediate", hidden) if has_before else hidden
        has_gate = "intermediate/gate" in self.parts
        reader = None if has_gate else f"{name}/output/dense"
        inner = net.dense(f"{name}/intermediate/dense", normal, self.hidden_act, reader=reader)
        if has_gate:
            inner *= net.dense(f"{name}/intermediate/gate", normal)
        hidden = self._add(net, f"{name}/output", hidden, net.dense(f"{name}/output/dense", inner))
        is_last = index == self.num_hidden_layers - 1 and "bert/LayerNorm" in self.outside
        return self._norm(net, "bert", hidden) if is_last else hidden

    def _add(self, net: Network, name: str, hidden: Tensor, result: Tensor) -> Tensor:
        """The sum, with the norm after it, or, of a class that also has norms before, after `result`."""
        result = tf.cast(result, tf.float32)
        if "output/LayerNorm" not in self.parts:
            return hidden + result
        if "intermediate/LayerNorm" in self.parts:
            return hidden + self._norm(net, name, result)
        return self._norm(net, name, hidden + result)

    def _norm(self, net: Network, name: str, values: Tensor) -> Tensor:
        return net.layer_norm(name, values) if self.norm == "layer_norm" else net.rms_norm(name, values)

    def reference_embed(self, net: ReferenceNetwork, token_ids: Array, segment_ids: Array) -> Array:
        x = net.weights[_WORDS][token_ids] * self.embedding_scale
        if self.type_vocab_size:
            x = x + net.weights[_SEGMENTS][segment_ids]
        return self._reference_norm(net, "bert/embeddings", x) if "bert/embeddings/LayerNorm" in self.outside else x

    def reference_block(self, net: ReferenceNetwork, index: int, hidden: Array) -> Array:
        block, local = f"bert/encoder/layer_{index}", self.is_local[index]

        def normal(part: str, x: Array) -> Array:
            exists = self.has_part(index, f"{part}/LayerNorm")
            return self._reference_norm(net, f"{block}/{part}", x) if exists else x

        def add(part: str, x: Array, result: Array) -> Array:
            is_sandwich = {"intermediate/LayerNorm", "output/LayerNorm"} <= set(self.parts)
            return x + normal(part, result) if is_sandwich else normal(part, x + result)

        place = np.arange(len(hidden))
        angle = place.astype(np.float32)[:, None] * np.tile(self._frequencies(self.rotations[local]), 2)

        def turned(kind: str, heads: int) -> Array:
            x = net.heads(net.dense(f"{block}/attention/self/{kind}", entering), heads)
            x = normal(f"attention/self/{kind}", x)
            half = np.concatenate([-x[..., self.head_size // 2 :], x[..., : self.head_size // 2]], axis=-1)
            return np.asarray(x * np.cos(angle) + half * np.sin(angle), x.dtype)

        def mask(rows: slice) -> Array:
            ahead = place - place[rows, None]
            return np.where((np.abs(ahead) > self.reach) & local | (ahead > 0) & self.is_causal, -np.inf, 0)

        entering = normal("attention", hidden)
        query = turned("query", self.num_attention_heads) * (self.query_scale * np.sqrt(self.head_size))
        value = net.heads(net.dense(f"{block}/attention/self/value", entering), self.num_key_value_heads)
        key, value = (
            np.repeat(x, self.num_attention_heads // self.num_key_value_heads, axis=0)
            for x in (turned("key", self.num_key_value_heads), value)
        )
        context = net.attend(query, key, value, mask)
        hidden = add("attention/output", hidden, net.dense(f"{block}/attention/output/dense", context))
        entering = normal("intermediate", hidden)
        inner = net.activation(net.dense(f"{block}/intermediate/dense", entering))
        if "intermediate/gate" in self.parts:
            inner = inner * net.dense(f"{block}/intermediate/gate", entering)
        hidden = add("output", hidden, net.dense(f"{block}/output/dense", inner))
        is_last = index == self.num_hidden_layers - 1 and "bert/LayerNorm" in self.outside
        return self._reference_norm(net, "bert", hidden) if is_last else hidden

    def _reference_norm(self, net: ReferenceNetwork, name: str, x: Array) -> Array:
        return net.layer_norm(name, x) if self.norm == "layer_norm" else net.rms_norm(name, x, self.gamma_from)


def _or_zeros(weights: Mapping[str, Float32Array], shapes: Mapping[str, tuple[int, ...]], name: str) -> Float32Array:
    """A weight; for a bias that the architecture does not have, zeros."""
    return weights[name] if name in shapes else np.zeros(shapes[f"{name.removesuffix('bias')}kernel"][-1], np.float32)


def _rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """[B, heads, S, d]: each pair (i, i + d / 2) of dimensions turned by its position's angle, in float32."""
    first, second = tf.split(tf.cast(values, tf.float32), 2, axis=-1)
    turned = tf.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return tf.cast(turned, values.dtype)


def read_biased(config: ConfigFile, *fields: str) -> tuple[str, ...]:
    """The products with a bias, by `attention_bias` and `mlp_bias`, or by the fields of these that count."""
    return tuple(name for field in fields if config.require(field, False, True) for name in _BIASES[field])


def local_blocks(config: ConfigFile, num_blocks: int, otherwise: Sequence[bool]) -> tuple[bool, ...]:
    """Whether each block attends locally: by `layer_types`, or, in older files, as given."""
    kinds = config.fields.get("layer_types")
    if kinds is None:
        return tuple(otherwise)
    if not isinstance(kinds, list) or len(kinds) != num_blocks or not all(kind in KINDS for kind in kinds):
        raise config.wrong("layer_types", f"a list of {' or '.join(KINDS)} for each of the {num_blocks:,} blocks")
    return tuple(kind == "sliding_attention" for kind in kinds)


def read_rotation(config: ConfigFile, field: str = "rope_theta", default: float = 10_000.0) -> Rotation:
    """The rotation of all blocks, from `rope_parameters` or, in older files, from a field and `rope_scaling`."""
    parameters = config.fields.get("rope_parameters")
    if parameters is not None:
        return _rotation(config, "rope_parameters", parameters, default)
    scaling = config.fields.get("rope_scaling")
    theta = config.number(field, default, below=_LARGEST_THETA)
    return Rotation(theta) if scaling is None else _rotation(config, "rope_scaling", scaling, theta)


def read_rotations(
    config: ConfigFile, fields: tuple[str, str], defaults: tuple[float, float]
) -> tuple[Rotation, Rotation]:
    """Those of global and local attention, from `rope_parameters`, or from `fields` and `rope_scaling` (global)."""
    parameters = config.fields.get("rope_parameters")
    if parameters is None:
        local = config.number(fields[1], defaults[1], below=_LARGEST_THETA)
        return read_rotation(config, fields[0], defaults[0]), Rotation(local)
    if not isinstance(parameters, dict) or not set(parameters) <= set(KINDS):
        raise config.wrong("rope_parameters", f"an object with {' and '.join(KINDS)}")
    first, second = (
        _rotation(config, "rope_parameters", parameters.get(kind) or {}, default)
        for kind, default in zip(KINDS, defaults, strict=True)
    )
    return first, second


def _rotation(config: ConfigFile, field: str, given: Any, theta: float) -> Rotation:
    """The rotation that an object with `rope_type`, `rope_theta` and `factor` describes."""
    kind, found = None, (0.0, 0.0)
    if isinstance(given, dict):
        kind = given.get("rope_type", given.get("type", "default"))
        found = given.get("rope_theta", theta), given.get("factor", 1.0) if kind == "linear" else 1.0
    is_right = all(type(number) in (int, float) and 0 < number < _LARGEST_THETA for number in found)
    if not is_right or kind not in ("default", "linear"):
        raise config.wrong(field, 'an object with rope_type "default" or "linear" (with factor) and rope_theta')
    return Rotation(float(found[0]), float(found[1]))
