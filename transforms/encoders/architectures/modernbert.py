"""ModernBERT: layer norm before each sum, gated GELU, local attention in most blocks.

Source: Warner et al., https://arxiv.org/abs/2412.13663.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from layerbeam.transforms.encoders.architectures.rotary import (
    Rotary,
    local_blocks,
    read_biased,
    read_rotations,
)
from layerbeam.transforms.encoders.config_file import ConfigFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBert(Rotary):
    """ModernBERT. The first block's input is normalized already. `norm_bias`: whether the norms add a vector."""

    norm_bias: bool

    title: ClassVar[str] = "ModernBERT"
    model_types: ClassVar[tuple[str, ...]] = ("modernbert",)
    prefix: ClassVar[str] = "model."
    norm: ClassVar[Literal["layer_norm", "rms_norm"]] = "layer_norm"
    fused_tensors: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "attn.Wqkv": ("attn.query", "attn.key", "attn.value"),
        "mlp.Wi": ("mlp.inner", "mlp.gate"),
    }
    parts: ClassVar[Mapping[str, str]] = {
        "attention/LayerNorm": "attn_norm",
        "attention/self/query": "attn.query",
        "attention/self/key": "attn.key",
        "attention/self/value": "attn.value",
        "attention/output/dense": "attn.Wo",
        "intermediate/LayerNorm": "mlp_norm",
        "intermediate/dense": "mlp.inner",
        "intermediate/gate": "mlp.gate",
        "output/dense": "mlp.Wo",
    }
    outside: ClassVar[Mapping[str, str]] = {
        "bert/embeddings/word_embeddings": "embeddings.tok_embeddings",
        "bert/embeddings/LayerNorm": "embeddings.norm",
        "bert/LayerNorm": "final_norm",
    }

    @classmethod
    def read(cls, config: ConfigFile) -> ModernBert:
        sizes = cls.sizes(config)
        blocks = sizes["num_hidden_layers"]
        every = 1 if "layer_types" in config.fields else config.integer("global_attn_every_n_layers")
        return cls(
            **sizes,
            hidden_act=config.activation("hidden_activation"),
            layer_norm_eps=config.number("norm_eps", 1e-5),
            is_local=local_blocks(config, blocks, [index % every != 0 for index in range(min(blocks, 10_000))]),
            reach=config.integer("local_attention") // 2,
            rotations=read_rotations(config, ("global_rope_theta", "local_rope_theta"), (160_000.0, 10_000.0)),
            biased=read_biased(config, "attention_bias", "mlp_bias"),
            norm_bias=config.require("norm_bias", False, True),
        )

    @property
    def has_beta(self) -> bool:
        return self.norm_bias

    def has_part(self, index: int, part: str) -> bool:
        return super().has_part(index, part) and (index, part) != (0, "attention/LayerNorm")
