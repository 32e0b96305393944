"""PyTorch's files of weights, `pytorch_model.bin`, read without PyTorch; nothing that they say is executed.

Such a file is a zip of uncompressed entries: `NAME/data.pkl`, a pickle of the tensors' names, shapes and strides, and
their numbers in `NAME/data/KEY`, a storage for one or more tensors. A pickle is a program that calls what it names.
These name `OrderedDict` and a few things of PyTorch, for which inert objects stand in here; any other name is refused.
Source: torch/serialization.py and torch/_utils.py of PyTorch 2.14.
"""

from __future__ import annotations

import collections
import io
import itertools
import math
import pickle  # noqa: TID251 - with an unpickler that knows a few inert names
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401 - gives NumPy the number type bfloat16
import numpy as np

from layerbeam.transforms.blocks import Float32Array
from layerbeam.transforms.encoders.config_file import EncoderError, first_line
from layerbeam.transforms.encoders.formats.weights import Tensor

# {a type of storages: (what safetensors calls the number type, NumPy's name)}
_STORAGES = {
    "DoubleStorage": ("F64", "float64"),
    "FloatStorage": ("F32", "float32"),
    "HalfStorage": ("F16", "float16"),
    "BFloat16Storage": ("BF16", "bfloat16"),
    "LongStorage": ("I64", "int64"),
    "IntStorage": ("I32", "int32"),
    "ShortStorage": ("I16", "int16"),
    "CharStorage": ("I8", "int8"),
    "ByteStorage": ("U8", "uint8"),
    "BoolStorage": ("BOOL", "bool"),
}
_LONGEST_PICKLE = 1 << 26  # bytes; BERT's has 40,000
# With these bytes a file of PyTorch before 1.6 begins.
_BEFORE_ZIP = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")


class Storage(NamedTuple):
    """The numbers of one or more tensors: `size` of a type in `_STORAGES`, in the entry `key`."""

    type: str
    key: str
    size: int


class View(NamedTuple):
    """A tensor: the numbers of a storage from `offset` on, with a stride for each dimension."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _RebuildTensor:
    """Stands in for `torch._utils._rebuild_tensor_v2`. Without attributes, so that a pickle cannot set one."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> View:
        numbers = (*shape, *strides, offset) if type(shape) is type(strides) is tuple else ()
        if (
            type(storage) is not Storage
            or not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
            or len(shape) != len(strides)
            or not numbers
        ):
            raise pickle.UnpicklingError(f"a tensor of {storage!r:.80} is not one")
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if math.prod(shape) and max(last, math.prod(shape) - 1) >= storage.size:  # no more numbers by strides of 0
            raise pickle.UnpicklingError(
                f"a tensor of {shape} does not fit in storage {storage.key} of {storage.size:,}"
            )
        return View(storage, offset, shape, strides)


class _RebuildParameter:
    """Stands in for `torch._utils._rebuild_parameter`."""

    __slots__ = ()

    def __call__(self, tensor: Any, *_: Any) -> Any:
        return tensor


class _Unpickler(pickle.Unpickler):
    """Reads a pickle of tensors. UnpicklingError for any other name than those of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return name
        found = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
            ("torch._utils", "_rebuild_parameter"): _RebuildParameter(),
        }.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no weights need")
        return found

    def persistent_load(self, id_: Any) -> Storage:
        is_storage = type(id_) is tuple and len(id_) == 5 and id_[0] == "storage"
        if not is_storage or id_[1] not in _STORAGES or type(id_[2]) is not str or type(id_[4]) is not int:
            raise pickle.UnpicklingError(f"{id_!r:.80} is no storage")
        return Storage(id_[1], id_[2], id_[4])


class PickledWeights:
    """The tensors in a file, of which only names and places are read. EncoderError if it cannot be used."""

    def __init__(self, handle: str, path: str) -> None:
        self._handle, self._path = handle, path
        self._checked: set[str] = set()
        try:
            with open(path, "rb") as file:
                self._check_beginning(file.read(len(_BEFORE_ZIP)))
                with zipfile.ZipFile(file) as archive:
                    self._read_archive(file, archive)
        except FileNotFoundError:
            raise EncoderError(f"{handle}: {path} is missing; download it too") from None
        except pickle.UnpicklingError as error:
            raise self._refused(str(error)) from None
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
            raise self._damaged(first_line(error)) from None

    def _check_beginning(self, begins: bytes) -> None:
        if begins == _BEFORE_ZIP:
            raise self._refused("it has the format from before PyTorch 1.6")
        if not begins.startswith(b"PK"):
            raise self._damaged("it is no zip; a text of three lines is a Git LFS pointer: run `git lfs pull`")

    def _read_archive(self, file: io.BufferedReader, archive: zipfile.ZipFile) -> None:
        entries = archive.infolist()
        self._entries = {entry.filename: (_place(file, entry), entry.file_size, entry.CRC) for entry in entries}
        if len(self._entries) < len(entries) or any(entry.compress_type or entry.flag_bits & 1 for entry in entries):
            raise self._refused("an entry is compressed, encrypted or there twice, which PyTorch does not write")
        ends = sorted((place, place + size) for place, size, _ in self._entries.values())
        if any(end > begin for (_, end), (begin, _) in itertools.pairwise([*ends, (archive.start_dir, 0)])):
            raise self._damaged("its entries overlap or end behind the file")
        pickles = [name for name in self._entries if name.endswith("/data.pkl")]
        if len(pickles) != 1 or self._entries[pickles[0]][1] > _LONGEST_PICKLE:
            raise self._damaged("it has no data.pkl, or several, or one that is too long")
        self._top = pickles[0].removesuffix("data.pkl")
        order = archive.read(f"{self._top}byteorder") if f"{self._top}byteorder" in self._entries else b"little"
        self._is_swapped = order.decode("ascii", "replace").strip() != sys.byteorder
        self._views = _read_pickle(archive.read(pickles[0]))
        for view in self._views.values():
            self._entry_of(view.storage)

    def _entry_of(self, storage: Storage) -> tuple[int, int, int]:
        """(first byte, bytes, CRC-32) of a storage."""
        entry = self._entries.get(f"{self._top}data/{storage.key}")
        size = storage.size * np.dtype(_STORAGES[storage.type][1]).itemsize
        if entry is None or entry[1] != size:
            raise self._damaged(f"storage {storage.key} should have {size:,} bytes and has {entry and entry[1]}")
        return entry

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {
            name: Tensor(self._path, name, _STORAGES[view.storage.type][0], view.shape)
            for name, view in self._views.items()
        }

    def read(self, name: str) -> Float32Array:
        """A tensor's values. EncoderError if the bytes of its storage have changed since they were written."""
        storage, offset, shape, strides = self._views[name]
        place, size, crc = self._entry_of(storage)
        if not size:
            return np.zeros(shape, np.float32)
        type_ = np.dtype(_STORAGES[storage.type][1])
        raw = np.memmap(self._path, f"u{type_.itemsize}", "r", place, (storage.size,))
        if storage.key not in self._checked and zlib.crc32(raw.data) != crc:
            raise self._damaged(f"the bytes of storage {storage.key} are not those that were written")
        self._checked.add(storage.key)
        values = (raw.byteswap() if self._is_swapped else raw).view(type_)[offset:]
        steps = tuple(stride * type_.itemsize for stride in strides)
        return np.array(np.lib.stride_tricks.as_strided(values, shape, steps), np.float32)

    def _damaged(self, why: str) -> EncoderError:
        return EncoderError(f"{self._handle}: {self._path}: not a complete file of PyTorch ({why}); download it again")

    def _refused(self, why: str) -> EncoderError:
        made = Path(self._path).with_name(Path(self._path).stem.removeprefix("pytorch_") + ".safetensors")
        return EncoderError(
            f"{self._handle}: {self._path} is not opened: {why}. If you trust it, this line converts it where "
            "PyTorch is installed:\nimport torch, safetensors.torch; safetensors.torch.save_file({name: "
            f"tensor.clone().contiguous() for name, tensor in torch.load({self._path!r}, map_location='cpu', "
            f"weights_only=True).items()}}, {str(made)!r})"
        )


def _place(file: io.BufferedReader, entry: zipfile.ZipInfo) -> int:
    """The first byte of an entry's data, behind its header."""
    file.seek(entry.header_offset)
    signature, name, extra = struct.unpack("<4s22xHH", file.read(30))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no header of {entry.filename}")
    return entry.header_offset + 30 + int(name) + int(extra)


def _read_pickle(data: bytes) -> dict[str, View]:
    """The tensors by name. UnpicklingError if it is not a mapping of tensors."""
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle may raise any
        raise pickle.UnpicklingError(f"its pickle cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(found, Mapping):
        raise pickle.UnpicklingError("it holds no mapping of names to tensors")
    return {name: value for name, value in found.items() if type(name) is str and type(value) is View}
