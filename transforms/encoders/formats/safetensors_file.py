"""Files of safetensors: the library checks them, and their numbers are read into memory that TensorFlow takes over.

Source of the format: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import os

import ml_dtypes  # noqa: F401 - gives NumPy the number type bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open

from layerbeam.transforms.encoders.config_file import EncoderError, open_regular
from layerbeam.transforms.encoders.formats.weights import Tensor, empty_aligned
from layerbeam.transforms.flow.blocks import Float32Array

# {a number type of floats, as safetensors names it: NumPy's name}
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}

_PIECE = 1 << 18  # numbers that are converted at once
_MOST_HEADER = 1 << 24  # bytes, of 150,000 tensors


class SafetensorsFile:
    """The tensors in a file, of which only names and places are read. EncoderError if it cannot be used."""

    def __init__(self, handle: str, path: str) -> None:
        self._path = path
        try:
            with open_regular(path) as file:  # an OSError with the name of the file, which those of safetensors lack
                length = int.from_bytes(file.read(8), "little")
                if _MOST_HEADER < length < os.fstat(file.fileno()).st_size:
                    raise EncoderError(f"{handle}: {path}: has a header of {length:,} bytes, more than any encoder's")
                with safe_open(path, framework="numpy"):
                    pass  # it has checked the header, and that the file is complete
                header = json.loads(file.read(length))
        except FileNotFoundError:
            raise EncoderError(f"{handle}: {path} is missing; download it too") from None
        except SafetensorError as error:
            reason = str(error).removeprefix("Error while deserializing header: ")
            raise EncoderError(
                f"{handle}: {path}: not a complete safetensors file ({reason}); download it again (a text of three "
                "lines in its place is a Git LFS pointer: run `git lfs pull`)"
            ) from None
        header.pop("__metadata__", None)
        self._begins = {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()}
        self._tensors = {
            name: Tensor(path, name, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()
        }

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return self._tensors

    def read(self, name: str) -> Float32Array:
        """A tensor's values."""
        tensor = self._tensors[name]
        values = empty_aligned(tensor.shape)
        flat = values.reshape(-1)
        with open(self._path, "rb") as file:
            file.seek(self._begins[name])
            if tensor.dtype == "F32":
                file.readinto(flat.data)
                return values
            for begin in range(0, len(flat), _PIECE):
                piece = flat[begin : begin + _PIECE]
                piece[:] = np.fromfile(file, FLOATS[tensor.dtype], len(piece))
        return values
