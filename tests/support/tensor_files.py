"""Weights as Hugging Face's files have them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layerbeam.transforms.encoders.architectures import Architecture


def file_tensors(architecture: Architecture, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors by transformers' names, kernels as [out, in], those that a file holds in one as one."""
    tensors = {
        architecture.spellings(name)[0]: values.T if name.endswith("/kernel") else values
        for name, values in weights.items()
    }
    for fused, parts in architecture.fused_tensors.items():
        for name in [name for name in tensors if parts[0] in name]:
            whole = [tensors.pop(name.replace(parts[0], part)) for part in parts]
            tensors[name.replace(parts[0], fused)] = np.concatenate(whole)
    return {name: np.ascontiguousarray(values) for name, values in tensors.items()}
