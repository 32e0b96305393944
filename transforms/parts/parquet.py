"""Parquet parts: zstd; strings and codes dictionary-encoded, other vectors plain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from layerbeam.transforms import storage
from layerbeam.transforms.number_types import code_names, vector_names
from layerbeam.transforms.parts.part_format import Output, PartFormat
from layerbeam.transforms.views import View

# Vectors hardly compress: level 1 is as small as the higher ones, and several times as fast.
_ZSTD_LEVEL = 1
ROW_GROUP_BYTES = 32 << 20


class ParquetFormat(PartFormat):
    """Row groups of about 32 MiB of vectors, no more than a table in each; the schema's metadata names the view."""

    suffix = ".parquet"
    gzips = False
    is_columnar = True
    sample_bytes = 512 << 20

    def open(self, path: str) -> BinaryIO:
        file: BinaryIO = storage.open_arrow(path)
        return file

    def write(self, view: View, columns: pa.Schema, tables: Iterable[pa.Table], file: Any, output: Output) -> None:
        metadata = {b"layerbeam.view": view.name.encode(), **(columns.metadata or {})}
        vectors = vector_names(columns)
        types = {name: columns.field(name).type for name in vectors}
        row_bytes = sum(type_.list_size * type_.value_type.bit_width // 8 for type_ in types.values())
        row_group_size = max(ROW_GROUP_BYTES // max(row_bytes, 1), 1)
        # For float32 vectors some 8 % smaller.
        split = [n for n in vectors if output.byte_stream_split and types[n].value_type == pa.float32()]
        # Plain, a code takes the 4 bytes of Parquet's smallest integer.
        codes = map(_leaf, code_names(columns))
        with pq.ParquetWriter(
            file,
            columns.with_metadata(metadata),
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=[*(field.name for field in columns if pa.types.is_string(field.type)), *codes],
            write_statistics=[name for name in columns.names if name not in vectors],
            column_encoding={_leaf(name): "BYTE_STREAM_SPLIT" for name in split} or None,
        ) as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(metadata), row_group_size=row_group_size)

    def read(self, file: BinaryIO, path: str, columns: pa.Schema, names: list[str] | None) -> Iterator[pa.Table]:
        """A table per row group."""
        parquet = pq.ParquetFile(file)
        for number in range(parquet.num_row_groups):
            yield parquet.read_row_group(number, names)


def _leaf(name: str) -> str:
    """The path of a vector column's values: pyarrow silently ignores a wrong one."""
    return f"{name}.list.element"
