"""Parquet files cut into blocks: a row is a record; only the needed columns are read, some rows at a time.

A slice is one or more row groups. Rows have no byte positions, so a position (`Slice.start`, `BlockId.first_byte`)
counts the stored bytes of the row groups before it and, inside a slice, the row's share of the slice. The hash of a
block covers the values of its needed columns. A file that was rewritten by another library or with other compression
has other positions, so it is embedded again; a file with only a new time stamp is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Int64Array, Slice
from layerbeam.transforms.commits import BlockId, InputFile
from layerbeam.transforms.input.lines import MAX_RECORD_BYTES, UnreadableFileError, records_in_block, too_large
from layerbeam.transforms.settings import BlockLimits, RecordFormat

_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 4096
_NAMED_COLUMNS = 8


@dataclasses.dataclass(frozen=True)
class _Group:
    """A row group. `start`, `end`: the stored bytes of all row groups before it, and including it."""

    number: int
    first_row: int
    rows: int
    start: int
    end: int


def find_pieces(file: InputFile, slice_bytes: int, record_format: RecordFormat) -> Iterator[tuple[int, int, int]]:
    """(first byte, byte after the last, rows) of each slice: consecutive row groups of about `slice_bytes`.

    Raises UnreadableFileError if the file is not Parquet or lacks a column that the configuration names.
    """
    with _opened(file, record_format) as parquet:
        start, rows, end = 0, 0, 0
        for group in _groups(parquet):
            rows, end = rows + group.rows, group.end
            if end - start >= slice_bytes:
                yield start, end, rows
                start, rows = end, 0
        if rows:
            yield start, end, rows


def cut_blocks(slice_: Slice, limits: BlockLimits, record_format: RecordFormat) -> Iterator[tuple[BlockId, pa.Table]]:
    """Identity and needed columns of each block of the slice."""
    with _opened(slice_.file, record_format) as parquet:
        groups = [
            group
            for group in _groups(parquet)
            if slice_.start <= group.start and (slice_.end is None or group.start < slice_.end)
        ]
        if not groups:
            return
        rows_in_slice = sum(group.rows for group in groups)
        size = groups[-1].end - slice_.start
        done = 0  # rows of the slice that are in a block

        def block_of(table: pa.Table) -> tuple[BlockId, pa.Table]:
            first, end = (slice_.start + row * size // rows_in_slice for row in (done, done + table.num_rows))
            digest = _hash_of(table)
            return BlockId(slice_.file, slice_.first_line + done, table.num_rows, first, end, digest), table

        pending = _schema(parquet, record_format).empty_table()
        for batch in _batches(parquet, groups, record_format):
            pending = pa.concat_tables([pending, batch])
            while (count := records_in_block(_lengths(pending, record_format), limits)) is not None:
                yield block_of(pending.slice(0, count))
                done, pending = done + count, pending.slice(count)
        if pending.num_rows:
            yield block_of(pending)


def read_table(block: BlockId, record_format: RecordFormat) -> pa.Table:
    """The block's columns, read again. Raises UnreadableFileError if the file has other rows at that place."""
    end_row = block.first_line + block.num_lines
    with _opened(block.file, record_format) as parquet:
        groups = [g for g in _groups(parquet) if g.first_row < end_row and g.first_row + g.rows > block.first_line]
        found = [_schema(parquet, record_format).empty_table()]
        row = groups[0].first_row if groups else 0
        for batch in _batches(parquet, groups, record_format):
            skip = max(block.first_line - row, 0)
            found.append(batch.slice(skip, max(end_row - row - skip, 0)))
            row += batch.num_rows
            if row >= end_row:
                break
    table = pa.concat_tables(found)
    if _hash_of(table) != block.sha256:
        raise UnreadableFileError("its rows have changed since it was read")
    return table


@contextlib.contextmanager
def _opened(file: InputFile, record_format: RecordFormat) -> Iterator[pq.ParquetFile]:
    """The file with its columns checked. Errors of pyarrow become UnreadableFileError."""
    try:
        opened: BinaryIO
        with storage.open_binary(file.path) as opened:
            # Pre-buffering would hold whole row groups.
            parquet = pq.ParquetFile(opened, pre_buffer=False, buffer_size=1 << 16, page_checksum_verification=True)
            _check_columns(parquet.schema_arrow, record_format)
            yield parquet
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (isinstance(error, UnreadableFileError) or error.strerror):
            raise
        raise UnreadableFileError(
            f"cannot be read as Parquet: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from error


def _groups(parquet: pq.ParquetFile) -> Iterator[_Group]:
    first_row = start = 0
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        if group.num_rows:
            size = sum(group.column(index).total_compressed_size for index in range(group.num_columns))
            yield _Group(number, first_row, group.num_rows, start, start + size)
            first_row, start = first_row + group.num_rows, start + size


def _needed(record_format: RecordFormat) -> list[str]:
    names = [
        record_format.text_field,
        record_format.pair_field,
        record_format.id_field,
        *record_format.keep_fields,
    ]
    return list(dict.fromkeys(name for name in names if name is not None))


def _schema(parquet: pq.ParquetFile, record_format: RecordFormat) -> pa.Schema:
    return pa.schema([_plain(parquet.schema_arrow.field(name)) for name in _needed(record_format)])


def _plain(field: pa.Field) -> pa.Field:
    """The field as it is held here: strings as unchecked bytes, dictionaries decoded."""
    type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.field(field.name, pa.large_binary() if _is_text(type_) else type_)


def _is_text(type_: pa.DataType) -> bool:
    return any(
        check(type_)
        for check in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
        )
    )


def _check_columns(schema: pa.Schema, record_format: RecordFormat) -> None:
    """Raises UnreadableFileError for a column that is missing, duplicate or of an unsuitable type."""
    kinds = {record_format.text_field: "text"}
    if record_format.pair_field is not None:
        kinds[record_format.pair_field] = "text"
    declared = [
        *kinds.items(),
        *([(record_format.id_field, "id")] if record_format.id_field is not None else []),
        *record_format.keep_fields.items(),
    ]
    for name, kind in declared:
        count = len(schema.get_all_field_indices(name))
        if count != 1:
            names = ", ".join(schema.names[:_NAMED_COLUMNS]) + (", ..." if len(schema) > _NAMED_COLUMNS else "")
            raise UnreadableFileError(f"has {f'{count} columns' if count else 'no column'} `{name}`; it has: {names}")
        type_ = _plain(schema.field(name)).type
        fits = {
            "text": _is_text(type_),
            "string": _is_text(type_),
            "id": _is_text(type_) or pa.types.is_integer(type_),
            "int64": pa.types.is_integer(type_),
            "float64": pa.types.is_floating(type_) or pa.types.is_integer(type_),
            "bool": pa.types.is_boolean(type_),
        }[kind]
        if not fits and not pa.types.is_null(type_):
            wanted = {"id": "string or integer", "text": "string"}.get(kind, kind)
            raise UnreadableFileError(f"column `{name}` is {schema.field(name).type}, not {wanted}")


def _batches(parquet: pq.ParquetFile, groups: list[_Group], record_format: RecordFormat) -> Iterator[pa.Table]:
    """The needed columns of the row groups, some rows at a time."""
    schema = _schema(parquet, record_format)
    for group in groups:
        found = 0
        metadata = parquet.metadata.row_group(group.number)
        row_bytes = max(metadata.total_byte_size // group.rows, 1)
        rows = int(np.clip(_BATCH_BYTES // row_bytes, 1, _BATCH_ROWS))
        for batch in parquet.iter_batches(
            rows, row_groups=[group.number], columns=_needed(record_format), use_threads=False
        ):
            columns = [
                _decoded(batch.column(batch.schema.get_field_index(field.name))).cast(field.type) for field in schema
            ]
            found += batch.num_rows
            yield pa.Table.from_arrays(columns, schema=schema)
        if found != group.rows:
            raise UnreadableFileError(f"row group {group.number} has {found:,} rows, but {group.rows:,} in the footer")


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _lengths(table: pa.Table, record_format: RecordFormat) -> Int64Array:
    """Bytes of text in each row plus 1, like a line with its line end."""
    lengths = np.ones(table.num_rows, np.int64)
    for name in dict.fromkeys((record_format.text_field, record_format.pair_field)):
        if name is not None and not pa.types.is_null(table.schema.field(name).type):
            lengths += pc.binary_length(table[name]).fill_null(0).to_numpy()
    if (lengths > MAX_RECORD_BYTES).any():
        raise too_large()
    return lengths


def _hash_of(table: pa.Table) -> str:
    """SHA-256 of names, types and values, independent of Arrow's memory layout."""
    digest = hashlib.sha256()
    for field in table.schema:
        column = _column(table, field.name)
        digest.update(f"{field.name}\0{field.type}\0{len(column)}\0".encode())
        digest.update(np.packbits(column.is_null().to_numpy(zero_copy_only=False)).tobytes())
        if pa.types.is_large_binary(field.type):
            filled = column.fill_null(b"")
            _, offsets, values = filled.buffers()
            ends = np.frombuffer(offsets, np.int64)[filled.offset : filled.offset + len(filled) + 1]
            digest.update(np.diff(ends).tobytes())
            digest.update(memoryview(values or b"")[ends[0] : ends[-1]] if len(filled) else b"")
        elif not pa.types.is_null(field.type):
            zero = pa.scalar(0, field.type) if not pa.types.is_boolean(field.type) else pa.scalar(False)
            digest.update(column.fill_null(zero).to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()


def _column(table: pa.Table, name: str) -> pa.Array:
    column: Any = table[name].combine_chunks()
    # Older versions of pyarrow return a chunked array if there is no chunk.
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
