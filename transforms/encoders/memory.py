"""What an encoder's forward pass takes of a processor's memory, from its sizes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.attention import scores_at_once

# Kernels generated for a new shape, and what an allocator keeps.
_FIXED_BYTES = 32 << 20
# Of a kernel's number, by `compute_dtype`: bfloat16 and int8 are kept packed, too, for short and for long texts.
_KERNEL_BYTES = {"float32": 4, "bfloat16": 6, "int8": 3}
_LOADING = 1.1  # at most so many times the weights are in memory while they are read


class BatchBytes(NamedTuple):
    """Of a batch in a thread: what grows with its tokens, and the scores of attention."""

    activations: int
    attention: int

    @property
    def total(self) -> int:
        """Both."""
        return self.activations + self.attention


def batch_bytes(architecture: Architecture, layers: Sequence[int], rows: int, longest: int) -> BatchBytes:
    """The bytes of a forward pass with these layers, rather too many than too few.

    Measured, a text of 8,192 or 32,768 tokens takes 0.5 to 0.7 of it (BERT-base, Qwen3).
    """
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    # The residual stream before and after; query, key and value as they come, by heads and rotated, or both sides of
    # the activation; each layer with padding and without.
    width = 2 * hidden + max(3 * architecture.attention_width, 2 * inner) + 2 * hidden * len(layers)
    scores = scores_at_once(architecture.num_attention_heads, rows, longest) * architecture.queries_of_key
    return BatchBytes(4 * rows * longest * width + _FIXED_BYTES, 4 * architecture.copies_of_scores * scores)


def weight_bytes(architecture: Architecture, layers: Sequence[int], *, pooler: bool, compute_dtype: str) -> int:
    """The bytes of the weights while they are loaded."""
    num_blocks = architecture.blocks_needed(layers, pooler=pooler)
    shapes = architecture.weight_shapes(num_blocks=num_blocks, pooler=pooler)
    numbers = (
        math.prod(shape) * (_KERNEL_BYTES[compute_dtype] if name.endswith("/kernel") else 4)
        for name, shape in shapes.items()
    )
    return int(_LOADING * sum(numbers))
