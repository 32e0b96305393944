"""Qwen3: a decoder with grouped heads and a norm of each query and key, used as an embedder (Qwen3-Embedding).

Source: Yang et al., https://arxiv.org/abs/2505.09388; Zhang et al., https://arxiv.org/abs/2506.05176.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from layerbeam.transforms.encoders.architectures.rotary import (
    EMBEDDINGS,
    PRODUCTS,
    Rotary,
    local_blocks,
    read_biased,
    read_rotation,
)
from layerbeam.transforms.encoders.config_file import ConfigFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3(Rotary):
    """Qwen3. Attention reaches earlier tokens only."""

    title: ClassVar[str] = "Qwen3"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3",)
    prefix: ClassVar[str] = "model."
    parts: ClassVar[Mapping[str, str]] = {
        "attention/LayerNorm": "input_layernorm",
        "attention/self/query/LayerNorm": "self_attn.q_norm",
        "attention/self/key/LayerNorm": "self_attn.k_norm",
        "intermediate/LayerNorm": "post_attention_layernorm",
        **PRODUCTS,
    }
    outside: ClassVar[Mapping[str, str]] = EMBEDDINGS

    @classmethod
    def read(cls, config: ConfigFile) -> Qwen3:
        sizes = cls.sizes(config)
        blocks = sizes["num_hidden_layers"]
        config.require("use_sliding_window", False)
        is_local = local_blocks(config, blocks, (False,) * blocks)
        if any(is_local):
            raise config.wrong("layer_types", "full_attention for each block")
        rotation = read_rotation(config)
        return cls(
            **sizes,
            hidden_act=config.activation("hidden_act"),
            layer_norm_eps=config.number("rms_norm_eps", 1e-6),
            is_local=is_local,
            is_causal=True,
            rotations=(rotation, rotation),
            biased=read_biased(config, "attention_bias"),
        )
