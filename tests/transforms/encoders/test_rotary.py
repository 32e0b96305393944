"""Encoders with rotated positions: the names of their weights in older files, configurations, memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from architectures import CONFIGS, write_encoder
from safetensors.numpy import load_file, save_file
from tampering import edit
from tensor_files import joined
from weights import same_weights

from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.encoders.formats.weights import empty_aligned, take_over

QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
# {a case: {a part of a name as transformers 5 has it: the same part in its authors' files}}
AUTHORS_NAMES = {
    "nomic": {
        "layers.": "encoder.layers.",
        "embeddings.LayerNorm": "emb_ln",
        "self_attn.o_proj": "attn.out_proj",
        "self_attn.Wqkv": "attn.Wqkv",
        "mlp.up_proj": "mlp.fc11",
        "mlp.gate_proj": "mlp.fc12",
        "mlp.down_proj": "mlp.fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    },
    "gte-new": {
        "layers.": "new.encoder.layer.",
        "embeddings.word": "new.embeddings.word",
        "embeddings.Layer": "new.embeddings.Layer",
        "self_attn": "attention",
        "post_attention_layernorm": "attn_ln",
        "post_mlp_layernorm": "mlp_ln",
    },
    "jina": {
        "layers.": "roberta.encoder.layers.",
        "embeddings.LayerNorm": "roberta.emb_ln",
        "embeddings.word": "roberta.embeddings.word",
        "embeddings.token": "roberta.embeddings.token",
        "pooler": "roberta.pooler",
        "self_attn.o_proj": "mixer.out_proj",
        "self_attn.Wqkv": "mixer.Wqkv",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    },
}


@pytest.mark.parametrize("name", AUTHORS_NAMES)
def test_files_with_the_names_of_transformers_and_of_the_authors_hold_the_same(tmp_path, name):
    folders = [write_encoder(tmp_path / kind, name) for kind in ("transformers", "fused", "authors")]
    split = load_file(folders[0] / "model.safetensors")
    tensors = joined(open_encoder(str(folders[0])).architecture, split)
    assert len(split) > len(tensors)
    save_file(tensors, folders[1] / "model.safetensors")
    theirs = {}
    for tensor, values in tensors.items():
        for part, renamed in AUTHORS_NAMES[name].items():
            tensor = tensor.replace(part, renamed)
        theirs[tensor] = values
    assert not set(theirs) & set(tensors) - {
        "embeddings.word_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
    }
    save_file(theirs, folders[2] / "model.safetensors")
    assert all(same_weights(folders[0], other) for other in folders[1:])
    assert len({open_encoder(str(folder)).fingerprint for folder in folders}) == 1


def test_a_configuration_of_nomic_as_its_authors_write_it(tmp_path):
    current, old = (write_encoder(tmp_path / name, "nomic") for name in ("current", "old"))
    config = {"model_type": "nomic_bert", "n_embd": 24, "n_layer": 3, "n_head": 3, "n_inner": 40, "n_positions": 64}
    config |= {"layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "activation_function": "swiglu", "prenorm": False}
    config |= {"rotary_emb_fraction": 1.0, "rotary_scaling_factor": None, "vocab_size": 300, "type_vocab_size": 2}
    (old / "config.json").write_text(json.dumps(config))
    assert open_encoder(str(old)).architecture == open_encoder(str(current)).architecture


@pytest.mark.parametrize(
    ("name", "fields", "rotations"),
    [
        ("gte", {}, [(160_000.0, 1.0)] * 2),
        ("gte-new", {}, [(160_000.0, 8 ** (2 / 8))] * 2),  # 20,000 times the factor 8; 8 dimensions in a head
        ("gte-new", {"rope_scaling": None}, [(20_000.0, 1.0)] * 2),
        ("qwen3", {}, [(1_000_000.0, 1.0)] * 2),
        ("qwen3", {"rope_parameters": {"rope_theta": 7.0}}, [(7.0, 1.0)] * 2),
        ("gemma3", {}, [(1_000_000.0, 1.0), (10_000.0, 1.0)]),
        ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8}}, [(1_000_000.0, 8.0), (10_000.0, 1.0)]),
        ("gemma3-causal", {}, [(1_000_000.0, 8.0), (10_000.0, 1.0)]),
        ("modernbert", {}, [(160_000.0, 1.0), (10_000.0, 1.0)]),
    ],
)
def test_rotations(folders, tmp_path, name, fields, rotations):
    folder = Path(shutil.copytree(folders[name], tmp_path / "encoder"))
    edit(folder / "config.json", **fields)
    assert [tuple(rotation) for rotation in open_encoder(str(folder)).architecture.rotations] == rotations


def test_blocks_with_local_attention(folders):
    architectures = {name: open_encoder(str(folders[name])).architecture for name in ("gemma3", "gemma3-causal")}
    found = {name: (a.is_local, a.reach, a.is_causal) for name, a in architectures.items()}
    # A window of 8 tokens is 4 to each side, or the token and the 7 before it.
    assert found == {"gemma3": ((True, False, True), 4, False), "gemma3-causal": ((True, False, True), 7, True)}
    assert "layer_types" not in CONFIGS["gemma3"]


def test_a_tensor_takes_over_aligned_memory_and_copies_other(threads):
    values = empty_aligned((3, 5))
    values[...] = np.arange(15).reshape(3, 5)
    assert values.ctypes.data % 64 == 0
    others = [values[1:], values.T, values.astype(np.int8), np.float32(7).reshape(())]
    tensors = [take_over(other) for other in (values, *others)]
    expected = [other.copy() for other in others]
    values[...] = 9
    assert (tensors[0].numpy() == 9).all()
    for tensor, wanted in zip(tensors[1:], expected, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), wanted)
