"""The rows of a view as a `tf.data.Dataset`, read part by part. TensorFlow is imported when a dataset is made."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.columns import splits_by_text
from layerbeam.transforms.parts import as_matrix

if TYPE_CHECKING:
    import tensorflow as tf

    from layerbeam.pipeline.dataset.view import View

# Equal in all rows of a text, as are `id` and the kept fields, the only columns that may be null.
_TEXT_COLUMNS = ("file", "line", "sentence", "text")


def dataset_of_rows(view: View, names: Sequence[str]) -> tf.data.Dataset:
    """One element per row: {column: [W] of a vector column, else a scalar}."""
    import tensorflow as tf

    signature = {name: _spec(view.schema.field(name)) for name in names}
    parts = tf.data.Dataset.from_generator(functools.partial(_read_rows, view, names), output_signature=signature)
    return parts.flat_map(tf.data.Dataset.from_tensor_slices)


def dataset_of_texts(view: View, names: Sequence[str]) -> tf.data.Dataset:
    """One element per text: {column: a scalar if all rows of a text share it, else [n] or [n, W]}."""
    import tensorflow as tf

    fields = [view.schema.field(name) for name in names]
    scalars = {field.name for field in fields if field.nullable or field.name in _TEXT_COLUMNS}
    parts = tf.data.Dataset.from_generator(
        functools.partial(_read_texts, view, names, scalars),
        output_signature=(tf.TensorSpec([None], tf.int64), {field.name: _spec(field) for field in fields}),
    )
    return parts.flat_map(functools.partial(_texts_of_part, scalars))


def _read_rows(view: View, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The values of each part by column."""
    for part in view.parts:
        yield _values(view.read(part, names), names)


def _read_texts(
    view: View, names: Sequence[str], scalars: Collection[str]
) -> Iterator[tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]]:
    """(first row of each text and the end, values by column) of each part; `scalars` have one value per text."""
    for part in view.parts:
        table = view.read(part, [*names, "line", "sentence"])
        splits = splits_by_text(table)
        values = _values(table, names)
        yield splits, {name: value[splits[:-1]] if name in scalars else value for name, value in values.items()}


def _texts_of_part(scalars: Collection[str], splits: tf.Tensor, values: dict[str, tf.Tensor]) -> tf.data.Dataset:
    import tensorflow as tf

    numbers = tf.data.Dataset.range(tf.size(splits, tf.int64) - 1)
    return numbers.map(functools.partial(_text_of_part, scalars, splits, values))


def _text_of_part(
    scalars: Collection[str], splits: tf.Tensor, values: dict[str, tf.Tensor], number: tf.Tensor
) -> dict[str, tf.Tensor]:
    rows = slice(splits[number], splits[number + 1])
    return {name: value[number] if name in scalars else value[rows] for name, value in values.items()}


def _values(table: pa.Table, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """The columns as TensorFlow takes them: strings as bytes, no nulls."""
    return {name: _column_values(name, table[name]) for name in names}


def _column_values(name: str, column: pa.ChunkedArray) -> npt.NDArray[Any]:
    type_ = column.type
    if pa.types.is_fixed_size_list(type_):
        return as_matrix(column.combine_chunks())
    if pa.types.is_string(type_):
        column = pc.fill_null(column, "").cast(pa.binary())
    elif column.null_count and not pa.types.is_floating(type_):
        raise ValueError(
            f"column {name} has null in {column.null_count:,} rows of a part, which a tensor of {type_} cannot hold; "
            "name the columns to read without it, or fill the nulls in what `to_arrow` gives"
        )
    values: npt.NDArray[Any] = column.combine_chunks().to_numpy(zero_copy_only=False)
    return values


def _spec(field: pa.Field) -> tf.TensorSpec:
    """The type and shape of a column's values in a part."""
    import tensorflow as tf

    if pa.types.is_fixed_size_list(field.type):
        return tf.TensorSpec([None, field.type.list_size], tf.as_dtype(field.type.value_type.to_pandas_dtype()))
    if pa.types.is_string(field.type):
        return tf.TensorSpec([None], tf.string)
    return tf.TensorSpec([None], tf.as_dtype(field.type.to_pandas_dtype()))
