"""Tensors in safetensors files: listed from the header alone, then mapped from the disk.

Format: https://huggingface.co/docs/safetensors (8 bytes of header length, a JSON header, the numbers, little-endian).
Read here rather than by the library, which copies every tensor and cannot give bfloat16 to NumPy by itself.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from layerbeam.transforms.blocks import Float32Array

# The number types that hold floats; a bfloat16 is the upper half of a float32.
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F64": np.dtype("<f8"),
}


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: from byte `start` of `file` on. `dtype`: the format's name, such as F32."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def read(self) -> Float32Array:
        """The tensor in float32, mapped from the file where it is that already. KeyError if not one of DTYPES."""
        values: np.ndarray[Any, Any] = np.asarray(
            np.memmap(self.file, DTYPES[self.dtype], mode="r", offset=self.start, shape=self.shape)
        )
        if self.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False)


def stored_tensors(files: Iterable[str]) -> dict[str, StoredTensor]:
    """All tensors of these files by name; no number is read. ValueError for a damaged file, FileNotFoundError."""
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        try:
            tensors.update(_listed(file))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            raise ValueError(f"{file}: not a whole safetensors file ({error})") from None
    return tensors


def _listed(file: str) -> dict[str, StoredTensor]:
    size = Path(file).stat().st_size
    with open(file, "rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if 8 + length > size:
            raise ValueError(f"{size:,} bytes, while its header alone should take {length:,}")
        entries = json.loads(stream.read(length))
    tensors = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        shape = tuple(_size(count) for count in entry["shape"])
        start, end = (8 + length + _size(offset) for offset in entry["data_offsets"])
        if not 8 + length <= start <= end <= size:
            raise ValueError(f"{size:,} bytes, while {name} should be bytes {start:,} to {end:,}: was it cut short?")
        dtype = DTYPES.get(entry["dtype"])
        if dtype and end - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} takes {end - start:,} bytes, which is not {entry['dtype']} {list(shape)}")
        tensors[name] = StoredTensor(file, entry["dtype"], shape, start)
    return tensors


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} in its header is no size")
    return value
