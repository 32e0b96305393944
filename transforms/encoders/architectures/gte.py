"""GTE (mGTE, gte-v1.5, snowflake-arctic-embed-m-v2): BERT's sums and norms, rotated positions, gated GELU.

Source: Zhang et al., https://arxiv.org/abs/2407.19669.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from layerbeam.transforms.encoders.architectures.rotary import (
    ATTENTION_PRODUCTS,
    BERT_EMBEDDINGS,
    POST_NORMS,
    PRODUCTS,
    QUERY_KEY_VALUE,
    Rotary,
    Rotation,
    read_rotation,
)
from layerbeam.transforms.encoders.config_file import ConfigFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gte(Rotary):
    """GTE, in the files of its authors (`new`) and in those of transformers (`gte`)."""

    title: ClassVar[str] = "GTE"
    model_types: ClassVar[tuple[str, ...]] = ("gte", "new")
    prefix: ClassVar[str] = "gte."
    norm: ClassVar[Literal["layer_norm", "rms_norm"]] = "layer_norm"
    renamed_tensors: ClassVar[Mapping[str, str]] = {
        r"^new\.": "",
        r"^encoder\.layer\.": "layers.",
        r"\.attention\.": ".self_attn.",
        r"\.attn_ln\.": ".post_attention_layernorm.",
        r"\.mlp_ln\.": ".post_mlp_layernorm.",
    }
    fused_tensors: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "self_attn.qkv_proj": QUERY_KEY_VALUE,
        "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj"),
    }
    parts: ClassVar[Mapping[str, str]] = {**POST_NORMS, **PRODUCTS}
    outside: ClassVar[Mapping[str, str]] = BERT_EMBEDDINGS

    @classmethod
    def read(cls, config: ConfigFile) -> Gte:
        sizes = cls.sizes(config)
        config.require("position_embedding_type", "rope", "absolute")  # transformers writes BERT's default
        config.require("layer_norm_type", "layer_norm")
        config.require("logn_attention_scale", False)
        rotation = _rotation(config, sizes["head_size"])
        return cls(
            **sizes,
            hidden_act=config.activation("hidden_act"),
            layer_norm_eps=config.number("layer_norm_eps", 1e-12),
            is_local=(False,) * sizes["num_hidden_layers"],
            rotations=(rotation, rotation),
            biased=(*ATTENTION_PRODUCTS, "output/dense"),
            type_vocab_size=config.integer("type_vocab_size", least=0),
        )


def _rotation(config: ConfigFile, head_size: int) -> Rotation:
    """The rotation; its authors' `rope_scaling` may stretch it for longer texts, https://kexue.fm/archives/9706."""
    scaling: Any = config.fields.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("type") != "ntk":
        return read_rotation(config, default=160_000.0)
    factor: Any = scaling.get("factor")
    if type(factor) not in (int, float) or not 1 <= factor < 1000 or scaling.get("mixed_b") is not None:
        raise config.wrong("rope_scaling", "of type ntk, with a factor from 1 and without mixed_b")
    theta = config.number("rope_theta", 10_000.0, below=1e12)
    return Rotation(theta * factor, float(factor ** (2 / head_size)))
