"""Weights as Hugging Face's files have them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layerbeam.transforms.encoders.architectures import Architecture


def file_tensors(architecture: Architecture, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors by transformers' names, kernels as [out, in]. ModernBERT has several products in one tensor."""
    tensors = {
        architecture.spellings(name)[0]: np.ascontiguousarray(values.T if name.endswith("/kernel") else values)
        for name, values in weights.items()
    }
    return joined(architecture, tensors) if "modernbert" in architecture.model_types else tensors


def joined(architecture: Architecture, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors, with the products in one that files may hold in one."""
    tensors = dict(tensors)
    for fused, parts in architecture.fused_tensors.items():
        for name in [name for name in tensors if parts[0] in name]:
            whole = [tensors.pop(name.replace(parts[0], part)) for part in parts]
            tensors[name.replace(parts[0], fused)] = np.concatenate(whole)
    return tensors
