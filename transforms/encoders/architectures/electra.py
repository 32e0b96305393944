"""ELECTRA's discriminator: BERT with a projection of narrower embeddings, without pooler.

Source: Clark et al., https://arxiv.org/abs/2003.10555.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from layerbeam.transforms.encoders.architectures.architecture import Array, Tensor, dense_shapes
from layerbeam.transforms.encoders.architectures.bert import Bert
from layerbeam.transforms.encoders.config_file import ConfigFile
from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch, Network
    from layerbeam.transforms.reference import ReferenceNetwork

_PROJECTION = "bert/embeddings_project"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Electra(Bert):
    """ELECTRA. `embedding_size`: width of the embeddings; if it is the hidden size, there is no projection."""

    embedding_size: int

    title: ClassVar[str] = "ELECTRA"
    model_types: ClassVar[tuple[str, ...]] = ("electra",)
    prefix: ClassVar[str] = "electra."

    @classmethod
    def of_sizes(cls, config: ConfigFile, **rest: Any) -> Bert:
        return super().of_sizes(config, embedding_size=config.integer("embedding_size"), **rest)

    @property
    def embedding_width(self) -> int:
        return self.embedding_size

    @property
    def _projects(self) -> bool:
        return self.embedding_size != self.hidden_size

    def weight_shapes(self, *, num_blocks: int | None = None, pooler: bool = True) -> dict[str, tuple[int, ...]]:
        shapes = super().weight_shapes(num_blocks=num_blocks, pooler=pooler)
        return shapes | (dense_shapes(_PROJECTION, self.embedding_size, self.hidden_size) if self._projects else {})

    def embed(self, net: Network, batch: Batch) -> Tensor:
        embedded = super().embed(net, batch)
        return tf.cast(net.dense(_PROJECTION, embedded), tf.float32) if self._projects else embedded

    def reference_embed(self, net: ReferenceNetwork, token_ids: Array, segment_ids: Array) -> Array:
        embedded = super().reference_embed(net, token_ids, segment_ids)
        return net.dense(_PROJECTION, embedded) if self._projects else embedded
