"""DeBERTa-v2 and v3: BERT whose attention also multiplies contents with vectors of the distance between two tokens.

Source: He et al., https://arxiv.org/abs/2006.03654 and https://arxiv.org/abs/2111.09543.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from layerbeam.transforms.encoders.architectures.architecture import (
    SIZES,
    Array,
    Tensor,
    dense_shapes,
    layer_norm_shapes,
    scale_query,
)
from layerbeam.transforms.encoders.architectures.bert import Bert
from layerbeam.transforms.encoders.attention import Block
from layerbeam.transforms.encoders.config_file import Activation, ConfigFile
from layerbeam.transforms.flow.blocks import Float32Array
from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch, Network
    from layerbeam.transforms.reference import ReferenceNetwork

_PROJECTION = "bert/embeddings_project"
_DISTANCES = "bert/encoder/rel_embeddings"
_CONVOLUTION = "bert/conv"  # outside "bert/encoder/", so that it is float32 in int8: it is 1 % of an encoder's work
_MOST_POSITIONS = 100_000  # the weights do not limit them
# {what a product with distances is called in config.json: the content's partner in it}
_PARTNERS = {"c2p": "key", "p2c": "query"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deberta(Bert):
    """DeBERTa-v2 or v3, with names as in config.json. The embeddings are projected before their layer norm.

    `pos_att_type`: the products with distances: c2p (query and distance), p2c (distance and key), or both.
    `position_buckets`: distances beyond half of it share vectors; 0 if each has its own. `max_relative_positions`: the
    number given, or that of positions. `share_att_key`: distances have the projections of tokens, not their own.
    `norm_rel_ebd`: whether the vectors of distances are normalized. `position_biased_input`: whether positions have
    embeddings, too. `conv_kernel_size`: tokens under the convolution next to the first block; 0 without one.
    """

    embedding_size: int
    pos_att_type: tuple[str, ...]
    position_buckets: int
    max_relative_positions: int
    share_att_key: bool
    norm_rel_ebd: bool
    position_biased_input: bool
    conv_kernel_size: int

    title: ClassVar[str] = "DeBERTa-v2"
    model_types: ClassVar[tuple[str, ...]] = ("deberta-v2",)
    prefix: ClassVar[str] = "deberta."
    vocabulary_file: ClassVar[str] = "tokenizer.json"
    copies_of_scores: ClassVar[int] = 10  # with the products with distances, as they come and aligned
    size_fields: ClassVar[Mapping[str, str]] = {name: name for name in SIZES}
    renamed_parts: ClassVar[Mapping[str, str]] = {
        "embeddings_project": "embeddings.embed_proj",
        "attention.self.query": "attention.self.query_proj",
        "attention.self.key": "attention.self.key_proj",
        "attention.self.value": "attention.self.value_proj",
        "attention.positions.query": "attention.self.pos_query_proj",
        "attention.positions.key": "attention.self.pos_key_proj",
        "conv.LayerNorm": "encoder.conv.LayerNorm",
        "conv.weight": "encoder.conv.conv.weight",
        "conv.bias": "encoder.conv.conv.bias",
    }

    @classmethod
    def read(cls, config: ConfigFile) -> Bert:
        if config.fields.get("relative_attention") is not True:
            raise config.wrong("relative_attention", "true")
        hidden_act = config.activation("hidden_act")
        buckets, farthest = _distances(config)
        made = cls.of_sizes(
            config,
            type_vocab_size=config.integer("type_vocab_size", least=0),
            hidden_act=hidden_act,
            layer_norm_eps=config.number("layer_norm_eps", 1e-7),
            embedding_size=config.integer("embedding_size" if "embedding_size" in config.fields else "hidden_size"),
            pos_att_type=_products(config),
            position_buckets=buckets,
            max_relative_positions=farthest,
            share_att_key=config.require("share_att_key", False, True),
            norm_rel_ebd=config.require("norm_rel_ebd", "none", "layer_norm") == "layer_norm",
            position_biased_input=config.require("position_biased_input", True, False),
            conv_kernel_size=_convolution(config, hidden_act),
        )
        config.require("attention_head_size", made.hidden_size // made.num_attention_heads)
        return made

    @property
    def embedding_width(self) -> int:
        return self.embedding_size

    @property
    def score_terms(self) -> int:
        return super().score_terms * (1 + len(self.pos_att_type))

    @property
    def _span(self) -> int:
        """Half of the number of vectors of distances."""
        return self.position_buckets or self.max_relative_positions

    def weight_shapes(self, *, num_blocks: int | None = None, pooler: bool = True) -> dict[str, tuple[int, ...]]:
        hidden, width = self.hidden_size, self.embedding_size
        shapes = super().weight_shapes(num_blocks=num_blocks, pooler=False)
        if not self.position_biased_input:
            del shapes["bert/embeddings/position_embeddings"]
        if width != hidden:
            shapes |= dense_shapes(_PROJECTION, width, hidden, has_bias=False)
        shapes |= layer_norm_shapes("bert/embeddings", hidden)
        shapes[_DISTANCES] = (2 * self._span, hidden)
        if self.norm_rel_ebd:
            shapes |= layer_norm_shapes("bert/encoder", hidden)
        for index in range(self.num_hidden_layers if num_blocks is None else num_blocks):
            for kind in self.pos_att_type:
                shapes |= dense_shapes(_positions(f"bert/encoder/layer_{index}", kind), hidden, hidden)
        if self.conv_kernel_size:
            shapes |= {f"{_CONVOLUTION}/kernel": (self.conv_kernel_size, hidden, hidden)}
            shapes |= {f"{_CONVOLUTION}/bias": (hidden,)} | layer_norm_shapes(_CONVOLUTION, hidden)
        return shapes

    def spellings(self, name: str) -> tuple[str, ...]:
        return super().spellings(name.replace("/positions/", "/self/") if self.share_att_key else name)

    def fuse(
        self, weights: Mapping[str, Float32Array], *, num_blocks: int, pooler: bool
    ) -> Iterator[tuple[str, Float32Array]]:
        vectors = self._vectors(weights)
        for name, values in super().fuse(weights, num_blocks=num_blocks, pooler=pooler):
            product, _, part = name.rpartition("/")
            if "/positions/" in name and part == "kernel":
                # They depend on no text. By TensorFlow, whose bits do not depend on the number of cores.
                with tf.device("/CPU:0"):
                    table = np.asarray(tf.matmul(vectors, values)) + weights[f"{product}/bias"]
                scaled = scale_query(table, self.score_terms) if product.endswith("/query") else table
                heads = scaled.reshape(len(table), self.num_attention_heads, -1)
                yield product, np.ascontiguousarray(heads.transpose(1, 0, 2))
            elif name == f"{_CONVOLUTION}/kernel":
                yield name, values.reshape(-1, self.hidden_size)
            elif "/positions/" not in name and product != "bert/encoder/LayerNorm" and name != _DISTANCES:
                yield name, values
        if self.embedding_size != self.hidden_size:
            yield f"{_PROJECTION}/bias", np.zeros(self.hidden_size, np.float32)

    def _vectors(self, weights: Mapping[str, Float32Array]) -> Float32Array:
        """The vectors of distances, [2 span, H]."""
        vectors = weights[_DISTANCES]
        if not self.norm_rel_ebd:
            return vectors
        gamma, beta = (weights[f"bert/encoder/LayerNorm/{part}"] for part in ("gamma", "beta"))
        deviation = np.sqrt(vectors.var(axis=-1, keepdims=True) + np.float32(self.layer_norm_eps))
        return np.asarray((vectors - vectors.mean(axis=-1, keepdims=True)) / deviation * gamma + beta)

    def embed(self, net: Network, batch: Batch) -> Tensor:
        summed = tf.gather(net.weight("bert/embeddings/word_embeddings"), batch.token_ids)
        if self.type_vocab_size:
            summed += tf.gather(net.weight("bert/embeddings/token_type_embeddings"), batch.segment_ids)
        if self.position_biased_input:
            summed += self.positions(net.weight("bert/embeddings/position_embeddings"), batch)
        summed = tf.reshape(summed, [-1, self.embedding_size])
        if self.embedding_size != self.hidden_size:
            summed = tf.cast(net.dense(_PROJECTION, summed), tf.float32)
        return net.layer_norm("bert/embeddings", summed)

    def prepare(self, net: Network, batch: Batch) -> Any:
        """(scope of attention, the rows of the distances -max_length to max_length in the tables of positions)."""
        scope = net.attention.scope(batch)
        return scope, tf.constant(self._rows(self.max_length), tf.int32)

    def attend(self, net: Network, name: str, query: Tensor, key: Tensor, value: Tensor, shared: Any) -> Tensor:
        scope, rows = shared

        def by_distance(
            kind: str, contents: Tensor, firsts: Tensor, others: tuple[Tensor, Tensor], heads: Any
        ) -> Tensor:
            """[B, heads, P C, O]: the product of each content and the vector of its distance to each other token.

            `contents`: [B, heads P, C, d], pieces of C tokens, from the places `firsts`, [P]. `others`: the first and
            the number of the O others.
            """
            size, (first_other, num_others) = tf.shape(contents)[2], others
            width = size + num_others
            ahead = first_other - firsts[:, None] - size + tf.range(width)
            distance = -ahead if kind == "c2p" else ahead  # the distance of a later key is negative
            wanted = tf.gather(rows, tf.clip_by_value(distance, -self.max_length, self.max_length) + self.max_length)
            table = tf.slice(net.weight(_positions(name, kind)), [heads[0], 0, 0], [heads[1], -1, -1])
            vectors = tf.reshape(tf.gather(table, wanted, axis=1), [-1, width, contents.shape[3]])
            products = tf.matmul(contents, tf.cast(vectors, contents.dtype), transpose_b=True)  # [B, heads P, C, width]
            # Of each content's products, those wanted follow each other, from one place earlier for the next content.
            shape = tf.shape(products)
            flat = tf.reshape(products, [shape[0], shape[1], size * width])[:, :, size:]
            aligned = tf.reshape(flat, [shape[0], shape[1], size, width - 1])[..., :num_others]
            return tf.reshape(aligned, [shape[0], heads[1], -1, num_others])

        def added(query: Tensor, key: Tensor, block: Block) -> Tensor:
            (first_query, queries), (first_key, keys), total = block.queries, block.keys, 0
            if "c2p" in self.pos_att_type:
                total += by_distance("c2p", query, tf.reshape(first_query, [1]), block.keys, block.heads)
            if "p2c" in self.pos_att_type:  # as many keys as queries at a time: few products that are not wanted
                pieces = -(-keys // queries)
                key = tf.pad(key, [[0, 0], [0, 0], [0, pieces * queries - keys], [0, 0]])
                key = tf.reshape(key, [tf.shape(key)[0], -1, queries, key.shape[3]])
                firsts = first_key + queries * tf.range(pieces)
                by_key = by_distance("p2c", key, firsts, block.queries, block.heads)[:, :, :keys]
                total += tf.transpose(by_key, [0, 1, 3, 2])
            return total

        return net.attention(query, key, value, scope, added)

    def block(self, net: Network, batch: Batch, index: int, hidden: Tensor, shared: Any) -> Tensor:
        output = super().block(net, batch, index, hidden, shared)
        if index or not self.conv_kernel_size:
            return output
        texts = tf.reshape(hidden, [batch.rows, batch.longest, self.hidden_size])
        reach = self.conv_kernel_size // 2
        texts = tf.pad(tf.where(batch.is_real[..., None], texts, 0.0), [[0, 0], [reach, reach], [0, 0]])
        windows = [texts[:, shift : shift + batch.longest] for shift in range(self.conv_kernel_size)]
        windows = tf.reshape(tf.concat(windows, axis=-1), [-1, self.conv_kernel_size * self.hidden_size])
        convolved = tf.cast(net.dense(_CONVOLUTION, windows, self.hidden_act), tf.float32)
        return net.layer_norm(_CONVOLUTION, output + convolved)

    def reference_embed(self, net: ReferenceNetwork, token_ids: Array, segment_ids: Array) -> Array:
        x = net.weights["bert/embeddings/word_embeddings"][token_ids]
        if self.position_biased_input:
            x = x + net.weights["bert/embeddings/position_embeddings"][: len(x)]
        if self.type_vocab_size:
            x = x + net.weights["bert/embeddings/token_type_embeddings"][segment_ids]
        return net.layer_norm("bert/embeddings", net.dense(_PROJECTION, x) if x.shape[1] != self.hidden_size else x)

    def reference_attend(self, net: ReferenceNetwork, name: str, query: Array, key: Array, value: Array) -> Array:
        length, place = query.shape[1], np.arange(query.shape[1])
        row_of = self._rows(length)
        table = net.weights[_DISTANCES]
        table = net.layer_norm("bert/encoder", table) if self.norm_rel_ebd else table
        terms = math.sqrt(1 + len(self.pos_att_type))

        def bias(rows: slice) -> Array:
            some = query[:, rows]
            used, which = np.unique(row_of[place[rows, None] - place + length], return_inverse=True)
            which = which.reshape(1, -1, length)
            scores = np.zeros((len(some), some.shape[1], length), query.dtype)
            if "c2p" in self.pos_att_type:
                keys = net.heads(net.dense(_positions(name, "c2p"), table[used]))
                scores += np.take_along_axis(some @ keys.transpose(0, 2, 1), which, axis=2)
            if "p2c" in self.pos_att_type:
                queries = net.heads(net.dense(_positions(name, "p2c"), table[used]))
                scores += np.take_along_axis(queries @ key.transpose(0, 2, 1), which, axis=1)
            return np.asarray(scores / math.sqrt(query.shape[-1]) / terms)

        return net.attend(query / terms, key, value, bias)

    def reference_block(self, net: ReferenceNetwork, index: int, hidden: Array) -> Array:
        output = super().reference_block(net, index, hidden)
        if index or not self.conv_kernel_size:
            return output
        kernel, reach = net.weights[f"{_CONVOLUTION}/kernel"], self.conv_kernel_size // 2
        padded = np.pad(hidden, ((reach, reach), (0, 0)))
        convolved = sum(padded[shift : shift + len(hidden)] @ weights for shift, weights in enumerate(kernel))
        return net.layer_norm(_CONVOLUTION, output + net.activation(convolved + net.weights[f"{_CONVOLUTION}/bias"]))

    def _rows(self, farthest: int) -> Array:
        """The row in the table of vectors of each distance from -farthest to farthest."""
        distance = np.arange(-farthest, farthest + 1)
        if self.position_buckets:
            distance = distance_buckets(distance, self.position_buckets, self.max_relative_positions)
        return np.clip(distance + self._span, 0, 2 * self._span - 1)


def _positions(block: str, kind: str) -> str:
    """The name of the projection of distances in a block."""
    return f"{block}/attention/positions/{_PARTNERS[kind]}"


def distance_buckets(distance: Array, buckets: int, farthest: int) -> Array:
    """The bucket of each distance; a key before its query is a positive distance.

    Up to half of `buckets`, each distance has its own bucket; beyond, they share them logarithmically.

    >>> distance_buckets(np.arange(-2, 12), 8, 12).tolist()
    [-2, -1, 0, 1, 2, 3, 4, 5, 6, 6, 7, 7, 7, 7]
    """
    half = buckets // 2
    far = np.maximum(np.abs(distance), half).astype(np.float32)
    # In float32, as in PyTorch: the bucket of an exact power may depend on it.
    longest = np.log(np.float32((farthest - 1) / half))
    shared = half + np.ceil(np.log(far / np.float32(half)) / longest * np.float32(half - 1)).astype(np.int64)
    return np.where(np.abs(distance) <= half, distance, np.sign(distance) * shared)


def _products(config: ConfigFile) -> tuple[str, ...]:
    """The products with distances, from a list, or from a text as in older files."""
    given = config.fields.get("pos_att_type")
    kinds = [kind.strip() for kind in given.lower().split("|")] if isinstance(given, str) else given
    if not isinstance(kinds, list) or not kinds or not all(kind in [*_PARTNERS] for kind in kinds):
        raise config.wrong("pos_att_type", '"c2p", "p2c" or "p2c|c2p"')
    return tuple(kind for kind in _PARTNERS if kind in kinds)


def _distances(config: ConfigFile) -> tuple[int, int]:
    """`position_buckets` and `max_relative_positions`."""
    buckets = _optional_integer(config, "position_buckets")
    positions = config.integer("max_position_embeddings")
    farthest = _optional_integer(config, "max_relative_positions") or positions
    for field, number in (("max_position_embeddings", positions), ("max_relative_positions", farthest)):
        if number > _MOST_POSITIONS:
            raise config.wrong(field, f"at most {_MOST_POSITIONS:,}")
    if buckets and not 2 <= buckets < 2 * (farthest - 1):
        raise config.wrong("position_buckets", f"-1, or from 2 to {2 * farthest - 3:,} by max_relative_positions")
    return buckets, farthest


def _convolution(config: ConfigFile, hidden_act: Activation) -> int:
    """`conv_kernel_size`."""
    size = _optional_integer(config, "conv_kernel_size")
    if not size:
        return 0
    if size % 2 == 0:
        raise config.wrong("conv_kernel_size", "odd")
    config.require("conv_groups", 1)
    if config.activation("conv_act") != hidden_act:
        raise config.wrong("conv_act", "the same form of GELU as hidden_act")
    return size


def _optional_integer(config: ConfigFile, field: str) -> int:
    """A positive integer; 0 if the file has none, 0 or -1."""
    return 0 if config.fields.get(field, -1) in (-1, 0) else config.integer(field)
