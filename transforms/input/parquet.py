"""Parquet files cut into blocks and decoded: a row is a record; only the needed columns are read, some rows at a time.

A slice is one or more row groups. Rows have no byte positions, so a position (`Slice.start`, `FileRange.first_byte`)
counts the stored bytes of the row groups before it and, inside a slice, the row's share of the slice. The hash of a
block covers the values of its needed columns. A file that was rewritten by another library or with other compression
has other positions, so it is embedded again; a file with only a new time stamp is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import (
    FIELD_TYPES,
    Int64Array,
    Slice,
    TextBlock,
    as_lists,
    row_of_each,
    row_splits_of,
)
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.input.content import contradiction, read_head
from layerbeam.transforms.input.cuts import records_in_block, sizes_and_ranks
from layerbeam.transforms.input.input_format import InputFormat
from layerbeam.transforms.input.records import (
    EXACT,
    REJECTED_BYTES,
    Records,
    UnreadableFileError,
    inexact,
    too_long,
    wrong_column_error,
)
from layerbeam.transforms.settings import BlockLimits, RecordFormat, element_of

# A page or the footer follows, and both begin with the last byte.
_MAGIC = b"PAR1\x15"
_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 4096
_LONGEST = 1 << 62
# The most that values of a dictionary can become in a batch, each repeated for its rows.
_REPEATED_BYTES = 128 << 20
# What a field that is not the text may be besides, to be read as text: 2020-01-02 of a date.
_AS_TEXT = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_decimal)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


@dataclasses.dataclass(frozen=True)
class _Group:
    """A row group. `start`, `end`: the stored bytes of all row groups before it, and including it.

    `read_bytes`: of the columns that are read, before they were compressed.
    """

    number: int
    first_row: int
    rows: int
    start: int
    end: int
    read_bytes: int


class ParquetInput(InputFormat):
    """Rows of Parquet files."""

    title = "Parquet"
    endings = (".parquet",)
    joins_files = False
    pieces_are_blocks = False

    def recognizes(self, head: bytes, lines: Sequence[bytes]) -> bool:
        return head.startswith(_MAGIC)

    def may_begin(self, lines: Sequence[bytes]) -> bool:
        return False

    def ranges(self, file: InputFile, slice_bytes: int, record_format: RecordFormat) -> list[tuple[int, int | None]]:
        """The whole file: it is cut when its footer is read."""
        return [(0, None)]

    def pieces(
        self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat
    ) -> Iterator[tuple[int, int | None, int]]:
        return find_pieces(slice_.file, limits.text_bytes, record_format)

    def cut(
        self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat
    ) -> Iterator[tuple[FileRange, pa.Table]]:
        """Identity and needed columns of each block of the slice."""
        with _opened(slice_.file, record_format) as (parquet, schema, file):
            of_file = list(_groups(parquet, record_format))
            groups = [
                group
                for group in of_file
                if slice_.start <= group.start and (slice_.end is None or group.start < slice_.end)
            ]
            if not groups:
                return
            ends_file = groups[-1] is of_file[-1]
            rows_in_slice = sum(group.rows for group in groups)
            size = groups[-1].end - slice_.start
            done = 0  # rows of the slice that are in a block
            max_rows = rows_in_slice if slice_.max_records is None else slice_.max_records

            def block_of(table: pa.Table) -> tuple[FileRange, pa.Table]:
                first, end = (slice_.start + row * size // rows_in_slice for row in (done, done + table.num_rows))
                first_line, rows = slice_.first_line + done, table.num_rows
                is_last = ends_file and done + rows == rows_in_slice
                return FileRange(slice_.file, first_line, rows, first, end, _hash_of(table), is_last), table

            pending = schema.empty_table()
            sizes = ranks = np.zeros(0, np.int64)
            for batch in _batches(parquet, schema, groups, file):
                pending = pa.concat_tables([pending, batch]).slice(0, max_rows - done)
                more = _sizes_and_ranks(pending.slice(len(sizes)), limits, record_format)
                sizes, ranks = np.append(sizes, more[0]), np.append(ranks, more[1])
                is_full = done + pending.num_rows >= max_rows
                while count := records_in_block(sizes, ranks):
                    yield block_of(pending.slice(0, count))
                    done, pending = done + count, pending.slice(count)
                    sizes, ranks = sizes[count:], ranks[count:]
                if is_full:
                    break
            if pending.num_rows:
                yield block_of(pending)

    def read(self, block: FileRange, record_format: RecordFormat) -> pa.Table:
        """The block's columns, read again. Raises UnreadableFileError if the file has other rows at that place."""
        end_row = block.first_line + block.num_lines
        with _opened(block.file, record_format) as (parquet, schema, file):
            groups = [
                g
                for g in _groups(parquet, record_format)
                if g.first_row < end_row and g.first_row + g.rows > block.first_line
            ]
            found = [schema.empty_table()]
            row = groups[0].first_row if groups else 0
            for batch in _batches(parquet, schema, groups, file):
                skip = max(block.first_line - row, 0)
                found.append(batch.slice(skip, max(end_row - row - skip, 0)))
                row += batch.num_rows
                if row >= end_row:
                    break
        table = pa.concat_tables(found)
        if not table.num_rows or _hash_of(table) != block.sha256:
            raise UnreadableFileError("its rows have changed since it was read")
        return table

    def decode(self, block: FileRange, table: pa.Table, record_format: RecordFormat) -> TextBlock:
        """The block's rows as texts. A row with a value not of its declared type is rejected."""
        raw = _joined(table[record_format.text_fields[0]]).combine_chunks().cast(pa.large_binary())
        is_too_long = pa.array(_lengths(table, record_format) > record_format.max_record_bytes)
        reasons = dict.fromkeys(np.flatnonzero(is_too_long).tolist(), too_long(record_format))
        if reasons:
            raw = pc.if_else(is_too_long, pc.binary_slice(raw, 0, REJECTED_BYTES), raw)
            columns = [pc.if_else(is_too_long, pa.scalar(None, column.type), column) for column in table.columns]
            table = pa.table(columns, table.schema)
        line = block.first_line + np.arange(table.num_rows)
        records = Records(block, record_format, line, np.full(table.num_rows, -1), raw, reasons)
        columns = []
        for name, type_ in record_format.fields_read:
            column = table[name].combine_chunks()
            if type_ == "id" and pa.types.is_floating(column.type):
                column = _integers(column, name, records.reasons)
            if type_ == "id" and pa.types.is_integer(column.type):
                columns.append(column.cast(pa.string()))
            elif type_ in ("string", "id"):
                columns.append(records.decode(column.cast(pa.large_binary()), name))
            elif pa.types.is_list(column.type):
                columns.append(_list_column(column, name, type_, records))
            else:
                columns.append(_number_column(column, name, type_, records.reasons))
        return records.to_block(columns)

    def count(self, file: InputFile, record_format: RecordFormat, at_most: int) -> int:
        return min(sum(rows for _, _, rows in find_pieces(file, 1 << 62, record_format)), at_most)


def find_pieces(file: InputFile, slice_bytes: int, record_format: RecordFormat) -> Iterator[tuple[int, int, int]]:
    """(first byte, byte after the last, rows) of each slice: consecutive row groups of about `slice_bytes` to read.

    Raises UnreadableFileError if the file is not Parquet or lacks a column that the configuration names.
    """
    with _opened(file, record_format) as (parquet, _, _):
        start, rows, end, size = 0, 0, 0, 0
        for group in _groups(parquet, record_format):
            rows, end, size = rows + group.rows, group.end, size + group.read_bytes
            if size >= slice_bytes:
                yield start, end, rows
                start, rows, size = end, 0, 0
        if rows or not end:  # a file without rows is one slice
            yield start, end, rows


@contextlib.contextmanager
def _opened(file: InputFile, record_format: RecordFormat) -> Iterator[tuple[pq.ParquetFile, pa.Schema, Any]]:
    """The file, the schema of its needed columns, and its bytes. Errors of pyarrow become UnreadableFileError."""
    try:
        with storage.open_arrow(file.path) as opened:
            # Pre-buffering would hold whole row groups. A store gives a buffer per request.
            buffer_bytes = 1 << (16 if storage.is_local(file.path) else 20)
            parquet = pq.ParquetFile(
                opened, pre_buffer=False, buffer_size=buffer_bytes, page_checksum_verification=True
            )
            yield parquet, _schema(parquet.schema_arrow, record_format), opened
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (isinstance(error, UnreadableFileError) or error.strerror):
            raise
        why = f"cannot be read as Parquet: {(str(error) or type(error).__name__).splitlines()[0]}"
        with contextlib.suppress(OSError):
            why = contradiction(read_head(file.path), record_format) or why
        raise UnreadableFileError(why) from error


def _groups(parquet: pq.ParquetFile, record_format: RecordFormat) -> Iterator[_Group]:
    first_row = start = 0
    read = [name for name, _ in record_format.fields_read]
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        if group.num_rows:
            columns = [group.column(index) for index in range(group.num_columns)]
            size = sum(column.total_compressed_size for column in columns)
            read_bytes = sum(column.total_uncompressed_size for column in columns if _is_of(column, read))
            yield _Group(number, first_row, group.num_rows, start, start + size, read_bytes)
            first_row, start = first_row + group.num_rows, start + size


def _schema(stored: pa.Schema, record_format: RecordFormat) -> pa.Schema:
    """The needed columns as they are held here: strings as unchecked bytes, dictionaries decoded.

    Raises UnreadableFileError for a column that is missing, duplicate or of an unsuitable type.
    """
    types = {}
    for name, wanted in record_format.fields_read:
        given = _type_of(stored, name)
        if given is None:
            raise wrong_column_error(name, stored.names)
        types[name] = _held_type(name, given, wanted, record_format)
    return pa.schema(types)


def _held_type(name: str, given: pa.DataType, wanted: str, record_format: RecordFormat) -> pa.DataType:
    """The type of a column as it is held here. UnreadableFileError if the given one does not suit the wanted one."""
    element = element_of(wanted)
    is_list = wanted != element
    if is_list != any(is_type(given) for is_type in _LISTS) and not pa.types.is_null(given):
        hint = "" if is_list else "; set input.words: given" * (name in record_format.text_fields)
        raise UnreadableFileError(f"column `{name}` is {given}, not {'a list' if is_list else element}{hint}")
    type_ = given.value_type if is_list and not pa.types.is_null(given) else given
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    is_text, is_integer = str(type_) in _TEXT_TYPES, pa.types.is_integer(type_)
    if wanted in ("string", "id") and name not in (*record_format.text_fields, record_format.pair_field):
        is_text |= any(is_type(type_) for is_type in _AS_TEXT)
    is_number = is_integer or pa.types.is_floating(type_)  # pandas writes integers with gaps as floats
    fits = {
        "string": is_text,
        "id": is_text or is_number,
        "int64": is_integer,
        "float64": is_number,
        "bool": pa.types.is_boolean(type_),
    }[element]
    if not fits and not pa.types.is_null(type_):
        kind = "string, number, date, time or decimal" if element == "id" else wanted
        raise UnreadableFileError(f"column `{name}` is {given}, not {kind}")
    held = pa.large_binary() if is_text or wanted == "list<string>" else type_
    return pa.list_(held) if is_list else held


def _type_of(fields: Iterable[pa.Field], name: str) -> pa.DataType | None:
    """The type of a column, else of a path to it, such as `meta.text`; None if there is none, or are several."""
    outer, _, inner = name.partition(".")
    types = [field.type for field in fields if field.name == name]
    outer_types = [field.type for field in fields if field.name == outer]
    if not types and inner and len(outer_types) == 1 and pa.types.is_struct(outer_types[0]):
        return _type_of(list(outer_types[0]), inner)
    return types[0] if len(types) == 1 else None


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column, or a field of a struct."""
    if name in batch.schema.names:
        return batch.column(name)
    outer, _, inner = name.partition(".")
    struct = batch.column(outer)
    names = [field.name for field in struct.type]
    fields = [pc.struct_field(struct, place) for place in range(len(names))]
    return _column(pa.RecordBatch.from_arrays(fields, names), inner)


def _batches(parquet: pq.ParquetFile, schema: pa.Schema, groups: list[_Group], file: Any) -> Iterator[pa.Table]:
    """The needed columns of the row groups, some rows at a time."""
    for group in groups:
        found = 0
        stored = parquet.metadata.row_group(group.number)
        row_bytes = max(stored.total_byte_size // group.rows, 1)
        chunks = [stored.column(place) for place in range(stored.num_columns)]
        longest = sum(_dictionary_bytes(file, chunk) for chunk in chunks if _is_of(chunk, schema.names))
        most = min(_BATCH_BYTES // row_bytes, _REPEATED_BYTES // max(longest, 1))
        rows = int(np.clip(most, 1, _BATCH_ROWS))
        for batch in parquet.iter_batches(rows, row_groups=[group.number], columns=schema.names, use_threads=False):
            columns = [_column(batch, name) for name in schema.names]
            columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
            columns = [_to_text(c) if any(is_type(c.type) for is_type in _AS_TEXT) else c for c in columns]
            found += batch.num_rows
            yield pa.Table.from_arrays(columns, schema.names).cast(schema)
        if found != group.rows:
            raise UnreadableFileError(f"row group {group.number} has {found:,} rows, but {group.rows:,} in the footer")


def _dictionary_bytes(file: Any, chunk: pq.ColumnChunkMetaData) -> int:
    """The bytes of the dictionary of a column chunk: no value that is stored once for many rows is longer.

    It is the first page, whose header (Thrift) begins with the fields `type`, here 2, and `uncompressed_page_size`.
    """
    file.seek(min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset))
    header, size = file.read(8), 0
    for place, byte in enumerate(header[3:] if header.startswith(b"\x15\x04\x15") else b""):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return size >> 1


def _is_of(chunk: pq.ColumnChunkMetaData, names: Iterable[str]) -> bool:
    """Whether a column chunk has the values of one of these columns, or the elements of its lists."""
    return any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in names)


def _texts(table: pa.Table, record_format: RecordFormat) -> list[pa.ChunkedArray]:
    """The columns with the text and its pair."""
    names = record_format.text_fields + ([] if record_format.pair_field is None else [record_format.pair_field])
    names = [name for name in dict.fromkeys(names) if not pa.types.is_null(table.schema.field(name).type)]
    return [_joined(table[name]) for name in names]


def _joined(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of texts; of lists of words the words joined by blanks."""
    if not pa.types.is_list(column.type):
        return column
    lists = column.combine_chunks()
    words = as_lists(lists.flatten().fill_null(b""), row_splits_of(pc.list_value_length(lists).fill_null(0).to_numpy()))
    texts = pc.binary_join(words, pa.scalar(b" ", pa.large_binary()))
    return pa.chunked_array([pc.if_else(lists.is_valid(), texts, pa.scalar(None, texts.type))])


def _list_column(column: pa.ListArray, name: str, type_: str, records: Records) -> pa.ListArray:
    """A list of each row. One with a value that is not of the type, or of words with a null, gets a reason and null."""
    splits = row_splits_of(pc.list_value_length(column).fill_null(0).to_numpy())
    values, row, reasons = column.flatten(), row_of_each(splits), dict[int, str]()
    if pa.types.is_large_binary(values.type):
        of_values = dataclasses.replace(records, reasons=reasons)
        decoded = of_values.decode(values, name)
        if name in records.record_format.text_fields:
            for place in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist():
                reasons.setdefault(place, f"field `{name}` is null, not a string")
    else:
        decoded = _number_column(values, name, element_of(type_), reasons)
    for place, reason in sorted(reasons.items()):
        records.reasons.setdefault(int(row[place]), f"{reason} at word {place - splits[row[place]]}")
    lists = as_lists(decoded, splits)
    is_bad = np.isin(np.arange(len(column)), row[list(reasons)])
    is_null = column.is_null().to_numpy(zero_copy_only=False) | is_bad
    return pc.if_else(pa.array(is_null), pa.scalar(None, lists.type), lists)


def _lengths(table: pa.Table, record_format: RecordFormat) -> Int64Array:
    """Bytes of text in each row plus 1, like a line with its line end."""
    lengths = np.ones(table.num_rows, np.int64)
    for column in _texts(table, record_format):
        lengths += pc.binary_length(column).fill_null(0).to_numpy()
    return lengths


def _sizes_and_ranks(
    table: pa.Table, limits: BlockLimits, record_format: RecordFormat
) -> tuple[Int64Array, Int64Array]:
    hashes = [0] * table.num_rows
    for column in _texts(table, record_format):
        values = column.fill_null(b"").to_pylist()
        hashes = [zlib.crc32(value, before) for value, before in zip(values, hashes, strict=True)]
    # A long value is in memory, and may be in a block with others.
    lengths = _lengths(table, record_format)
    return sizes_and_ranks(lengths, hashes, limits, lengths > _LONGEST)


def _hash_of(table: pa.Table) -> str:
    """SHA-256 of names, types and values, independent of Arrow's memory layout."""
    digest = hashlib.sha256()
    columns = [(field, table[field.name].combine_chunks()) for field in table.schema]
    for field, column in columns:  # of a list, its values are one more column
        digest.update(f"{field.name}\0{field.type}\0{len(column)}\0".encode())
        digest.update(np.packbits(column.is_null().to_numpy(zero_copy_only=False)).tobytes())
        if pa.types.is_list(field.type):
            digest.update(pc.list_value_length(column).fill_null(0).to_numpy().tobytes())
            columns.append((field.type.value_field, column.flatten()))
        elif pa.types.is_large_binary(field.type):
            filled = column.fill_null(b"")
            _, offsets, values = filled.buffers()
            ends = np.frombuffer(offsets, np.int64)[filled.offset : filled.offset + len(filled) + 1]
            digest.update(np.diff(ends).tobytes())
            digest.update(memoryview(values or b"")[ends[0] : ends[-1]])
        elif not pa.types.is_null(field.type):
            zero = pa.scalar(0, field.type) if not pa.types.is_boolean(field.type) else pa.scalar(False)
            digest.update(column.fill_null(zero).to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()


def _to_text(column: pa.Array) -> pa.StringArray:
    """Dates, times and decimals as text; times without a fraction of only zeros."""
    text = column.cast(pa.string())
    return text if pa.types.is_decimal(column.type) else pc.replace_substring_regex(text, r"\.0+(Z?)$", r"\1")


def _integers(column: pa.Array, name: str, reasons: dict[int, str]) -> pa.Array:
    """Floats without a fraction as int64. A record with another one gets a reason and null."""
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    is_exact = (values == np.trunc(values)) & (np.abs(values) <= EXACT)
    for row in np.flatnonzero(~is_exact).tolist():
        reasons.setdefault(row, f"field `{name}` is {inexact(float(values[row]))}, not an integer")
    return pc.if_else(pa.array(is_exact), column, pa.scalar(None, column.type)).cast(pa.int64())


def _number_column(column: pa.Array, name: str, type_: str, reasons: dict[int, str]) -> pa.Array:
    if type_ == "int64" and pa.types.is_uint64(column.type):
        is_too_large = pc.greater(column, pa.scalar((1 << 63) - 1, pa.uint64())).fill_null(False)
        for row in np.flatnonzero(is_too_large.to_numpy(zero_copy_only=False)).tolist():
            reasons.setdefault(row, f"field `{name}` does not fit in int64")
        column = pc.if_else(is_too_large, pa.scalar(None, pa.uint64()), column)
    return column.cast(FIELD_TYPES[type_], safe=False)
