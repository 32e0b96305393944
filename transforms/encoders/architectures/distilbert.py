"""DistilBERT: BERT with fewer blocks, without segments and pooler. Source: Sanh et al., https://arxiv.org/abs/1910.01108."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from layerbeam.transforms.encoders.architectures.bert import Bert
from layerbeam.transforms.encoders.config_file import ConfigFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilBert(Bert):
    """DistilBERT."""

    type_vocab_size: int = 0

    title: ClassVar[str] = "DistilBERT"
    model_types: ClassVar[tuple[str, ...]] = ("distilbert",)
    prefix: ClassVar[str] = "distilbert."
    size_fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_position_embeddings": "max_position_embeddings",
    }
    renamed_parts: ClassVar[Mapping[str, str]] = {
        "encoder.layer.": "transformer.layer.",
        "attention.self.query": "attention.q_lin",
        "attention.self.key": "attention.k_lin",
        "attention.self.value": "attention.v_lin",
        "attention.output.dense": "attention.out_lin",
        "attention.output.LayerNorm": "sa_layer_norm",
        "intermediate.dense": "ffn.lin1",
        "output.dense": "ffn.lin2",
        "output.LayerNorm": "output_layer_norm",
    }

    @classmethod
    def read(cls, config: ConfigFile) -> Bert:
        return cls.of_sizes(config, hidden_act=config.activation("activation"), layer_norm_eps=1e-12)
