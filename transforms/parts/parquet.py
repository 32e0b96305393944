"""Parquet parts: zstd, unless `compress` is false; strings and codes dictionary-encoded, other vectors plain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from layerbeam.transforms import storage
from layerbeam.transforms.parts.part_format import Output, PartFormat
from layerbeam.transforms.views.number_types import as_matrix, code_names, vector_names
from layerbeam.transforms.views.view import ViewSpec

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

    def write(self, view: ViewSpec, columns: pa.Schema, tables: Iterable[pa.Table], file: Any, output: Output) -> None:
        metadata = {b"layerbeam.view": view.name.encode(), **(columns.metadata or {})}
        vectors = vector_names(columns)
        with open_writer(file, columns.with_metadata(metadata), compress=view.compress) as writer:
            for table in tables:
                num_bytes = sum(as_matrix(chunk).nbytes for name in vectors for chunk in table[name].chunks)
                row_group_size = max(ROW_GROUP_BYTES * table.num_rows // max(num_bytes, 1), 1)
                writer.write_table(table.replace_schema_metadata(metadata), row_group_size=row_group_size)

    def read(self, file: BinaryIO, path: str, columns: pa.Schema, names: list[str] | None) -> Iterator[pa.Table]:
        """A table per row group."""
        parquet = pq.ParquetFile(file)
        for number in range(parquet.num_row_groups):
            yield parquet.read_row_group(number, names)


def open_writer(file: Any, columns: pa.Schema, *, compress: bool = True) -> pq.ParquetWriter:
    """What writes tables with these columns to a file, with statistics of all but vectors."""
    vectors = vector_names(columns)
    # Plain, a code takes the 4 bytes of Parquet's smallest integer.
    codes = [_leaf(columns.field(name)) for name in code_names(columns)]
    return pq.ParquetWriter(
        file,
        columns,
        compression="zstd" if compress else "none",
        compression_level=_ZSTD_LEVEL if compress else None,
        use_dictionary=[*(field.name for field in columns if pa.types.is_string(field.type)), *codes],
        write_statistics=[name for name in columns.names if name not in vectors],
    )


def _leaf(vectors: pa.Field) -> str:
    """The path of a vector column's values: pyarrow silently ignores a wrong one."""
    return f"{vectors.name}{'.list.element' * (2 if pa.types.is_list(vectors.type) else 1)}"
