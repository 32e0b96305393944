"""Files as PyTorch writes them, made without PyTorch: pickles opcode by opcode, so that they can also be wrong."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage", "int64": "LongStorage"}
ORDERED_DICT = b"ccollections\nOrderedDict\n)R"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def value(content: Any) -> bytes:
    """Opcodes that leave a text, a number, a tuple or None on the stack."""
    if content is None:
        return b"N"
    if isinstance(content, str):
        return b"X" + struct.pack("<I", len(content.encode())) + content.encode()
    if isinstance(content, bool):
        return b"\x88" if content else b"\x89"
    if isinstance(content, tuple):
        return b"(" + b"".join(map(value, content)) + b"t"
    if isinstance(content, bytes):
        return content  # opcodes
    number = content.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(number)]) + number


def storage(type_: str, key: str, size: Any) -> bytes:
    return value(("storage", b"ctorch\n%s\n" % type_.encode(), key, "cpu", size)) + b"Q"


def tensor(stored: bytes, offset: Any, shape: Any, strides: Any) -> bytes:
    return REBUILD + value((stored, offset, shape, strides, False, ORDERED_DICT)) + b"R"


def mapping(tensors: Mapping[str, bytes]) -> bytes:
    """A whole pickle: an OrderedDict of these tensors."""
    items = b"".join(value(name) + opcodes for name, opcodes in tensors.items())
    return b"\x80\x02" + ORDERED_DICT + b"(" + items + b"u."


def write(path: Path, pickled: bytes, storages: Mapping[str, bytes], *, order: str = "little", **how: Any) -> Path:
    with zipfile.ZipFile(path, "w", **how) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", order)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", "3\n")
    return path


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """These arrays as contiguous tensors, each with a storage of its own."""
    tensors = {}
    for key, (name, array) in enumerate(arrays.items()):
        strides = tuple(stride // array.itemsize for stride in np.ascontiguousarray(array).strides)
        tensors[name] = tensor(storage(TYPES[array.dtype.name], str(key), array.size), 0, array.shape, strides)
    return write(path, mapping(tensors), {str(key): array.tobytes() for key, array in enumerate(arrays.values())})


def save_legacy(
    path: Path, arrays: Mapping[str, np.ndarray], *, pickled: bytes | None = None, view: Any = None, keys: str = ""
) -> Path:
    """The same as PyTorch before 1.6 writes it.

    `pickled`: instead of the tensors; `view`: of the first storage; `keys`: of more storages, at the end.
    """
    tensors = {}
    for key, (name, array) in enumerate(arrays.items()):
        place = ("storage", b"ctorch\n%s\n" % TYPES[array.dtype.name].encode(), str(key), "cpu", array.size)
        stored = value((*place, None if key else view)) + b"Q"
        strides = tuple(stride // array.itemsize for stride in np.ascontiguousarray(array).strides)
        tensors[name] = tensor(stored, 0, array.shape, strides)
    listed = b"".join(map(value, [*map(str, range(len(arrays))), *keys]))
    system = b"\x80\x02}(" + value("protocol_version") + value(1001) + value("little_endian") + b"\x88u."
    begins = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e") + b"\x80\x02M\xe9\x03." + system
    data = b"".join(struct.pack("<q", array.size) + array.tobytes() for array in arrays.values())
    path.write_bytes(begins + (pickled or mapping(tensors)) + b"\x80\x02](" + listed + b"e." + data)
    return path
