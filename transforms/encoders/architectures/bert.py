"""BERT, and the base of all architectures that normalize after each sum, as the original Transformer does.

Source of the formulas: `modeling.py` of google-research/bert; Devlin et al., https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

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
from layerbeam.transforms.flow.blocks import Float32Array
from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch, Network
    from layerbeam.transforms.reference import ReferenceNetwork


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bert(Architecture):
    """BERT. `type_vocab_size`: segments; 0 in subclasses without them.

    >>> base = Bert(vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
    ...             intermediate_size=3072, max_position_embeddings=512, type_vocab_size=2, hidden_act="gelu_tanh",
    ...             layer_norm_eps=1e-12)
    >>> shapes = base.weight_shapes()
    >>> len(shapes), shapes["bert/encoder/layer_11/intermediate/dense/kernel"]
    (199, (768, 3072))
    """

    type_vocab_size: int

    title: ClassVar[str] = "BERT"
    model_types: ClassVar[tuple[str, ...]] = ("bert",)
    prefix: ClassVar[str] = "bert."
    vocabulary_file: ClassVar[str] = "vocab.txt"
    # {our name of a size: its name in config.json}
    size_fields: ClassVar[Mapping[str, str]] = {name: name for name in (*SIZES, "type_vocab_size")}
    # {part of a weight's name in a BERT of transformers: the same part in this architecture}, replaced in this order
    renamed_parts: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def read(cls, config: ConfigFile) -> Bert:
        config.require("position_embedding_type", "absolute")
        for field in ("is_decoder", "add_cross_attention"):
            config.require(field, False)
        epsilon = config.number("layer_norm_eps", 1e-12)
        return cls.of_sizes(config, hidden_act=config.activation("hidden_act"), layer_norm_eps=epsilon)

    @classmethod
    def of_sizes(cls, config: ConfigFile, **rest: Any) -> Bert:
        """With the sizes in a file and `rest`, the other fields."""
        sizes: dict[str, Any] = config.sizes(cls.size_fields)
        return cls(**sizes, **rest)

    @property
    def has_segments(self) -> bool:
        return self.type_vocab_size > 1

    @property
    def embedding_width(self) -> int:
        """Width of the tables of words, positions and segments."""
        return self.hidden_size

    @property
    def score_terms(self) -> int:
        """The terms in a score of attention, which is divided by the square root of their number."""
        return self.hidden_size // self.num_attention_heads

    def weight_shapes(self, *, num_blocks: int | None = None, pooler: bool = True) -> dict[str, tuple[int, ...]]:
        hidden, inner, width = self.hidden_size, self.intermediate_size, self.embedding_width
        shapes: dict[str, tuple[int, ...]] = {"bert/embeddings/word_embeddings": (self.vocab_size, width)}
        if self.type_vocab_size:
            shapes["bert/embeddings/token_type_embeddings"] = (self.type_vocab_size, width)
        shapes["bert/embeddings/position_embeddings"] = (self.max_position_embeddings, width)
        shapes |= layer_norm_shapes("bert/embeddings", width)
        for index in range(self.num_hidden_layers if num_blocks is None else num_blocks):
            block = f"bert/encoder/layer_{index}"
            for part in ("query", "key", "value"):
                shapes |= dense_shapes(f"{block}/attention/self/{part}", hidden, hidden)
            shapes |= dense_shapes(f"{block}/attention/output/dense", hidden, hidden)
            shapes |= layer_norm_shapes(f"{block}/attention/output", hidden)
            shapes |= dense_shapes(f"{block}/intermediate/dense", hidden, inner)
            shapes |= dense_shapes(f"{block}/output/dense", inner, hidden)
            shapes |= layer_norm_shapes(f"{block}/output", hidden)
        return shapes | (dense_shapes("bert/pooler/dense", hidden, hidden) if pooler else {})

    def spellings(self, name: str) -> tuple[str, ...]:
        """
        >>> Bert.spellings(Bert, "bert/encoder/layer_11/attention/output/LayerNorm/gamma")
        ('encoder.layer.11.attention.output.LayerNorm.weight', 'encoder.layer.11.attention.output.LayerNorm.gamma')
        """
        name = re.sub(r"/(kernel|gamma)$", "/weight", name.removeprefix("bert/"))
        name = re.sub(r"/beta$", "/bias", re.sub(r"_embeddings$", "_embeddings/weight", name))
        theirs = re.sub(r"layer_(\d+)/", r"layer/\1/", name).replace("/", ".")
        for part, renamed in self.renamed_parts.items():
            theirs = theirs.replace(part, renamed)
        # The oldest checkpoints, bert-base-uncased among them, kept TensorFlow's names.
        old = theirs.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return (theirs,) if old == theirs else (theirs, old)

    def fuse(
        self, weights: Mapping[str, Float32Array], *, num_blocks: int, pooler: bool
    ) -> Iterator[tuple[str, Float32Array]]:
        for name in self.weight_shapes(num_blocks=num_blocks, pooler=pooler):
            if "/self/query/" in name:
                query = scale_query(weights[name], self.score_terms)
                others = (weights[name.replace("query", which)] for which in ("key", "value"))
                yield name.replace("query/", ""), np.concatenate([query, *others], axis=-1)
            elif "/self/" not in name:
                yield name, weights[name]

    def embed(self, net: Network, batch: Batch) -> Tensor:
        summed = tf.gather(net.weight("bert/embeddings/word_embeddings"), batch.token_ids)
        if self.type_vocab_size:
            summed += tf.gather(net.weight("bert/embeddings/token_type_embeddings"), batch.segment_ids)
        summed += self.positions(net.weight("bert/embeddings/position_embeddings"), batch)
        return net.layer_norm("bert/embeddings", tf.reshape(summed, [-1, self.embedding_width]))

    def positions(self, table: Tensor, batch: Batch) -> Tensor:
        """The vectors of the positions, [S, H] or [B, S, H]."""
        return table[: batch.longest]

    def block(self, net: Network, batch: Batch, index: int, hidden: Tensor, shared: Any) -> Tensor:
        name = f"bert/encoder/layer_{index}"
        counts = [self.num_attention_heads] * 3
        query, key, value = net.heads(batch, net.dense(f"{name}/attention/self", hidden), counts)
        context = self.attend(net, name, query, key, value, shared)
        attended = net.dense(f"{name}/attention/output/dense", context)
        hidden = net.layer_norm(f"{name}/attention/output", hidden + tf.cast(attended, tf.float32))
        inner = net.dense(f"{name}/intermediate/dense", hidden, self.hidden_act, reader=f"{name}/output/dense")
        outer = net.dense(f"{name}/output/dense", inner)
        return net.layer_norm(f"{name}/output", hidden + tf.cast(outer, tf.float32))

    def attend(self, net: Network, name: str, query: Tensor, key: Tensor, value: Tensor, shared: Any) -> Tensor:
        """What a block attends to, [B S, H]. `name`: of the block."""
        return net.attention(query, key, value, shared)

    def reference_embed(self, net: ReferenceNetwork, token_ids: Array, segment_ids: Array) -> Array:
        x = net.weights["bert/embeddings/word_embeddings"][token_ids]
        if self.type_vocab_size:
            x = x + net.weights["bert/embeddings/token_type_embeddings"][segment_ids]
        positions = self.reference_positions(token_ids)
        return net.layer_norm("bert/embeddings", x + net.weights["bert/embeddings/position_embeddings"][positions])

    def reference_positions(self, token_ids: Array) -> Array:
        """The positions of a text's tokens."""
        return np.arange(len(token_ids))

    def reference_attend(self, net: ReferenceNetwork, name: str, query: Array, key: Array, value: Array) -> Array:
        """`attend` in NumPy for one text, [S, H]."""
        return net.attend(query, key, value, lambda _: 0.0)

    def reference_block(self, net: ReferenceNetwork, index: int, hidden: Array) -> Array:
        name = f"bert/encoder/layer_{index}"
        query, key, value = (
            net.heads(net.dense(f"{name}/attention/self/{part}", hidden)) for part in ("query", "key", "value")
        )
        context = self.reference_attend(net, name, query, key, value)
        attended = net.dense(f"{name}/attention/output/dense", context)
        hidden = net.layer_norm(f"{name}/attention/output", hidden + attended)
        inner = net.activation(net.dense(f"{name}/intermediate/dense", hidden))
        return net.layer_norm(f"{name}/output", hidden + net.dense(f"{name}/output/dense", inner))
