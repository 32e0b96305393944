"""`layerbeam.EmbedRows`: rows with a schema -> the same rows with vectors; also a transform for Beam YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.typehints import Optional, Tuple
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type

from layerbeam.pipeline.embed.embed_text import EmbedText
from layerbeam.transforms.embedder import OF_FILES, Vectors
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.view import ViewSpec

_Field = tuple[str, Any]


class EmbedRows(beam.PTransform):
    """Rows with a text -> the same rows with vectors: for Beam SQL, data frames, YAML and all that wants a schema.

    A view of level text adds a field for each of its vectors, a list of float32: named as the view if it has one
    vector, else `<view>_<column>`, as in `v_layer_6`. A view of level token or word adds a list of rows.

    Args:
      column: the field with the text.
      encoder: a handle, or the section `encoder` of a configuration as a mapping.
      views: the section `views` of a configuration, with levels token, word and text.
      num_threads: batches that a worker process encodes at the same time.
      max_delay_seconds: for streaming pipelines: texts of several bundles wait for each other, at most so long.
      error_handling: {"output": name}, as in Beam YAML: rows whose text has no vectors go to a second output, as rows
        `element` and `msg`. The outputs are {"good": rows, name: rows}. By default such a text fails the bundle.

    Raises:
      ValueError: when it is made, if a setting is wrong; when it is applied, if the rows do not have the column, or
        have a field that a view would add.
    """

    def __init__(
        self,
        column: str = "text",
        encoder: str | Mapping[str, Any] = "minilm",
        views: Mapping[str, Any] | None = None,
        num_threads: int = 1,
        max_delay_seconds: float | None = None,
        error_handling: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        if error_handling is not None and set(error_handling) != {"output"}:
            raise ValueError(f"EmbedRows: error_handling is {error_handling}; it must have `output`, and nothing else")
        self._column = column
        self._errors = None if error_handling is None else error_handling["output"]
        self._embed = _EmbedTextOfRow(
            encoder=encoder, views=views or {}, num_threads=num_threads, max_delay_seconds=max_delay_seconds
        )

    def expand(self, rows: Any) -> Any:
        fields = self._fields(rows.element_type)
        added = [field for view in self._embed.views for field in _fields_of(view)]
        all_names = [name for name, _ in [*fields, *added]]
        twice = sorted({name for name in all_names if all_names.count(name) > 1})
        if twice:
            raise ValueError(f"EmbedRows: the rows already have {', '.join(twice)}: give the view another name")
        column, views, names = self._column, self._embed.views, all_names[: len(fields)]

        def take(row: Any) -> tuple[Any, str | None]:
            return row, getattr(row, column)

        def add(pair: tuple[Any, Vectors]) -> beam.Row:
            row, vectors = pair
            new = {name: value for view in views for name, value in _values_of(view, vectors[view.name])}
            return beam.Row(**{name: getattr(row, name) for name in names}, **new)

        def explain(rejected: tuple[Any, str | None, str]) -> beam.Row:
            return beam.Row(element=rejected[0], msg=rejected[2])

        taken = rows | "take text" >> beam.Map(take).with_output_types(Tuple[rows.element_type, Optional[str]])
        widen = beam.Map(add).with_output_types(RowTypeConstraint.from_fields([*fields, *added]))
        if self._errors is None:
            return taken | "embed" >> self._embed | "add vectors" >> widen
        embedded, rejected = taken | "embed" >> self._embed.with_exception_handling()
        errors = RowTypeConstraint.from_fields([("element", rows.element_type), ("msg", str)])
        return {
            "good": embedded | "add vectors" >> widen,
            self._errors: rejected | "explain" >> beam.Map(explain).with_output_types(errors),
        }

    def _fields(self, row_type: Any) -> list[_Field]:
        try:
            fields = list(named_fields_from_element_type(row_type))
        except (TypeError, ValueError):
            raise ValueError(
                f"EmbedRows: the elements are {row_type}, not rows: give them a schema, for example with "
                "beam.Select or beam.Map(...).with_output_types(a NamedTuple); for pairs there is EmbedText"
            ) from None
        if self._column not in dict(fields):
            found = ", ".join(name for name, _ in fields)
            raise ValueError(f"EmbedRows: the rows have no field {self._column}; they have {found}: set `column`")
        type_ = dict(fields)[self._column]
        if type_ not in (str, str | None, Any):
            raise ValueError(f"EmbedRows: the field {self._column} is {type_}, not text: set `column`")
        return fields


class _EmbedTextOfRow(EmbedText):
    _source = "EmbedRows"


def _fields_of(view: ViewSpec) -> list[_Field]:
    """The fields that a view adds to a row."""
    if view.level == "text":
        vector: Any = Sequence[np.float32]
        type_ = Sequence[vector] if view.has_vector_lists else vector
        return [(name, type_) for name in _vector_fields(view).values()]
    own = [(field.name, _beam_type(field)) for field in schema(view) if field.name not in OF_FILES]
    row: Any = RowTypeConstraint.from_fields(own)
    return [(view.name, Sequence[row])]


def _values_of(view: ViewSpec, columns: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if view.level == "text":
        vectors = {field: columns[name] for name, field in _vector_fields(view).items()}
        return [(field, _as_floats(v if view.has_vector_lists else v[0])) for field, v in vectors.items()]
    lists = {name: list(map(_as_floats, v)) if name in view.vector_columns else v for name, v in columns.items()}
    return [
        (view.name, [beam.Row(**dict(zip(lists, values, strict=True))) for values in zip(*lists.values(), strict=True)])
    ]


def _vector_fields(view: ViewSpec) -> dict[str, str]:
    """{vector column: its field}."""
    names = view.vector_columns
    return {name: view.name if len(names) == 1 else f"{view.name}_{name}" for name in names}


def _as_floats(vector: Any) -> list[Any]:
    floats: list[Any] = vector.astype(np.float32).tolist()
    return floats


# Beam's coder of rows has no bytes before 2.74.
_BYTE = np.int8 if tuple(map(int, beam.__version__.split(".")[:2])) >= (2, 74) else np.int32
_TYPES = {pa.string(): str, pa.int64(): np.int64, pa.int32(): np.int32, pa.int8(): _BYTE}


def _beam_type(field: pa.Field) -> Any:
    return Sequence[np.float32] if pa.types.is_fixed_size_list(field.type) else _TYPES[field.type]
