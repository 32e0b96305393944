"""TFRecord parts: one `tf.train.Example` per text, features in the order of their names.

protobuf serializes each feature but those of floats: its `FloatList` takes a Python float per value, so vectors go from
NumPy's memory into the record as they are. Messages merge when their bytes are concatenated, so a record is the
concatenation of its features. (A whole `Features` that protobuf serializes, even deterministically, has `token_id`
before `token`.) Sources: protobuf.dev/programming-guides/encoding; tensorflow/core/example/feature.proto.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import row_splits_of
from layerbeam.transforms.columns import text_splits
from layerbeam.transforms.parts.part_format import Output, PartFormat, Piece, pieces_of
from layerbeam.transforms.views import View

# Columns with one value per text, as the kept fields; all others have one per row of the text.
_ONCE = ("file", "line", "sentence", "text")
# Field numbers: `Feature.float_list`, the key and the value of a map entry, the only field of a message.
_FLOAT_LIST, _KEY, _VALUE, _ONLY = 2, 1, 2, 1

_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 4

# feature.proto and example.proto as a FileDescriptorProto. TensorFlow's own classes would import TensorFlow: 3 s.
_PROTO = """
name: "example.proto" package: "layerbeam" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type_name: "BytesList" }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type_name: "FloatList" }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type_name: "Int64List" }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: "FeatureEntry" }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: "Feature" }
  }
}
message_type { name: "Example" field { name: "features" number: 1 label: LABEL_OPTIONAL type_name: "Features" } }
"""


class TFRecordFormat(PartFormat):
    """An Example per text; nulls give no feature."""

    suffix = ".tfrecord"

    def write(self, view: View, columns: pa.Schema, tables: Iterable[pa.Table], file: Any, output: Output) -> None:
        """TensorFlow writes the checksummed records into a local file, as it can write to nothing else."""
        from tensorflow.io import TFRecordWriter

        scratch = output.temporary if storage.is_local(output.path) else None
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            path = os.path.join(folder, "records")
            with TFRecordWriter(path) as writer:
                for example in itertools.chain.from_iterable(examples(view, table) for table in tables):
                    writer.write(example)
            with open(path, "rb") as records:
                shutil.copyfileobj(records, file, 1 << 20)

    def pieces(self, file: BinaryIO, path: str, columns: pa.Schema, names: list[str] | None = None) -> Iterator[Piece]:
        nothing: dict[str, Any] = {field.name: [None] for field in columns if field.nullable}
        yield from pieces_of((nothing | parse_example(record) for record in _records(file, path)), columns)

    def as_stored(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """float64 rounded to float32: a tf.train.Example has no float64."""
        return column.cast(pa.float32(), safe=False).cast(pa.float64()) if pa.types.is_float64(column.type) else column


def examples(view: View, table: pa.Table) -> Iterator[bytes]:
    """The Example of each text of a table of the view's rows, in order; a text without rows has none.

    Features are named as the columns. A column that is constant in a text gives one value, the others one per row;
    vectors are one flat list. A null gives no feature.
    """
    once = {*_ONCE, *(name for name, _ in view.fields)}
    columns = [(name in once, name, table[name].combine_chunks()) for name in sorted(table.column_names)]
    features = [
        (constant, (_other_feature if _has_no_floats(column.type) else _float_feature)(name, column))
        for constant, name, column in columns
    ]
    for start, stop in itertools.pairwise(text_splits(table).tolist()):
        entries: list[Any] = []
        for constant, entry in features:
            entries += entry(start, start + 1 if constant else stop)
        yield b"".join(_message(_ONLY, entries))


def _has_no_floats(type_: pa.DataType) -> bool:
    return not (pa.types.is_fixed_size_list(type_) or pa.types.is_floating(type_))


# Returns the map entry of a feature for the rows [start, stop), as pieces of bytes; nothing if there is no value.
_Feature = Callable[[int, int], list[Any]]


def _float_feature(name: str, column: pa.Array) -> _Feature:
    """A feature of vectors or floats, which are not copied."""
    if pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
        splits = np.arange(len(column) + 1) * (4 * column.type.list_size)
    else:
        values = column.drop_null()
        splits = row_splits_of(4 * column.is_valid().to_numpy(zero_copy_only=False))
    data = np.ascontiguousarray(values.to_numpy(), "<f4").data.cast("B")
    key = _message(_KEY, [name.encode()])

    def entry(start: int, stop: int) -> list[Any]:
        floats = data[splits[start] : splits[stop]]
        if not len(floats):
            return []
        return _message(_ONLY, [*key, *_message(_VALUE, _message(_FLOAT_LIST, _message(_ONLY, [floats])))])

    return entry


def _other_feature(name: str, column: pa.Array) -> _Feature:
    """A feature of strings, integers or booleans, serialized by protobuf."""
    new = _message_class("Features")
    is_text = pa.types.is_string(column.type)
    rows = column.cast(pa.binary() if is_text else pa.int64()).to_pylist()

    def entry(start: int, stop: int) -> list[Any]:
        values = [value for value in rows[start:stop] if value is not None]
        if not values:
            return []
        features = new()
        (features.feature[name].bytes_list if is_text else features.feature[name].int64_list).value.extend(values)
        return [features.SerializeToString()]

    return entry


@functools.cache
def _message_class(name: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"layerbeam.{name}"))


def _message(number: int, pieces: list[Any]) -> list[Any]:
    """Pieces of bytes as a field of that number: tag and length in front, nothing copied."""
    return [bytes([number << 3 | 2]) + _varint(sum(map(len, pieces))), *pieces]


def _varint(value: int) -> bytes:
    """A number that is not negative: seven bits per byte, the lowest first; the eighth says that more follow."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def _records(file: BinaryIO, path: str) -> Iterator[bytes]:
    """The records of a file. Their checksums are not compared. OSError if the file is damaged."""
    pending = bytearray()
    for chunk in storage.read_chunks(file, path):
        pending += chunk
        position = 0
        while (begin := position + _LENGTH_BYTES + _CHECKSUM_BYTES) <= len(pending):
            end = begin + int.from_bytes(pending[position : position + _LENGTH_BYTES], "little")
            if end + _CHECKSUM_BYTES > len(pending):
                break
            yield bytes(pending[begin:end])
            position = end + _CHECKSUM_BYTES
        del pending[:position]
    if pending:
        raise storage.TruncatedFileError("ends in the middle of a record")


def parse_example(record: bytes) -> dict[str, Any]:
    """{name: values} of a serialized Example: float32 or int64 arrays, or lists of str. ValueError if it is damaged."""
    from google.protobuf.message import DecodeError

    try:
        example = _message_class("Example").FromString(record)
    except DecodeError as error:
        raise ValueError(f"holds a record that is not a tf.train.Example ({error})") from error
    found: dict[str, Any] = {}
    for name, feature in example.features.feature.items():
        if feature.HasField("bytes_list"):
            found[name] = [value.decode() for value in feature.bytes_list.value]
        elif feature.HasField("float_list"):
            found[name] = np.array(feature.float_list.value, np.float32)
        else:
            found[name] = np.array(feature.int64_list.value, np.int64)
    return found
