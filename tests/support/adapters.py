"""LoRA adapters with random values, as peft saves them, and as the authors of jina-embeddings-v3 do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from architectures import write_encoder
from safetensors.numpy import load_file, save_file
from tensor_files import joined

from layerbeam.transforms.encoders.architectures.jina_v3 import JinaV3
from layerbeam.transforms.encoders.formats.huggingface import current_names

# What peft 0.21.2 writes, but for the fields of tests.
CONFIG: dict[str, Any] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": {"base_model_class": "BertModel", "parent_library": "transformers.models.bert.modeling_bert"},
    "base_model_name_or_path": "encoder",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.1,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["query", "value"],
    "target_parameters": None,
    "task_type": "FEATURE_EXTRACTION",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
}


def write_adapter(
    folder: Path, modules: dict[str, tuple[int, int]], *, ranks: dict[str, int] | None = None, **config: Any
) -> dict[str, np.ndarray]:
    """An adapter of these modules, given with the shapes [out, in] of their weights; returns B A of each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    random = np.random.default_rng(len(modules))
    tensors, products = {}, {}
    for module, (width_out, width_in) in modules.items():
        rank = (ranks or {}).get(module, config.get("r", CONFIG["r"]))
        a = random.normal(0, 0.2, (rank, width_in)).astype(np.float32)
        b = random.normal(0, 0.2, (width_out, rank)).astype(np.float32)
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
        products[module] = b.astype(np.float64) @ a
    save_file(tensors, folder / "adapter_model.safetensors")
    return products


TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
# transformers' names of tensors, and the authors'.
_AUTHORS = {
    r"^layers\.": "encoder.layers.",
    r"^embeddings\.LayerNorm\.": "emb_ln.",
    r"\.self_attn\.o_proj\.": ".mixer.out_proj.",
    r"\.self_attn\.": ".mixer.",
    r"\.post_attention_layernorm\.": ".norm1.",
    r"\.post_mlp_layernorm\.": ".norm2.",
}


def write_jina(folder: Path) -> dict[str, Path]:
    """A small jina-embeddings-v3 with adapters for `TASKS` as its authors save it, in `folder`/own.

    Returns this folder under "own", under each task that of an encoder with the merged weights, and under "none" that
    of one without an adapter.
    """
    write_encoder(folder / "none", "jina")
    tensors = load_file(folder / "none" / "model.safetensors")
    random = np.random.default_rng(3)
    saved, merged = {}, {task: dict(tensors) for task in TASKS}
    for name, values in joined(JinaV3, tensors).items():
        theirs = name
        for pattern, replacement in _AUTHORS.items():
            theirs = re.sub(pattern, replacement, theirs)
        if values.ndim == 1:
            saved[f"roberta.{theirs}"] = values
            continue
        rows, width = values.shape
        shapes = ((rows, 4), (4, width)) if "embeddings" in name else ((4, width), (rows, 4))
        a, b = (random.normal(0, 0.2, (len(TASKS), *shape)).astype(np.float32) for shape in shapes)
        module = f"roberta.{theirs.removesuffix('.weight')}"
        saved |= {
            f"{module}.parametrizations.weight.original": values,
            f"{module}.parametrizations.weight.0.lora_A": a,
            f"{module}.parametrizations.weight.0.lora_B": b,
        }
        for number, task in enumerate(TASKS):
            first, second = (a, b) if "embeddings" in name else (b, a)
            whole = (values + 0.5 * (first[number].astype(np.float64) @ second[number])).astype(np.float32)
            parts = current_names(JinaV3, name)
            merged[task] |= dict(zip(parts, np.split(whole, len(parts)), strict=True))
    folders = {name: folder / name for name in ("own", "none", *TASKS)}
    for name, path in folders.items():
        if name != "none":
            path.mkdir()
            for file in (folder / "none").iterdir():
                (path / file.name).write_bytes(file.read_bytes())
            save_file(saved if name == "own" else merged[name], path / "model.safetensors")
    config = json.loads((folder / "none" / "config.json").read_text())
    config |= {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": 20000.0}
    config |= {"lora_adaptations": TASKS, "lora_rank": 4, "lora_alpha": 2, "lora_dropout_p": 0.0}
    del config["rope_parameters"]
    (folders["own"] / "config.json").write_text(json.dumps(config))
    return folders
