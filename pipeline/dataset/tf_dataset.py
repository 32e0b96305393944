"""The rows of a view as a `tf.data.Dataset`, read part by part. TensorFlow is imported when a dataset is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.views.columns import splits_by_text
from layerbeam.transforms.views.number_types import as_matrix, elements, splits_of

if TYPE_CHECKING:
    import tensorflow as tf

    from layerbeam.pipeline.dataset.view import View

# Equal in all rows of a text, as are `id` and the kept fields, the only columns that may be null.
_TEXT_COLUMNS = ("folder", "file", "line", "sentence", "text")


def make_dataset(view: View, names: Sequence[str], *, by_text: bool) -> tf.data.Dataset:
    """One element per row: {column: [W] of a vector column, [n, W] of a list of vectors, else a scalar}.

    `by_text`: one element per text: {column: a scalar if all rows of a text share it, else [n] or [n, W]}.
    """
    import tensorflow as tf

    fields = [view.schema.field(name) for name in names]
    shared = _columns_of_texts(fields) if by_text else set()
    lists = [field.name for field in fields if pa.types.is_list(field.type)]
    whole = {field.name for field in fields if lists and field.name not in lists}  # one value per element already

    def read_parts() -> Iterator[tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]]:
        """(first row of each text and the end, values by column) of each part; `shared` have one value per text."""
        for part in view.parts:
            table = view.read(part, [*names, "file", "line", "sentence"] if by_text else names)
            splits = splits_by_text(table) if by_text else _splits_of_lists(table, lists)
            values = {name: _values(name, table[name]) for name in names}
            yield splits, {name: value[splits[:-1]] if name in shared else value for name, value in values.items()}

    def elements_of_part(splits: tf.Tensor, values: dict[str, tf.Tensor]) -> tf.data.Dataset:
        def text(number: tf.Tensor) -> dict[str, tf.Tensor]:
            rows = slice(splits[number], splits[number + 1])
            return {name: value[number] if name in shared | whole else value[rows] for name, value in values.items()}

        if by_text or lists:
            return tf.data.Dataset.range(tf.size(splits, tf.int64) - 1).map(text)
        return tf.data.Dataset.from_tensor_slices(values)

    no_rows = view.empty(names)
    columns = {name: _spec(_values(name, no_rows[name])) for name in names}
    signature = (tf.TensorSpec([None], tf.int64), columns)
    return tf.data.Dataset.from_generator(read_parts, output_signature=signature).flat_map(elements_of_part)


def _columns_of_texts(fields: Sequence[pa.Field]) -> set[str]:
    """The columns that are equal in all rows of a text."""
    return {field.name for field in fields if field.nullable or field.name in _TEXT_COLUMNS}


def _spec(values: npt.NDArray[Any]) -> tf.TensorSpec:
    import tensorflow as tf

    return tf.TensorSpec([None, *values.shape[1:]], tf.string if values.dtype == object else values.dtype)


def _splits_of_lists(table: pa.Table, lists: Sequence[str]) -> npt.NDArray[np.int64]:
    """First element of each row's list, and the end; nothing if no column is a list."""
    return splits_of(table[lists[0]]) if lists else np.zeros(0, np.int64)


def _values(name: str, column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column, or the elements of its lists, as TensorFlow takes it: strings as bytes, no nulls."""
    column = pa.chunked_array([elements(column)])
    type_ = column.type
    if pa.types.is_fixed_size_list(type_):
        return as_matrix(column)
    if pa.types.is_string(type_):
        column = pc.fill_null(column, "").cast(pa.binary())
    elif column.null_count and not pa.types.is_floating(type_):
        raise ValueError(
            f"column {name} has null in {column.null_count:,} rows of a part, which a tensor of {type_} cannot hold; "
            "name the columns to read without it, or fill the nulls in what `to_arrow` gives"
        )
    values: npt.NDArray[Any] = column.to_numpy()
    return values
