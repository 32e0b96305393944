"""MPNet: RoBERTa without segments, and with a bias of attention for each distance, shared by all blocks.

Source: Song et al., https://arxiv.org/abs/2004.09297; the distances' buckets are T5's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from layerbeam.transforms.encoders.architectures.architecture import SIZES, Array, Tensor
from layerbeam.transforms.encoders.architectures.bert import Bert
from layerbeam.transforms.encoders.architectures.roberta import Roberta
from layerbeam.transforms.encoders.attention import Block
from layerbeam.transforms.encoders.config_file import ConfigFile
from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch, Network
    from layerbeam.transforms.reference import ReferenceNetwork

_BIAS = "bert/encoder/relative_attention_bias"
# Constants of transformers' code, whatever config.json says.
_PADDING = 1
_BUCKETS = 32
_FARTHEST = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class MPNet(Roberta):
    """MPNet."""

    type_vocab_size: int = 0

    title: ClassVar[str] = "MPNet"
    model_types: ClassVar[tuple[str, ...]] = ("mpnet",)
    prefix: ClassVar[str] = "mpnet."
    size_fields: ClassVar[Mapping[str, str]] = {name: name for name in SIZES}
    renamed_parts: ClassVar[Mapping[str, str]] = {
        "attention.self.query": "attention.attn.q",
        "attention.self.key": "attention.attn.k",
        "attention.self.value": "attention.attn.v",
        "attention.output.dense": "attention.attn.o",
        "attention.output.LayerNorm": "attention.LayerNorm",
        "relative_attention_bias": "relative_attention_bias.weight",
    }

    @classmethod
    def read(cls, config: ConfigFile) -> Bert:
        config.require("relative_attention_num_buckets", _BUCKETS)
        config.require("pad_token_id", _PADDING)
        return super().read(config)

    def weight_shapes(self, *, num_blocks: int | None = None, pooler: bool = True) -> dict[str, tuple[int, ...]]:
        shapes = super().weight_shapes(num_blocks=num_blocks, pooler=pooler)
        return shapes | {_BIAS: (_BUCKETS, self.num_attention_heads)}

    def prepare(self, net: Network, batch: Batch) -> Any:
        buckets = tf.constant(distance_buckets(self.max_length), tf.int32)
        of_distance = tf.transpose(tf.gather(net.weight(_BIAS), buckets))  # [heads, distances]

        def by_distance(block: Block) -> Tensor:
            first, heads = block.heads
            farthest = self.max_length - 1
            rows = tf.maximum(block.ahead, -farthest) + farthest  # queries that fill a block are beyond
            return tf.gather(tf.slice(of_distance, [first, 0], [heads, -1]), rows, axis=1)[None]

        return net.attention.scope(batch, by_distance=by_distance)

    def reference_attend(self, net: ReferenceNetwork, name: str, query: Array, key: Array, value: Array) -> Array:
        length, place = query.shape[1], np.arange(query.shape[1])
        bucket_of = distance_buckets(length)

        def bias(rows: slice) -> Array:
            buckets = bucket_of[place[None, :] - place[rows, None] + length - 1]
            return np.asarray(net.weights[_BIAS][buckets].transpose(2, 0, 1))

        return net.attend(query, key, value, bias)


def distance_buckets(length: int) -> Array:
    """The bucket of each distance from -(length - 1) to length - 1: a key before its query is a negative distance.

    Each of the first 8 distances has its own bucket, longer ones share them logarithmically.

    >>> distance_buckets(10).tolist()
    [8, 8, 7, 6, 5, 4, 3, 2, 1, 0, 17, 18, 19, 20, 21, 22, 23, 24, 24]
    """
    distance = np.arange(-(length - 1), length)
    half, exact = _BUCKETS // 2, _BUCKETS // 4
    far = np.maximum(np.abs(distance), 1).astype(np.float32)
    # In float32, as in PyTorch: the bucket of an exact power may depend on it.
    shared = np.log(far / exact) / np.float32(math.log(_FARTHEST / exact)) * np.float32(half - exact)
    shared = np.minimum(exact + shared.astype(np.int64), half - 1)
    return np.where(distance > 0, half, 0) + np.where(np.abs(distance) < exact, np.abs(distance), shared)
