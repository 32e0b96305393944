"""Parquet rows decoded as records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.blocks import FIELD_TYPES
from layerbeam.transforms.commits import BlockId, Rejected
from layerbeam.transforms.input.parquet import _column
from layerbeam.transforms.read.records import Records
from layerbeam.transforms.settings import RecordFormat


def decode_rows(block: BlockId, table: pa.Table, record_format: RecordFormat) -> Records:
    """The block's rows as records. A row without text, or with a value not of its declared type, is rejected."""
    reasons: dict[int, str] = {}
    text = _text_column(table, record_format.text_field, record_format, reasons)
    for row in np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False)).tolist():
        reasons.setdefault(row, f"field `{record_format.text_field}` is null")
    pairs = (
        None
        if record_format.pair_field is None
        else _text_column(table, record_format.pair_field, record_format, reasons)
    )
    fields = {}
    if record_format.id_field is not None:
        is_number = pa.types.is_integer(table.schema.field(record_format.id_field).type)
        ids = _column(table, record_format.id_field).cast(pa.string()) if is_number else None
        fields["id"] = _text_column(table, record_format.id_field, record_format, reasons) if ids is None else ids
    for name, type_ in record_format.keep_fields.items():
        if type_ == "string":
            fields[name] = _text_column(table, name, record_format, reasons)
        else:
            fields[name] = _number_column(table, name, type_, reasons)
    raw = _binary(table, record_format.text_field)
    rejected = [
        Rejected(block.file.path, block.first_line + row, -1, "read", reasons[row], raw[row].as_py() or b"")
        for row in sorted(reasons)
    ]
    keep = np.ones(table.num_rows, bool)
    keep[list(reasons)] = False
    mask = pa.array(keep)
    return Records(
        text.filter(mask),
        (block.first_line + np.arange(table.num_rows))[keep],
        rejected,
        None if pairs is None else pairs.filter(mask),
        {name: column.filter(mask) for name, column in fields.items()},
    )


def _binary(table: pa.Table, name: str) -> pa.Array:
    column = _column(table, name)
    return (
        column.cast(pa.large_binary())
        if not pa.types.is_null(column.type)
        else pa.nulls(len(column), pa.large_binary())
    )


def _text_column(table: pa.Table, name: str, record_format: RecordFormat, reasons: dict[int, str]) -> pa.StringArray:
    """The column as strings. Bytes that are not UTF-8 are replaced, or their row gets a reason."""
    column = _binary(table, name)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    values: list[str | None] = []
    errors = "strict" if record_format.invalid_bytes == "reject" else "replace"
    for row, value in enumerate(column.to_pylist()):
        try:
            values.append(None if value is None else value.decode("utf-8", errors))
        except UnicodeDecodeError as error:
            values.append(None)
            reasons.setdefault(row, f"field `{name}`: invalid UTF-8: {error.reason} at byte {error.start}")
    return pa.array(values, pa.string())


def _number_column(table: pa.Table, name: str, type_: str, reasons: dict[int, str]) -> pa.Array:
    column = _column(table, name)
    if type_ == "int64" and pa.types.is_uint64(column.type):
        too_large = pc.greater(column, pa.scalar((1 << 63) - 1, pa.uint64())).fill_null(False)
        for row in np.flatnonzero(too_large.to_numpy(zero_copy_only=False)).tolist():
            reasons.setdefault(row, f"field `{name}` does not fit in int64")
        column = pc.if_else(too_large, pa.scalar(None, pa.uint64()), column)
    return column.cast(FIELD_TYPES[type_], safe=False)
