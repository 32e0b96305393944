"""LoRA adapters with random values, as peft saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

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
