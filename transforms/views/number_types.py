"""The number types of vectors in files: how each is stored, how it is read back, and how exact it is."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow.blocks import Float32Array, Int64Array, row_splits_of

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


@dataclasses.dataclass(frozen=True)
class NumberType:
    """A type of which each value is stored by itself, and read back as it is stored.

    A value x that is read back is off by at most `relative` |x| + `of_largest` times the largest value of its vector.
    """

    name: str
    relative: float = 0.0
    of_largest: float = 0.0

    @property
    def input_type(self) -> npt.DTypeLike:
        """The type of the values that `store` takes."""
        return self.name

    @property
    def value_bytes(self) -> int:
        """Bytes of one value."""
        return np.dtype(self.name).itemsize

    def row_bytes(self, width: int) -> int:
        """Bytes of one vector, before compression."""
        return width * self.value_bytes

    def round(self, vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[n, W] in `input_type`; infinite where a value is too large."""
        with np.errstate(over="ignore"):
            return vectors.astype(self.input_type, copy=False)

    def fields(self, name: str, width: int) -> list[pa.Field]:
        """The columns in which a vector column is stored."""
        return [pa.field(name, vector_type(self.name, width), nullable=False)]

    def store(self, name: str, vectors: npt.NDArray[Any]) -> dict[str, pa.Array]:
        """The values of these columns, of [n, W]."""
        return {name: vector_array(vectors)}

    def stored_names(self, names: Iterable[str], schema: pa.Schema) -> list[str]:
        """The columns of the file that are needed to read these."""
        return list(names)

    def loaded_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are read back from a file with these."""
        return schema

    def load(self, rows: Rows) -> Rows:
        """Rows of a file, or some of their columns, as they are read back."""
        return rows


class Int8(NumberType):
    """Symmetric codes from -127 to 127, and one float32 for each vector: value = code * scale.

    A vector's codes depend on its values only, and are rounded to the nearest, halves to even. Zeros have scale 0.
    """

    @property
    def input_type(self) -> npt.DTypeLike:
        return np.float32

    def row_bytes(self, width: int) -> int:
        return width + 4

    def fields(self, name: str, width: int) -> list[pa.Field]:
        return [*super().fields(name, width), pa.field(scale_of(name), pa.float32(), nullable=False)]

    def store(self, name: str, vectors: npt.NDArray[Any]) -> dict[str, pa.Array]:
        codes, scales = quantize(vectors)
        return {name: vector_array(codes), scale_of(name): pa.array(scales)}

    def stored_names(self, names: Iterable[str], schema: pa.Schema) -> list[str]:
        vectors = vector_names(schema)
        return [stored for name in names for stored in ([name, scale_of(name)] if name in vectors else [name])]

    def loaded_schema(self, schema: pa.Schema) -> pa.Schema:
        vectors = vector_names(schema)
        scales = set(map(scale_of, vectors))
        fields = (field for field in schema if field.name not in scales)
        return pa.schema(
            field.with_type(_of_float32(field.type)) if field.name in vectors else field for field in fields
        )

    def load(self, rows: Rows) -> Rows:
        schema = self.loaded_schema(rows.schema)
        columns = {name: rows[name] for name in schema.names}
        for name in vector_names(schema):
            codes, scales = (rows[stored] for stored in (name, scale_of(name)))
            vectors = vector_array(as_matrix(codes) * elements(scales).to_numpy()[:, None])
            columns[name] = in_lists(vectors, splits_of(codes)) if pa.types.is_list(codes.type) else vectors
        return type(rows).from_pydict(columns, schema.with_metadata(rows.schema.metadata))


# By the `dtype` of a view. float16 has 11 bits; float32 is summed in another order than by another program.
NUMBER_TYPES = {
    "float32": NumberType("float32", 1e-5),
    "float16": NumberType("float16", 1e-3),
    "int8": Int8("int8", 1e-5, of_largest=0.5 / 127),
}


# What a run says of a column for which `is_coarse` is true.
COARSE = (
    "int8 is too coarse here, since a few channels are much larger than the others, which vary by less than 3 codes: "
    "nearest neighbours change; set dtype: float16"
)
_LEAST_VECTORS = 8


def scale_of(name: str) -> str:
    """The column with the scales of a vector column of codes."""
    return f"{name}_scale"


def quantize(vectors: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """(codes [n, W], scales [n]) of finite vectors.

    >>> codes, scales = quantize(np.float32([[0.5, -1.27, 0.004], [0, 0, 0]]))
    >>> codes.tolist(), scales.tolist()
    ([[50, -127, 0], [0, 0, 0]], [0.009999999776482582, 0.0])
    """
    scales = np.asarray(np.abs(vectors).max(axis=1, initial=0) / np.float32(127), np.float32)
    divisors = np.where(scales == 0, np.float32(1), scales)[:, None]
    return np.rint(vectors / divisors).astype(np.int8), scales


def is_coarse(vectors: npt.NDArray[Any]) -> bool | None:
    """Whether most channels of [n, W] vectors vary by less than 3 codes of int8; None if too few vectors differ.

    Then fewer than 0.93 of 10 neighbours stay: MiniLM's layers vary by 5 codes and more. Zeros do not count.
    """
    distinct = np.unique(vectors[np.abs(vectors).max(axis=1, initial=0) > 0], axis=0)
    if len(distinct) < _LEAST_VECTORS:
        return None
    _, scales = quantize(distinct)
    return bool(np.median(distinct.std(axis=0)) < 3 * scales.mean())


def zero_rows(vectors: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which of the vectors [n, W] have no value but zero."""
    is_zero: npt.NDArray[np.bool_] = vectors[:, 0] == 0
    is_zero[is_zero] = ~vectors[is_zero].any(axis=1)
    return is_zero


def vector_array(vectors: npt.NDArray[Any]) -> pa.FixedSizeListArray:
    """[n, W] as n fixed-size lists, without a copy."""
    type_ = vector_type(vectors.dtype, vectors.shape[1])
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=type_)


def vector_type(dtype: npt.DTypeLike, width: int) -> pa.FixedSizeListType:
    """The Arrow type of a column of vectors."""
    return pa.list_(pa.field("element", pa.from_numpy_dtype(np.dtype(dtype)), nullable=False), width)


def list_type(element: pa.DataType) -> pa.ListType:
    """The Arrow type of a column of lists, for views with several vectors in a row."""
    return pa.list_(pa.field("element", element, nullable=False))


def element_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column, or of the elements of its lists."""
    return type_.value_type if pa.types.is_list(type_) else type_


def vector_names(columns: pa.Schema) -> list[str]:
    """The names of the columns that hold vectors, or lists of them."""
    return [field.name for field in columns if pa.types.is_fixed_size_list(element_type(field.type))]


def code_names(columns: pa.Schema) -> list[str]:
    """The names of the columns that hold codes."""
    return [name for name in vector_names(columns) if element_type(columns.field(name).type).value_type == pa.int8()]


def as_matrix(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """[n, W] of a column of n vectors, or of lists with n vectors together: Arrow's own memory, without a copy.

    A column of several chunks is copied.
    """
    vectors = elements(column)
    matrix: npt.NDArray[Any] = vectors.flatten().to_numpy().reshape(len(vectors), vectors.type.list_size)
    return matrix


def elements(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The elements of a column of lists, one list after the other; any other column as it is, in one chunk."""
    whole = _whole(column)
    return whole.flatten() if pa.types.is_list(whole.type) else whole


def splits_of(lists: pa.Array | pa.ChunkedArray) -> Int64Array:
    """The row splits of a column of lists: list i has the elements `splits[i]:splits[i + 1]`."""
    return row_splits_of(pc.list_value_length(_whole(lists)).to_numpy(zero_copy_only=False))


def in_lists(elements: pa.Array, splits: Int64Array) -> pa.ListArray:
    """The lists with these row splits, without a copy of the elements."""
    return pa.ListArray.from_arrays(pa.array(splits, pa.int32()), elements, type=list_type(elements.type))


def as_arrays(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column of vectors as [n, W]; of lists an object array of n arrays, each [k, W] of k vectors, or [k] of numbers.

    Any other column is [n]. The arrays of a column are views into one.
    """
    column = _whole(column)
    if pa.types.is_fixed_size_list(column.type):
        return as_matrix(column)
    if not pa.types.is_list(column.type):
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values
    is_vector = pa.types.is_fixed_size_list(column.type.value_type)
    whole = as_matrix(column) if is_vector else elements(column).to_numpy()
    arrays = np.empty(len(column), object)
    for row, (begin, end) in enumerate(itertools.pairwise(splits_of(column).tolist())):
        arrays[row] = whole[begin:end]
    return arrays


def _of_float32(type_: pa.DataType) -> pa.DataType:
    """The type of a column of vectors, or lists of vectors, as wide as this one."""
    vector = vector_type(np.float32, element_type(type_).list_size)
    return list_type(vector) if pa.types.is_list(type_) else vector


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
