"""EuroBERT: Llama's block with attention to both sides.

Source: Boizard et al., https://arxiv.org/abs/2503.05500.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from layerbeam.transforms.encoders.architectures.rotary import (
    EMBEDDINGS,
    PRODUCTS,
    Rotary,
    read_biased,
    read_rotation,
)
from layerbeam.transforms.encoders.config_file import ConfigFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class EuroBert(Rotary):
    """EuroBERT."""

    title: ClassVar[str] = "EuroBERT"
    model_types: ClassVar[tuple[str, ...]] = ("eurobert",)
    prefix: ClassVar[str] = "model."
    parts: ClassVar[Mapping[str, str]] = {
        "attention/LayerNorm": "input_layernorm",
        "intermediate/LayerNorm": "post_attention_layernorm",
        **PRODUCTS,
    }
    outside: ClassVar[Mapping[str, str]] = EMBEDDINGS

    @classmethod
    def read(cls, config: ConfigFile) -> EuroBert:
        sizes = cls.sizes(config)
        rotation = read_rotation(config)
        return cls(
            **sizes,
            hidden_act=config.activation("hidden_act"),
            layer_norm_eps=config.number("rms_norm_eps", 1e-5),
            is_local=(False,) * sizes["num_hidden_layers"],
            rotations=(rotation, rotation),
            biased=read_biased(config, "attention_bias", "mlp_bias"),
        )
