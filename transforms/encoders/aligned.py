"""Arrays in memory that TensorFlow can take over: from any other array it makes two copies before it has a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from layerbeam.transforms.encoders.architectures.architecture import Array
from layerbeam.transforms.hardware import tf

_ALIGNMENT = 64  # bytes, as TensorFlow's own tensors have


def empty_aligned(shape: Sequence[int], dtype: Any = np.float32) -> Array:
    """An array without values."""
    dtype = np.dtype(dtype)
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return np.asarray(memory[begin : begin + num_bytes].view(dtype).reshape(shape))


def take_over(values: Array) -> Any:
    """A tensor on the processor, in the memory of an array that `empty_aligned` made; of any other, of a copy."""
    if not (values.flags.c_contiguous and values.flags.writeable and values.ctypes.data % _ALIGNMENT == 0):
        copy = empty_aligned(values.shape, values.dtype)
        copy[...] = values
        values = copy
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())
