"""What the parts of each format are called, and how their rows are read back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from layerbeam.transforms import storage
from layerbeam.transforms.commits import Rejected
from layerbeam.transforms.parts.jsonl import read_objects
from layerbeam.transforms.parts.tfrecord import read_examples
from layerbeam.transforms.views import View

# What a part's name may end in, for patterns.
SUFFIXES = r"\.(?:parquet|(?:tfrecord|jsonl)(?:\.gz)?)"

_TEXTS_AT_ONCE = 64
_ROWS_AT_ONCE = 4096


def part_folder(view: View) -> str:
    """Where a view's parts go: those of `word_type`, sums of a block, are no rows of the view yet."""
    return f"_word_types/{view.name}" if view.aggregates else view.name


def part_path(view: View, name: str) -> str:
    """`<view>/<name>.<format>`, `.gz` behind it where it is compressed; in the output folder.

    >>> view = View(name="t", level="token", layers=(1,), hidden_size=4, format="tfrecord")
    >>> part_path(view, "a-0986df41-000000000000")
    't/a-0986df41-000000000000.tfrecord.gz'
    """
    ending = ".parquet" if view.aggregates else _ending(view)
    return f"{part_folder(view)}/{name}{ending}"


def table_name(view: View) -> str:
    """The one file of a `word_type` view, in the view's folder."""
    return f"word_types{_ending(view)}"


def _ending(view: View) -> str:
    return f".{view.format}{'.gz' if view.compress and view.format != 'parquet' else ''}"


def read_tables(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a part of any format, by its name, in order, a table for some of its texts at a time.

    `schema`: that of the view. Columns that the file does not hold (extract_features.py's lines have the line, the
    token and the vectors only) are not in the tables. OSError, ValueError or pa.ArrowException where it is damaged.
    """
    ending = path.removesuffix(".gz").rsplit(".", 1)[-1]
    vectors = tuple(field.name for field in schema if pa.types.is_fixed_size_list(field.type))
    with storage.open_binary(path) as file:
        if ending == "parquet":
            for batch in pq.ParquetFile(file).iter_batches(_ROWS_AT_ONCE):
                yield pa.Table.from_batches([batch])
            return
        if ending == "tfrecord":
            nothing: dict[str, Any] = {field.name: [None] for field in schema if field.nullable}
            texts: Iterator[dict[str, Any]] = (nothing | text for text in read_examples(file, path))
        else:
            texts = read_objects(file, path, vectors)
        while some := list(itertools.islice(texts, _TEXTS_AT_ONCE)):
            try:
                yield _table(some, schema, vectors)
            except (KeyError, TypeError) as error:
                raise ValueError(f"holds other columns than the view's ({error})") from error


def read_rejects(path: str) -> Iterator[Rejected | None]:
    """The rejects of a part, in order; None for one that is damaged. OSError where the part cannot be read."""
    for line in storage.read_bytes(path).splitlines():
        try:
            yield Rejected.from_json(json.loads(line))
        except ValueError:
            yield None


def as_matrix(vectors: pa.FixedSizeListArray) -> npt.NDArray[Any]:
    """[n, W] of a column of vectors: Arrow's own memory, without a copy."""
    matrix: npt.NDArray[Any] = vectors.flatten().to_numpy().reshape(len(vectors), vectors.type.list_size)
    return matrix


def _table(texts: Sequence[dict[str, Any]], schema: pa.Schema, vectors: tuple[str, ...]) -> pa.Table:
    """The rows of some texts, each given as {column: one value, or one per row}."""
    lengths = [np.size(text[vectors[0]]) // int(schema.field(vectors[0]).type.list_size) for text in texts]
    fields = [field for field in schema if field.name in texts[0]]
    columns = []
    for field in fields:
        values = [text[field.name] for text in texts]
        if field.name in vectors:
            flat = np.concatenate([np.ravel(vector) for vector in values])
            flat = flat.astype(field.type.value_type.to_pandas_dtype())
            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), type=field.type))
            continue
        rows = [
            value
            for given, length in zip(values, lengths, strict=True)
            for value in (given if len(given) == length else [*given] * length)
        ]
        if pa.types.is_boolean(field.type):
            rows = [value if value is None else bool(value) for value in rows]
        columns.append(pa.array(rows, field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
