"""NomicBERT (nomic-embed-text): BERT's sums and norms, rotated positions, gated SiLU, no biases.

Source: Nussbaum et al., https://arxiv.org/abs/2402.01613.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from layerbeam.transforms.encoders.architectures.rotary import (
    BERT_EMBEDDINGS,
    POST_NORMS,
    PRODUCTS,
    QUERY_KEY_VALUE,
    Rotary,
    read_rotation,
)
from layerbeam.transforms.encoders.config_file import ConfigFile

# {name of a size in transformers' configuration: in that of its authors, who follow GPT-2}
_OLD_SIZES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
# What their other models may have.
_OLD_FIELDS = {
    "activation_function": "swiglu",
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "prenorm": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "causal": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "num_experts": 0,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NomicBert(Rotary):
    """NomicBERT, in the files of its authors and in those of transformers."""

    title: ClassVar[str] = "NomicBERT"
    model_types: ClassVar[tuple[str, ...]] = ("nomic_bert",)
    prefix: ClassVar[str] = "nomic_bert."
    vocabulary_file: ClassVar[str] = "vocab.txt"
    norm: ClassVar[Literal["layer_norm", "rms_norm"]] = "layer_norm"
    renamed_tensors: ClassVar[Mapping[str, str]] = {
        r"^bert\.": "",
        r"^encoder\.layers\.": "layers.",
        r"^emb_ln\.": "embeddings.LayerNorm.",
        r"\.attn\.out_proj\.": ".self_attn.o_proj.",
        r"\.attn\.": ".self_attn.",
        r"\.fc11\.": ".up_proj.",
        r"\.fc12\.": ".gate_proj.",
        r"\.fc2\.": ".down_proj.",
        r"\.norm1\.": ".post_attention_layernorm.",
        r"\.norm2\.": ".post_mlp_layernorm.",
    }
    fused_tensors: ClassVar[Mapping[str, tuple[str, ...]]] = {"self_attn.Wqkv": QUERY_KEY_VALUE}
    parts: ClassVar[Mapping[str, str]] = {**POST_NORMS, **PRODUCTS}
    outside: ClassVar[Mapping[str, str]] = BERT_EMBEDDINGS

    @classmethod
    def read(cls, config: ConfigFile) -> NomicBert:
        if "n_embd" in config.fields:
            for field, value in _OLD_FIELDS.items():
                config.require(field, value)
            renamed = {ours: config.fields.get(theirs) for ours, theirs in _OLD_SIZES.items()}
            config = config.with_fields({**config.fields, **renamed, "hidden_act": "silu"})
        sizes = cls.sizes(config)
        rotation = read_rotation(config, default=1000.0)
        return cls(
            **sizes,
            hidden_act=config.activation("hidden_act"),
            layer_norm_eps=config.number("layer_norm_eps", 1e-12),
            is_local=(False,) * sizes["num_hidden_layers"],
            rotations=(rotation, rotation),
            type_vocab_size=config.integer("type_vocab_size", least=0),
        )
