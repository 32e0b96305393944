"""Blocks of vectors written as parts, rejects as JSON Lines, and the commit last."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# Vectors hardly compress: level 1 is as small as the higher ones, and several times as fast.
_ZSTD_LEVEL = 1
_ROW_GROUP_BYTES = 32 << 20


def write_parquet(table: pa.Table, file: Any, *, metadata: dict[str, str], byte_stream_split: bool = False) -> None:
    """One Parquet file: zstd, strings dictionary-encoded, vectors plain; equal tables give equal bytes.

    `metadata` goes into the schema's. `byte_stream_split`: for float32 vectors, some 8 % smaller.
    """
    pq.write_table(
        table.replace_schema_metadata(metadata),
        file,
        row_group_size=row_group_size(table.schema),
        **parquet_options(table.schema, byte_stream_split=byte_stream_split),
    )


def _vectors(columns: pa.Schema) -> list[pa.Field]:
    return [field for field in columns if pa.types.is_fixed_size_list(field.type)]


def row_group_size(columns: pa.Schema) -> int:
    """Rows of a group, by the bytes of their vectors."""
    row_bytes: int = sum(field.type.list_size * field.type.value_type.bit_width // 8 for field in _vectors(columns))
    return max(_ROW_GROUP_BYTES // max(row_bytes, 1), 1)


def parquet_options(columns: pa.Schema, *, byte_stream_split: bool) -> dict[str, Any]:
    """What pyarrow's Parquet writers are told."""
    vectors = _vectors(columns)
    split = [field.name for field in vectors if byte_stream_split and field.type.value_type == pa.float32()]
    return {
        "compression": "zstd",
        "compression_level": _ZSTD_LEVEL,
        "use_dictionary": [field.name for field in columns if pa.types.is_string(field.type)],
        "write_statistics": [field.name for field in columns if field not in vectors],
        # The path of the leaf: pyarrow passes over a wrong one in silence.
        "column_encoding": {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in split} or None,
    }
