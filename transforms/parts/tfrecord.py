"""TFRecord parts: one `tf.train.Example` per text, features in the order of their names.

protobuf takes a Python float per value of a list of floats. So the messages declared here have bytes in its place,
which are encoded in the same way, and vectors go into the record as they are in NumPy's memory. Sources:
protobuf.dev/programming-guides/encoding; tensorflow/core/example/feature.proto.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.parts.part_format import Output, PartFormat, tables_of
from layerbeam.transforms.views.columns import text_splits
from layerbeam.transforms.views.number_types import as_arrays, as_matrix, code_names
from layerbeam.transforms.views.view import ViewSpec

# Columns with one value per text, as the kept fields; all others have one per row of the text.
_ONCE = ("file", "line", "sentence", "text")

_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 4

# feature.proto and example.proto as a FileDescriptorProto. TensorFlow's own classes would import TensorFlow: 3 s. The
# value of a FloatList is bytes here, which have the same encoding, and Features a list of map entries, as on the wire.
_PROTO = """
name: "example.proto" package: "layerbeam" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type_name: "BytesList" }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type_name: "FloatList" }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type_name: "Int64List" }
}
message_type {
  name: "Entry"
  field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: "Feature" }
}
message_type { name: "Features" field { name: "feature" number: 1 label: LABEL_REPEATED type_name: "Entry" } }
message_type { name: "Example" field { name: "features" number: 1 label: LABEL_OPTIONAL type_name: "Features" } }
"""


class TFRecordFormat(PartFormat):
    """An Example per text; nulls give no feature."""

    suffix = ".tfrecord"

    def write(self, view: ViewSpec, columns: pa.Schema, tables: Iterable[pa.Table], file: Any, output: Output) -> None:
        """TensorFlow writes the checksummed records into a local file, as it can write to nothing else."""
        from tensorflow.io import TFRecordWriter

        scratch = output.path if storage.is_local(output.path) else tempfile.gettempdir()
        with storage.unfinished_file(scratch) as path:
            with TFRecordWriter(path) as writer:
                for example in itertools.chain.from_iterable(examples(view, table) for table in tables):
                    writer.write(example)
            with open(path, "rb") as records:
                shutil.copyfileobj(records, file, 1 << 20)

    def read(self, file: BinaryIO, path: str, columns: pa.Schema, names: list[str] | None) -> Iterator[pa.Table]:
        nothing: dict[str, Any] = {field.name: [None] for field in columns if field.nullable}
        nothing |= {field.name: np.zeros(0, np.float32) for field in columns if pa.types.is_list(field.type)}
        codes = code_names(columns)
        yield from tables_of((nothing | parse_example(record, codes) for record in _records(file, path)), columns)

    def as_stored(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """float64 rounded to float32: a tf.train.Example has no float64."""
        return column.cast(pa.float32(), safe=False).cast(pa.float64()) if pa.types.is_float64(column.type) else column


def examples(view: ViewSpec, table: pa.Table) -> Iterator[bytes]:
    """The Example of each text of a table of the view's rows, in order; a text without rows has none.

    Features are named as the columns. A column that is constant in a text gives one value, the others one per row;
    vectors are one flat list, codes one string of bytes. A null, or a list without elements, gives no feature.
    """
    new = _example_class()
    once = {*_ONCE, *(name for name, _ in view.fields)}
    columns = [
        (name, name in once, pa.types.is_list(table[name].type), _values(table[name].combine_chunks()))
        for name in sorted(table.column_names)
    ]
    for start, stop in itertools.pairwise(text_splits(table).tolist()):
        example = new()
        for name, is_once, is_list, rows in columns:
            values = rows[start] if is_list else rows[start : start + 1 if is_once else stop]
            if isinstance(values, list):
                values = [value for value in values if value is not None]
            if not len(values):
                continue
            feature = example.features.feature.add(key=name).value
            if isinstance(values, np.ndarray) and values.dtype == np.int8:
                feature.bytes_list.value.append(values.tobytes())
            elif isinstance(values[0], bytes | int):
                (feature.bytes_list if isinstance(values[0], bytes) else feature.int64_list).value.extend(values)
            else:
                feature.float_list.value = np.asarray(values, "<f4").tobytes()
        yield example.SerializeToString()


def _values(column: pa.Array) -> Any:
    """A matrix of vectors; a list of bytes, floats or integers for a column of texts, floats, integers or booleans.

    Of lists the array of each row.
    """
    if pa.types.is_list(column.type):
        return as_arrays(column)
    if pa.types.is_fixed_size_list(column.type):
        return as_matrix(column)
    if pa.types.is_floating(column.type):
        return column.to_pylist()
    return column.cast(pa.binary() if pa.types.is_string(column.type) else pa.int64()).to_pylist()


@functools.cache
def _example_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("layerbeam.Example"))


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


def parse_example(record: bytes, codes: Collection[str] = ()) -> dict[str, Any]:
    """{name: values} of a serialized Example: float32 or int64 arrays, or lists of str. ValueError if it is damaged.

    `codes`: the features that are bytes of int8 values.
    """
    from google.protobuf.message import DecodeError

    try:
        example = _example_class().FromString(record)
    except DecodeError as error:
        raise ValueError(f"holds a record that is not a tf.train.Example ({error})") from error
    found: dict[str, Any] = {}
    for entry in example.features.feature:
        feature = entry.value
        if feature.HasField("bytes_list"):
            values = feature.bytes_list.value
            is_codes = entry.key in codes
            found[entry.key] = np.frombuffer(values[0], np.int8) if is_codes else [value.decode() for value in values]
        elif feature.HasField("float_list"):
            found[entry.key] = np.frombuffer(feature.float_list.value, "<f4")
        else:
            found[entry.key] = np.array(feature.int64_list.value, np.int64)
    return found
