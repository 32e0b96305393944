"""jina-embeddings-v3: XLM-R with rotated positions. Its adapters are in `encoders/adapter.py`.

Source: Sturua et al., https://arxiv.org/abs/2409.10173.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from layerbeam.transforms.encoders.architectures.rotary import (
    ATTENTION_PRODUCTS,
    BERT_EMBEDDINGS,
    POST_NORMS,
    PRODUCTS,
    QUERY_KEY_VALUE,
    Rotary,
    read_rotation,
)
from layerbeam.transforms.encoders.config_file import ConfigFile

_INNER = {"intermediate/dense": "mlp.fc1", "output/dense": "mlp.fc2"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JinaV3(Rotary):
    """jina-embeddings-v3, in the files of its authors and in those of transformers."""

    title: ClassVar[str] = "jina-embeddings-v3"
    model_types: ClassVar[tuple[str, ...]] = ("jina_embeddings_v3",)
    prefix: ClassVar[str] = "roberta."
    norm: ClassVar[Literal["layer_norm", "rms_norm"]] = "layer_norm"
    renamed_tensors: ClassVar[Mapping[str, str]] = {
        r"\.parametrizations\.weight\.original$": ".weight",
        r"^encoder\.layers\.": "layers.",
        r"^emb_ln\.": "embeddings.LayerNorm.",
        r"\.mixer\.out_proj\.": ".self_attn.o_proj.",
        r"\.mixer\.": ".self_attn.",
        r"\.norm1\.": ".post_attention_layernorm.",
        r"\.norm2\.": ".post_mlp_layernorm.",
    }
    fused_tensors: ClassVar[Mapping[str, tuple[str, ...]]] = {"self_attn.Wqkv": QUERY_KEY_VALUE}
    parts: ClassVar[Mapping[str, str]] = {
        **POST_NORMS,
        **{ours: theirs for ours, theirs in PRODUCTS.items() if ours in ATTENTION_PRODUCTS},
        **_INNER,
    }
    outside: ClassVar[Mapping[str, str]] = {**BERT_EMBEDDINGS, "bert/pooler/dense": "pooler.dense"}

    @classmethod
    def read(cls, config: ConfigFile) -> JinaV3:
        sizes = cls.sizes(config)
        is_authors = config.fields["model_type"] not in cls.model_types
        theta = ("rotary_emb_base", 10_000.0) if is_authors else ("rope_theta", 20_000.0)
        rotation = read_rotation(config, *theta)
        return cls(
            **sizes,
            hidden_act=config.activation("hidden_act"),
            layer_norm_eps=config.number("layer_norm_eps", 1e-5),
            is_local=(False,) * sizes["num_hidden_layers"],
            rotations=(rotation, rotation),
            biased=(*ATTENTION_PRODUCTS, *_INNER),
            type_vocab_size=config.integer("type_vocab_size", least=0),
        )
