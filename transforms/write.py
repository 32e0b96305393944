"""Blocks of vectors written as parts, rejects as JSON Lines, and the commit last."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transforms import filesystem, metrics
from transforms.jsonl_parts import write_jsonl
from transforms.parts import part_path, table_name
from transforms.records import Commit, LeftOut, Part, Rejected, TokenBlock, VectorBlock
from transforms.tfrecord_parts import write_tfrecord
from transforms.views import View, make_table, schema
from transforms.word_types import make_word_types, sum_words

REJECTS = "rejects"
COMMITS = "_commits"
TEMPORARY = "_tmp"
UNKNOWN = "[UNK]"

# Vectors hardly compress: level 1 is as small as the higher ones, and several times as fast.
_ZSTD_LEVEL = 1
_ROW_GROUP_BYTES = 32 << 20
_GZIP_LEVEL = 1


@dataclasses.dataclass(frozen=True)
class Output:
    """Where a run's files go and what marks them as its own."""

    path: str
    fingerprint: str
    byte_stream_split: bool = False

    @property
    def temporary(self) -> str:
        return filesystem.join(self.path, TEMPORARY)


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


def _metadata(output: Output, view: View) -> dict[str, str]:
    return {"layerbeam.fingerprint": output.fingerprint, "layerbeam.view": view.name}


def write_part(output: Output, view: View, name: str, table: pa.Table) -> Part:
    """Write the view's rows of one block under `<view>/<name>.<format>`; equal tables give equal bytes."""
    path = part_path(view, name)
    with filesystem.write_whole(filesystem.join(output.path, path), temporary=output.temporary) as file:
        if view.format == "parquet" or view.level == "word_type":  # a block's sums are for the end of the run only
            write_parquet(table, file, metadata=_metadata(output, view), byte_stream_split=output.byte_stream_split)
        else:
            with gzip_stream(file) if view.compress else contextlib.nullcontext(file) as stream:
                if view.format == "tfrecord":
                    scratch = output.temporary if filesystem.is_local(output.path) else None
                    write_tfrecord(view, table, stream, scratch=scratch)
                else:
                    write_jsonl(view, table, stream)
    return Part(path, table.num_rows, file.num_bytes, file.sha256)


def gzip_stream(file: Any) -> gzip.GzipFile:
    """What is written goes compressed into the file, without a clock or a name in its header."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=file, mtime=0)


def write_word_types(output: Output, view: View, parts: Sequence[Part]) -> Part:
    """Write the table of a `word_type` view, from the parts of all blocks, as `<view>/word_types.<format>`."""
    path = f"{view.name}/{table_name(view)}"
    rows, tables = make_word_types(output.path, view, parts)
    columns = schema(view).with_metadata(_metadata(output, view))
    with filesystem.write_whole(filesystem.join(output.path, path), temporary=output.temporary) as file:
        if view.format == "parquet":
            options = parquet_options(columns, byte_stream_split=output.byte_stream_split)
            with pq.ParquetWriter(file, columns, **options) as writer:
                for table in tables:
                    table = table.replace_schema_metadata(columns.metadata)
                    writer.write_table(table, row_group_size=row_group_size(columns))
        else:
            with gzip_stream(file) if view.compress else contextlib.nullcontext(file) as stream:
                for table in tables:
                    write_jsonl(view, table, stream)
    return Part(path, rows, file.num_bytes, file.sha256)


def write_empty_part(output: Output, view: View) -> Part:
    """A part without rows, so that the columns of a view that has none can be read."""
    return write_part(output, view, "empty", schema(view).empty_table())


def write_rejects(output: Output, name: str, rejected: Iterable[Rejected]) -> Part:
    """Write one JSON object per rejected record; `raw` holds its bytes in base64."""
    path = f"{REJECTS}/{name}.jsonl"
    rows = 0
    with filesystem.write_whole(filesystem.join(output.path, path), temporary=output.temporary) as file:
        for reject in rejected:
            file.write(json.dumps(reject.to_json()).encode("ascii") + b"\n")
            rows += 1
    return Part(path, rows, file.num_bytes, file.sha256)


def count_tokens(tokens: TokenBlock, unknown_id: int) -> dict[str, int]:
    """Of a block's texts: tokens with a vector, those that the vocabulary does not know, those lost."""
    return {
        metrics.TOKENS: int(np.count_nonzero(tokens.start >= 0)),
        metrics.UNKNOWN_TOKENS: int(np.count_nonzero(tokens.token_ids == unknown_id)),
        metrics.TRUNCATED_TEXTS: int(np.count_nonzero(tokens.num_dropped)),
        metrics.DROPPED_TOKENS: int(tokens.num_dropped.sum()),
    }


def write_block(
    output: Output, views: Sequence[View], vocabulary: pa.StringArray, block: VectorBlock
) -> Commit | LeftOut:
    """Write all that one block gives: its parts, its rejects, and at last the commit that makes it done.

    `LeftOut` instead of a commit where the file is no longer what it was when it was found.
    """
    text = block.tokens.text
    problem = metrics.unbalanced(text.counts)
    if problem is not None:
        raise AssertionError(f"{text.block.name}: records are missing: {problem}")
    name = text.block.name
    commit_path = filesystem.join(output.path, COMMITS, f"{name}.json")
    paths = [*(part_path(view, name) for view in views), f"{REJECTS}/{name}.jsonl"]
    if any(filesystem.exists(filesystem.join(output.path, path)) for path in paths):
        # An earlier commit may list these files. What is empty says that it holds no longer, however this run ends.
        with filesystem.write_whole(commit_path, temporary=output.temporary):
            pass
    parts = {}
    for view in views:
        vectors = block.vectors[view.name]
        if view.level == "word_type":
            table = sum_words(view, block.tokens, vectors)
        else:
            table = make_table(view, block.tokens, vectors, vocabulary)
        if table.num_rows:
            parts[view.name] = write_part(output, view, name, table)
    if text.rejected:
        parts[REJECTS] = write_rejects(output, name, text.rejected)
    counts = text.counts | count_tokens(block.tokens, vocabulary.index(UNKNOWN).as_py())
    for rows in block.tokens.rows.values():
        counts |= rows.counts
    change = filesystem.find_change(text.block.file)
    if change is not None:
        return change
    commit = Commit(output.fingerprint, text.block, counts, parts)
    with filesystem.write_whole(commit_path, temporary=output.temporary) as file:
        file.write(json.dumps(commit.to_json(), sort_keys=True).encode("ascii"))
    return commit


@beam.typehints.with_input_types(VectorBlock)
class WriteBlocks(beam.DoFn):
    """`VectorBlock` -> `Commit`, after everything that it lists is written, or `LeftOut` where the file has changed."""

    def __init__(self, output: Output, views: tuple[View, ...], vocabulary: tuple[str, ...]) -> None:
        self._output = output
        self._views = views
        self._vocabulary = vocabulary

    def setup(self) -> None:
        self._tokens = pa.array(self._vocabulary, pa.string())

    def process(self, block: VectorBlock) -> Iterator[Commit | LeftOut]:
        with metrics.timed(metrics.WRITE_TIME):
            done = write_block(self._output, self._views, self._tokens, block)
        if isinstance(done, Commit):
            for name in (metrics.TOKENS, metrics.UNKNOWN_TOKENS, metrics.TRUNCATED_TEXTS, metrics.DROPPED_TOKENS):
                metrics.count(name, done.counts[name])
            metrics.count(metrics.BLOCKS_WRITTEN, 1)
        yield done
