"""Gemma 3's text model, as a decoder or with attention to both sides (EmbeddingGemma).

Source: https://arxiv.org/abs/2503.19786; Vera et al., https://arxiv.org/abs/2509.20354.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from layerbeam.transforms.encoders.architectures.rotary import (
    EMBEDDINGS,
    PRODUCTS,
    Rotary,
    local_blocks,
    read_biased,
    read_rotations,
)
from layerbeam.transforms.encoders.config_file import ConfigFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma3(Rotary):
    """Gemma 3. Norms before and after attention and the gated layer. `query_pre_attn_scalar`: d of 1/sqrt(d)."""

    query_pre_attn_scalar: int

    title: ClassVar[str] = "Gemma 3"
    model_types: ClassVar[tuple[str, ...]] = ("gemma3_text",)
    prefix: ClassVar[str] = "model."
    gamma_from: ClassVar[float] = 1.0
    parts: ClassVar[Mapping[str, str]] = {
        "attention/LayerNorm": "input_layernorm",
        "attention/self/query/LayerNorm": "self_attn.q_norm",
        "attention/self/key/LayerNorm": "self_attn.k_norm",
        "attention/output/LayerNorm": "post_attention_layernorm",
        "intermediate/LayerNorm": "pre_feedforward_layernorm",
        "output/LayerNorm": "post_feedforward_layernorm",
        **PRODUCTS,
    }
    outside: ClassVar[Mapping[str, str]] = EMBEDDINGS

    @classmethod
    def read(cls, config: ConfigFile) -> Gemma3:
        sizes = cls.sizes(config)
        blocks = sizes["num_hidden_layers"]
        config.require("attn_logit_softcapping", None)
        is_causal = not config.require("use_bidirectional_attention", False, True)
        window = config.integer("sliding_window")
        every = 1 if "layer_types" in config.fields else config.fields.get("sliding_window_pattern", 6)
        if type(every) is not int or every < 1:
            raise config.wrong("sliding_window_pattern", "a positive integer")
        return cls(
            **sizes,
            hidden_act=config.activation("hidden_activation"),
            layer_norm_eps=config.number("rms_norm_eps", 1e-6),
            is_local=local_blocks(config, blocks, [(index + 1) % every != 0 for index in range(min(blocks, 10_000))]),
            reach=window - 1 if is_causal else window // 2,
            is_causal=is_causal,
            rotations=read_rotations(config, ("rope_theta", "rope_local_base_freq"), (1_000_000.0, 10_000.0)),
            biased=read_biased(config, "attention_bias"),
            query_pre_attn_scalar=config.integer("query_pre_attn_scalar"),
        )

    @property
    def query_scale(self) -> float:
        return float(1 / np.sqrt(self.query_pre_attn_scalar))

    @property
    def embedding_scale(self) -> float:
        return float(np.sqrt(self.hidden_size))
