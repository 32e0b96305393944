"""What a file format of parts must do: `PartFormat`, one subclass per format."""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import row_splits_of
from layerbeam.transforms.views.number_types import element_type, in_lists, vector_names
from layerbeam.transforms.views.view import ViewSpec

_TEXTS_AT_ONCE = 64


@dataclasses.dataclass(frozen=True)
class Output:
    """Where a run's files go and what marks them as its own. `attempt`: the number of this run in `_runs`."""

    path: str
    fingerprint: str
    attempt: int | None = None

    def write_atomically(self, path_of: Callable[[str], str]) -> AbstractContextManager[storage.HashedWriter]:
        """A file of this folder to write, which gets its name, from the SHA-256 of its bytes, when it is whole."""
        return storage.write_atomically(lambda sha256: storage.join(self.path, path_of(sha256)))


class PartFormat(abc.ABC):
    """How the rows of a view become a file, and how they are read back.

    `gzips`: whether `compress` puts gzip around the file, whose name ends in `.gz` then. `is_columnar`: whether some
    columns can be read without the others. `rounding`: how far a value in the file may be off the vector's.
    `sample_bytes`: how much of a large view may be read for a random sample of its rows.
    """

    suffix: str
    gzips: bool = True
    is_columnar: bool = False
    rounding: float = 0.0
    sample_bytes: int = 48 << 20

    def open(self, path: str) -> BinaryIO:
        """A part, to be read."""
        return storage.open_binary(path)

    @abc.abstractmethod
    def write(self, view: ViewSpec, columns: pa.Schema, tables: Iterable[pa.Table], file: Any, output: Output) -> None:
        """Write tables with these columns to a binary stream; equal rows give equal bytes."""

    @abc.abstractmethod
    def read(self, file: BinaryIO, path: str, columns: pa.Schema, names: list[str] | None) -> Iterator[pa.Table]:
        """The rows of a part, in order. `columns`: those of the view; `names`: the only ones that are needed.

        Columns that the file does not have (extract_features.py's lines have line, token and vectors only) are not in
        the tables. OSError, ValueError or pa.ArrowException if the file is damaged.
        """

    def as_stored(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """A column without vectors as it is read back from the file."""
        return column


def tables_of(texts: Iterator[dict[str, Any]], columns: pa.Schema) -> Iterator[pa.Table]:
    """The rows of texts, each text given as {column: one value, or one per row}. ValueError for other columns."""
    while some := list(itertools.islice(texts, _TEXTS_AT_ONCE)):
        try:
            yield _table(some, columns)
        except (KeyError, TypeError) as error:
            raise ValueError(f"holds other columns than the view's ({error})") from error


def _table(texts: Sequence[dict[str, Any]], columns: pa.Schema) -> pa.Table:
    vectors = vector_names(columns)
    has_lists = pa.types.is_list(columns.field(vectors[0]).type)
    width = int(element_type(columns.field(vectors[0]).type).list_size)
    lengths = [1 if has_lists else np.size(text[vectors[0]]) // width for text in texts]
    fields = [field for field in columns if field.name in texts[0]]
    arrays: dict[str, Any] = {}
    for field in fields:
        values = [text[field.name] for text in texts]
        if field.name in vectors or pa.types.is_list(field.type):
            type_ = element_type(field.type)
            is_vector = pa.types.is_fixed_size_list(type_)
            flat = np.concatenate([np.ravel(vector) for vector in values])
            flat = flat.astype((type_.value_type if is_vector else type_).to_pandas_dtype())
            stored = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=type_) if is_vector else pa.array(flat)
            counts = np.array([np.size(vector) // (width if is_vector else 1) for vector in values])
            arrays[field.name] = in_lists(stored, row_splits_of(counts)) if has_lists else stored
            continue
        rows = [
            value
            for of_text, length in zip(values, lengths, strict=True)
            for value in (of_text if len(of_text) == length else [*of_text] * length)
        ]
        if pa.types.is_boolean(field.type):
            rows = [value if value is None else bool(value) for value in rows]
        arrays[field.name] = rows
    return pa.Table.from_pydict(arrays, pa.schema(fields))
