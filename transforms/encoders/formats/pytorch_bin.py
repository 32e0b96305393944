"""PyTorch's files of weights, `pytorch_model.bin`, read without PyTorch; nothing that they say is executed.

Such a file is a zip of uncompressed entries: `NAME/data.pkl`, a pickle of the tensors' names, shapes and strides, and
their numbers in `NAME/data/KEY`, a storage for one or more tensors. A pickle is a program that calls what it names.
Only the opcodes and names that PyTorch writes for weights are read here, and nothing is called; all others are refused.
Source: torch/serialization.py and torch/_utils.py of PyTorch 2.14.
"""

from __future__ import annotations

import io
import itertools
import math
import pickletools
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes  # noqa: F401 - gives NumPy the number type bfloat16
import numpy as np

from layerbeam.transforms.encoders.config_file import EncoderError, first_line, open_regular
from layerbeam.transforms.encoders.formats.weights import Tensor
from layerbeam.transforms.flow.blocks import Float32Array

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
_LONGEST_PICKLE = 1 << 24  # bytes; BERT's has 40,000
_MOST_OPCODES = 1 << 20  # BERT's has 10,000
_MOST_MARKS = 16
_MOST_DIMENSIONS = 64
_ORDERED_DICT = "collections OrderedDict"
_TENSOR, _PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
_CALLED = (_ORDERED_DICT, _TENSOR, _PARAMETER)
_OF_LISTS = {"PROTO", "EMPTY_LIST", "BINPUT", "LONG_BINPUT", "MARK", "BINUNICODE", "APPEND", "APPENDS", "STOP"}
# With these bytes a file of PyTorch before 1.6 begins.
_BEFORE_ZIP = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")


class Storage(NamedTuple):
    """The numbers of one or more tensors: `size` of a type in `_STORAGES`, in the entry `key`."""

    type: str
    key: str
    size: int


class StorageView(NamedTuple):
    """A tensor: the numbers of a storage from `offset` on, with a stride for each dimension."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _RefusedError(ValueError):
    """Why a pickle is not read."""


class PickledWeights:
    """The tensors in a file, of which only names and places are read. EncoderError if it cannot be used."""

    def __init__(self, handle: str, path: str) -> None:
        self._handle, self._path = handle, path
        self._checked: set[str] = set()
        # The first byte, the bytes and, in a zip, the CRC-32 of each entry.
        self._entries: dict[str, tuple[int, int, int | None]] = {}
        try:
            with open_regular(path) as file:
                begins = file.read(len(_BEFORE_ZIP))
                if begins == _BEFORE_ZIP:
                    self._read_pickles(file)
                    return
                if not begins.startswith(b"PK"):
                    pointer = "a text of three lines is a Git LFS pointer: run `git lfs pull`"
                    raise self._damaged(f"it is no zip; {pointer}")
                with zipfile.ZipFile(file) as archive:
                    self._read_archive(file, archive)
        except FileNotFoundError:
            raise EncoderError(f"{handle}: {path} is missing; download it too") from None
        except _RefusedError as error:
            raise self._refused(str(error)) from None
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise self._damaged(first_line(error)) from None

    def _read_pickles(self, file: BinaryIO) -> None:
        """Read a file from before PyTorch 1.6: five pickles, of which the last lists the storages that follow.

        Each storage is its number of values, in 8 bytes, and these values. Source: `_legacy_save` of
        torch/serialization.py.
        """
        file.seek(0)
        pickles = io.BytesIO(file.read(_LONGEST_PICKLE))
        for _ in range(2):  # a number that marks the format, and its version, 1001
            list(pickletools.genops(pickles))
        if _run_pickle(pickles).get("little_endian") is not True:
            raise _RefusedError("it was not written on a little-endian machine")
        self._is_swapped = sys.byteorder != "little"
        self._views = _views_in(_run_pickle(pickles))
        types = {view.storage.key: view.storage for view in self._views.values()}
        keys = [(opcode.name, str(argument)) for opcode, argument, _ in pickletools.genops(pickles)]
        if {name for name, _ in keys} - _OF_LISTS:
            raise _RefusedError("its list of storages has other opcodes than PyTorch writes")
        self._top, place, end = "", pickles.tell(), file.seek(0, io.SEEK_END)
        for key in (argument for name, argument in keys if name == "BINUNICODE"):
            if key not in types:
                raise _RefusedError(f"no tensor has its storage {key[:80]}")
            file.seek(place)
            (count,) = struct.unpack("<q", file.read(8))
            size = count * np.dtype(_STORAGES[types[key].type][1]).itemsize
            if count < 0 or place + 8 + size > end:
                raise self._damaged(f"storage {key} ends behind the file")
            self._entries[f"data/{key}"] = (place + 8, size, None)
            place += 8 + size
        for view in self._views.values():
            self._entry_of(view.storage)

    def _read_archive(self, file: BinaryIO, archive: zipfile.ZipFile) -> None:
        entries = archive.infolist()
        self._entries |= {entry.filename: (_place(file, entry), entry.file_size, entry.CRC) for entry in entries}
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
        self._views = _views_in(_run_pickle(io.BytesIO(archive.read(pickles[0]))))
        for view in self._views.values():
            self._entry_of(view.storage)

    def _entry_of(self, storage: Storage) -> tuple[int, int, int | None]:
        """The entry of a storage."""
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
        if crc is not None and storage.key not in self._checked and zlib.crc32(raw.data) != crc:
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


def _place(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """The first byte of an entry's data, behind its header."""
    file.seek(entry.header_offset)
    signature, name, extra = struct.unpack("<4s22xHH", file.read(30))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no header of {entry.filename}")
    return entry.header_offset + 30 + int(name) + int(extra)


def _views_in(found: dict[str, Any]) -> dict[str, StorageView]:
    """The tensors among the values."""
    return {name: value for name, value in found.items() if type(value) is StorageView}


def _run_pickle(data: io.BytesIO) -> dict[str, Any]:
    """The mapping in a pickle, by name. _RefusedError if it is not as PyTorch writes it."""
    reader = _PickleReader()
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number == _MOST_OPCODES:
                raise _RefusedError("its pickle is longer than that of any weights")
            reader.do(opcode.name, argument)
        found: dict[str, Any] = reader.pop(dict)
    except _RefusedError:
        raise
    except (ValueError, KeyError, OverflowError) as error:  # of pickletools, and of what was never memoized
        raise _RefusedError(f"its pickle cannot be read ({type(error).__name__})") from error
    return found


class _PickleReader:
    """The few opcodes that PyTorch writes for weights, each with the types that it writes; any other is refused.

    So nothing is called, and no value is deeper, or longer in memory, than what it says in the file.
    """

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        """Do what one opcode says."""
        action = _ACTIONS.get(name)
        if action is None:
            raise _RefusedError(f"its pickle has {name}, which PyTorch does not write for weights")
        action(self, argument)

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self, type_: type[Any]) -> Any:
        """The last value, of this type."""
        if not self._stack or type(self._stack[-1]) is not type_:
            raise _RefusedError(f"its pickle lacks a {type_.__name__.strip('_').lower()} that weights have")
        return self._stack.pop()

    def push_tuple(self, count: int | None) -> None:
        """A tuple of the last values; None: of those behind the last mark. So with `set_items`."""
        self.push(_tuple_of(self._pop_last(count)))

    def set_items(self, count: int | None) -> None:
        items = self._pop_last(count)
        if len(items) % 2 or any(type(key) is not str for key in items[::2]) or not self._stack:
            raise _RefusedError("its pickle has a name that is no text")
        target = self.pop(dict)
        target.update(zip(items[::2], items[1::2], strict=True))
        self.push(target)

    def mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))
        if len(self._marks) > _MOST_MARKS:
            raise _RefusedError("its pickle is deeper than that of any weights")

    def put(self, place: int) -> None:
        self._memo[place] = self._stack[-1] if self._stack else None

    def get(self, place: int) -> None:
        self.push(self._memo[place])

    def push_storage(self, _: Any) -> None:
        self.push(_storage_of(self.pop(tuple)))

    def call(self, _: Any) -> None:
        values = self.pop(tuple)
        self.push(_call(self.pop(_Name), values))

    def build(self, _: Any) -> None:
        """Forget the state of a mapping: versions of modules, which nobody needs."""
        self.pop(dict)
        self.push(self.pop(dict))

    def push_named(self, given: str) -> None:
        """A type of storages, or a name that `_call` knows."""
        module, _, name = given.partition(" ")
        if module == "torch" and name in _STORAGES:
            self.push(name)
        elif given in _CALLED:
            self.push(_Name(given))
        else:
            raise _RefusedError(f"it names {given[:80].replace(' ', '.', 1)}, which no weights need")

    def _pop_last(self, count: int | None) -> list[Any]:
        begin = len(self._stack) - count if count is not None else self._marks.pop() if self._marks else -1
        if not 0 <= begin <= len(self._stack):
            raise _RefusedError("its pickle ends too early")
        found = self._stack[begin:]
        del self._stack[begin:]
        return found


# What each opcode does with its argument.
_ACTIONS: dict[str, Callable[[_PickleReader, Any], None]] = {
    **dict.fromkeys(("PROTO", "STOP"), lambda reader, _: None),
    **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), _PickleReader.push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _PickleReader.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _PickleReader.get),
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),
    "NEWFALSE": lambda reader, _: reader.push(False),
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "EMPTY_TUPLE": lambda reader, _: reader.push_tuple(0),
    "TUPLE1": lambda reader, _: reader.push_tuple(1),
    "TUPLE2": lambda reader, _: reader.push_tuple(2),
    "TUPLE3": lambda reader, _: reader.push_tuple(3),
    "TUPLE": lambda reader, _: reader.push_tuple(None),
    "SETITEM": lambda reader, _: reader.set_items(2),
    "SETITEMS": lambda reader, _: reader.set_items(None),
    "MARK": _PickleReader.mark,
    "GLOBAL": _PickleReader.push_named,
    "BINPERSID": _PickleReader.push_storage,
    "REDUCE": _PickleReader.call,
    "BUILD": _PickleReader.build,
}


class _Name(NamedTuple):
    """One of `_CALLED`."""

    name: str


def _tuple_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes, strides, or the arguments of a call, among which are such tuples."""
    is_deep = any(type(value) is tuple and any(type(inner) is tuple for inner in value) for value in values)
    if len(values) > _MOST_DIMENSIONS or is_deep:
        raise _RefusedError("its pickle has a longer or deeper tuple than weights have")
    return tuple(values)


def _storage_of(given: tuple[Any, ...]) -> Storage:
    is_storage = [type(value) for value in given[:5]] == [str, str, str, str, int] and given[0] == "storage"
    # Before 1.6 there is a sixth value: what other storage this one is a part of, mostly none.
    if not is_storage or given[5:] not in ((), (None,)) or given[1] not in _STORAGES or not 0 <= given[4] < 1 << 62:
        raise _RefusedError("its pickle names a storage that is none")
    return Storage(given[1], given[2], given[4])


def _call(named: _Name, values: tuple[Any, ...]) -> Any:
    """What PyTorch makes of these arguments; a parameter is its tensor."""
    if named.name == _ORDERED_DICT and not values:
        return {}
    if named.name == _PARAMETER and values and type(values[0]) is StorageView:
        return values[0]
    if named.name != _TENSOR or len(values) < 4:
        raise _RefusedError("its pickle has another call than weights need")
    storage, offset, shape, strides = values[:4]
    numbers = (*shape, *strides, offset) if type(shape) is type(strides) is tuple else ()
    are_sizes = numbers and all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
    if type(storage) is not Storage or not are_sizes or len(shape) != len(strides):
        raise _RefusedError("its pickle has a tensor that is none")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if math.prod(shape) and max(last, math.prod(shape) - 1) >= storage.size:  # no more numbers by strides of 0
        raise _RefusedError(f"a tensor of {shape} does not fit in storage {storage.key[:80]} of {storage.size:,}")
    return StorageView(storage, offset, shape, strides)
