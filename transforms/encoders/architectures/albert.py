"""ALBERT: BERT whose blocks share weights, with a projection of narrower embeddings.

Source: Lan et al., https://arxiv.org/abs/1909.11942.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from layerbeam.transforms.encoders.architectures.architecture import Array, Tensor
from layerbeam.transforms.encoders.architectures.bert import Bert
from layerbeam.transforms.encoders.architectures.electra import Electra
from layerbeam.transforms.encoders.config_file import ConfigFile

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch, Network
    from layerbeam.transforms.reference import ReferenceNetwork

_MOST_BLOCKS = 1000  # the weights do not limit them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Albert(Electra):
    """ALBERT. Each of the `num_hidden_groups` has the weights of `inner_group_num` successive blocks.

    `num_hidden_layers`: all blocks, that is `inner_group_num` times the number in config.json.
    """

    num_hidden_groups: int
    inner_group_num: int

    title: ClassVar[str] = "ALBERT"
    model_types: ClassVar[tuple[str, ...]] = ("albert",)
    prefix: ClassVar[str] = "albert."
    vocabulary_file: ClassVar[str] = "tokenizer.json"
    renamed_parts: ClassVar[Mapping[str, str]] = {
        "embeddings_project": "encoder.embedding_hidden_mapping_in",
        "attention.self.": "attention.",
        "attention.output.": "attention.",
        "intermediate.dense": "ffn",
        "output.dense": "ffn_output",
        "output.LayerNorm": "full_layer_layer_norm",
        "pooler.dense": "pooler",
    }

    @classmethod
    def of_sizes(cls, config: ConfigFile, **rest: Any) -> Bert:
        groups = {name: config.integer(name) for name in ("num_hidden_groups", "inner_group_num")}
        made = super().of_sizes(config, **groups, **rest)
        blocks = made.num_hidden_layers * groups["inner_group_num"]
        if blocks > _MOST_BLOCKS:
            raise config.wrong("num_hidden_layers", f"at most {_MOST_BLOCKS:,} when multiplied by inner_group_num")
        return dataclasses.replace(made, num_hidden_layers=blocks)

    @property
    def num_stored_blocks(self) -> int:
        return self._stored(self.num_hidden_layers - 1) + 1

    def _stored(self, index: int) -> int:
        """The number of a block's weights among those of all groups."""
        layer, inner = divmod(index, self.inner_group_num)
        num_layers = self.num_hidden_layers // self.inner_group_num
        return int(layer / (num_layers / self.num_hidden_groups)) * self.inner_group_num + inner

    @property
    def _projects(self) -> bool:
        return True

    def weight_shapes(self, *, num_blocks: int | None = None, pooler: bool = True) -> dict[str, tuple[int, ...]]:
        last = self.num_hidden_layers if num_blocks is None else num_blocks
        return super().weight_shapes(num_blocks=max(map(self._stored, range(last)), default=-1) + 1, pooler=pooler)

    def spellings(self, name: str) -> tuple[str, ...]:
        def place(layer: re.Match[str]) -> str:
            group, inner = divmod(int(layer[1]), self.inner_group_num)
            return f"encoder.albert_layer_groups.{group}.albert_layers.{inner}."

        return tuple(re.sub(r"encoder\.layer\.(\d+)\.", place, theirs) for theirs in super().spellings(name))

    def block(self, net: Network, batch: Batch, index: int, hidden: Tensor, shared: Any) -> Tensor:
        stored = self._stored(index)

        def block(batch: Batch, hidden: Tensor, shared: Any) -> Tensor:
            return super(Albert, self).block(net, batch, stored, hidden, shared)

        return net.repeated(f"layer_{stored}", block, batch, hidden, shared)

    def reference_block(self, net: ReferenceNetwork, index: int, hidden: Array) -> Array:
        return super().reference_block(net, self._stored(index), hidden)
