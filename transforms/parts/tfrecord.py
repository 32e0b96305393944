"""TFRecord parts: one `tf.train.Example` per text, in protobuf's wire format.

Written by hand, so that vectors go from NumPy's memory into the record as they are: protobuf's own `FloatList` takes a
Python float for each value. Features stand in the order of their names, so equal rows give equal bytes.
Sources: protobuf.dev/programming-guides/encoding; tensorflow/core/example/feature.proto.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Int64Array, row_splits_of
from layerbeam.transforms.columns import text_splits
from layerbeam.transforms.views import View

# Columns with one value per text; so are those that go through. All others have one per row of the text.
_ONCE = ("file", "line", "sentence", "text")

# Numbers of the fields: of `Feature` for its three kinds of lists, of a map's entries, of a list's values.
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_KEY, _VALUE = 1, 2
_ONLY = 1

_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 4


@dataclasses.dataclass
class _Encoded:
    """A column as protobuf has it: row i is `data[splits[i]:splits[i + 1]]`, nothing where it is null."""

    kind: int
    data: memoryview
    splits: Int64Array

    def feature(self, start: int, stop: int) -> list[Any] | None:
        """`Feature` of these rows; None where there is no value."""
        values = self.data[self.splits[start] : self.splits[stop]]
        if not len(values):
            return None
        # Strings bring their tags along; numbers are packed: one tag for all.
        return _message(self.kind, [values] if self.kind == _BYTES else _message(_ONLY, [values]))


def examples(view: View, table: pa.Table) -> Iterator[bytes]:
    """The Example of each text of a table of the view's rows, in order; a text without rows has none.

    Features are named as the columns. A column that is constant in a text gives one value, the others one per row;
    vectors are one flat list. A null gives no feature.
    """
    once = {*_ONCE, *(name for name, _ in view.fields)}
    encoded = [(name, _encode(table[name].combine_chunks())) for name in sorted(table.column_names)]
    for start, stop in itertools.pairwise(text_splits(table).tolist()):
        features: list[Any] = []
        for name, column in encoded:
            feature = column.feature(start, start + 1 if name in once else stop)
            if feature is not None:
                entry = [*_message(_KEY, [name.encode()]), *_message(_VALUE, feature)]
                features += _message(_ONLY, entry)
        yield b"".join(_message(_ONLY, features))


def _encode(column: pa.Array) -> _Encoded:
    type_ = column.type
    if pa.types.is_fixed_size_list(type_):
        values = np.ascontiguousarray(column.flatten().to_numpy(), "<f4")
        return _Encoded(_FLOATS, values.data.cast("B"), np.arange(len(column) + 1) * (4 * type_.list_size))
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_string(type_):
        # Each with its tag and length in front.
        lengths = pc.binary_length(column).fill_null(0).to_numpy()
        heads, splits = varints(lengths)
        heads = np.insert(heads, splits[:-1], _ONLY << 3 | 2)
        prefix = _binary(heads, splits + np.arange(len(splits)))
        strings = column.cast(pa.large_binary()).fill_null(b"")
        whole = pc.binary_join_element_wise(prefix, strings, pa.scalar(b"", pa.large_binary()))
        data, ends = _buffers(whole.filter(pa.array(valid)))
        return _Encoded(_BYTES, data, _spread(ends, valid))
    if pa.types.is_floating(type_):
        numbers = column.drop_null().to_numpy().astype("<f4")
        return _Encoded(_FLOATS, numbers.data.cast("B"), row_splits_of(4 * valid))
    integers = column.drop_null().cast(pa.int64()).to_numpy()
    packed, ends = varints(integers)
    return _Encoded(_INTEGERS, packed.data, _spread(ends, valid))


def varints(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], Int64Array]:
    """The integers as protobuf writes them, one after the other, and where each begins and the last ends.

    Seven bits in a byte, the lowest first; the eighth says that more follow. A negative one takes ten bytes.

    >>> [x.tolist() for x in varints(np.array([1, 300]))]
    [[1, 172, 2], [0, 1, 3]]
    """
    shifts = np.arange(0, 70, 7, dtype=np.uint64)
    sevens = (values.astype(np.int64).view(np.uint64)[:, None] >> shifts) & np.uint64(127)
    last = np.where((sevens != 0).any(axis=1), 9 - np.argmax(sevens[:, ::-1] != 0, axis=1), 0)
    places = np.arange(10)
    more = places < last[:, None]
    data = (sevens.astype(np.uint8) | (more.astype(np.uint8) << 7))[places <= last[:, None]]
    return data, row_splits_of(last + 1)


def read_varints(data: npt.NDArray[np.uint8]) -> Int64Array:
    """The integers that `varints` wrote.

    >>> read_varints(varints(np.array([-1, 0, 127, 128, -(2**63), 2**63 - 1]))[0]).tolist()
    [-1, 0, 127, 128, -9223372036854775808, 9223372036854775807]
    """
    ends = np.flatnonzero(data < 128) + 1
    if not len(ends):
        return np.zeros(0, np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    place = np.arange(ends[-1]) - np.repeat(starts, ends - starts)
    sevens = (data[: ends[-1]] & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.add.reduceat(sevens, starts).view(np.int64)


def _binary(data: npt.NDArray[np.uint8], splits: Int64Array) -> pa.Array:
    buffers = [None, pa.py_buffer(splits.astype(np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(splits) - 1, buffers)


def _buffers(column: pa.Array) -> tuple[memoryview, Int64Array]:
    """A large binary column's bytes, and where each row begins and the last ends."""
    if not len(column):
        return memoryview(b""), np.zeros(1, np.int64)
    _, splits, data = column.buffers()
    ends = np.frombuffer(splits, np.int64)[column.offset : column.offset + len(column) + 1]
    return memoryview(data or b""), ends


def _spread(splits: Int64Array, valid: npt.NDArray[np.bool_]) -> Int64Array:
    """Splits of the rows that are valid as splits of all rows."""
    places: Int64Array = splits[row_splits_of(valid)]
    return places


def _message(number: int, pieces: list[Any]) -> list[Any]:
    """Pieces of bytes as a field of that number: tag and length in front, nothing copied."""
    return [bytes([number << 3 | 2]) + _varint(sum(map(len, pieces))), *pieces]


def _varint(value: int) -> bytes:
    """One number, not negative."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def write_tfrecord(view: View, table: pa.Table, file: Any, *, scratch: str | None = None) -> None:
    """One record per text. `scratch`: a local folder for TensorFlow to write in, whose records are checksummed."""
    if not table.num_rows:
        return
    from tensorflow.io import TFRecordWriter

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = os.path.join(folder, "records")
        with TFRecordWriter(path) as writer:
            for example in examples(view, table):
                writer.write(example)
        with open(path, "rb") as records:
            shutil.copyfileobj(records, file, 1 << 20)


def read_examples(file: BinaryIO, path: str) -> Iterator[dict[str, Any]]:
    """{name: values} of each record: float32 or int64 arrays, or lists of str. The checksums are not looked at.

    ValueError or OSError where the file is damaged.
    """
    pending = bytearray()
    for chunk in storage.read_chunks(file, path):
        pending += chunk
        position = 0
        while (begin := position + _LENGTH_BYTES + _CHECKSUM_BYTES) <= len(pending):
            end = begin + int.from_bytes(pending[position : position + _LENGTH_BYTES], "little")
            if end + _CHECKSUM_BYTES > len(pending):
                break
            yield parse_example(bytes(pending[begin:end]))
            position = end + _CHECKSUM_BYTES
        del pending[:position]
    if pending:
        raise storage.TruncatedFileError("ends in the middle of a record")


def parse_example(record: bytes) -> dict[str, Any]:
    """{name: values} of a serialized Example: float32 or int64 arrays, or lists of str."""
    found: dict[str, Any] = {}
    for _, features in _fields(memoryview(record)):
        for _, entry in _fields(features):
            parts: Mapping[int, memoryview] = dict(_fields(entry))
            ((kind, values),) = _fields(parts[_VALUE])
            found[bytes(parts[_KEY]).decode()] = _values(kind, values)
    return found


def _values(kind: int, values: memoryview) -> Any:
    items = [item for _, item in _fields(values)]
    if kind == _BYTES:
        return [bytes(item).decode() for item in items]
    packed = b"".join(items)
    if kind == _FLOATS:
        return np.frombuffer(packed, "<f4")
    return read_varints(np.frombuffer(packed, np.uint8))


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, content) of each field; all that an Example has are of a length that stands before them."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    try:
        while position < len(message):
            tag, size = varint(), varint()
            if tag & 7 != 2 or position + size > len(message):
                raise ValueError("is not the Example that it should be")
            yield tag >> 3, message[position : position + size]
            position += size
    except IndexError:
        raise ValueError("ends in the middle of an Example") from None
