"""Blocks of vectors written as parts, rejects as JSON Lines, and the commit last."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import TokenBlock, VectorBlock
from layerbeam.transforms.columns import make_table, schema
from layerbeam.transforms.commits import Commit, Part, Rejected, SkippedFile
from layerbeam.transforms.parts import part_path, table_name
from layerbeam.transforms.parts.jsonl import write_jsonl
from layerbeam.transforms.parts.parquet import parquet_options, row_group_size, write_parquet
from layerbeam.transforms.parts.tfrecord import write_tfrecord
from layerbeam.transforms.views import View
from layerbeam.transforms.write.word_types import make_word_types, sum_words

REJECTS = "rejects"
COMMITS = "_commits"
TEMPORARY = "_tmp"
UNKNOWN = "[UNK]"
_GZIP_LEVEL = 1


@dataclasses.dataclass(frozen=True)
class Output:
    """Where a run's files go and what marks them as its own."""

    path: str
    fingerprint: str
    byte_stream_split: bool = False

    @property
    def temporary(self) -> str:
        return storage.join(self.path, TEMPORARY)


def _metadata(output: Output, view: View) -> dict[str, str]:
    return {"layerbeam.fingerprint": output.fingerprint, "layerbeam.view": view.name}


def write_part(output: Output, view: View, name: str, table: pa.Table) -> Part:
    """Write the view's rows of one block under `<view>/<name>.<format>`; equal tables give equal bytes."""
    path = part_path(view, name)
    with storage.write_whole(storage.join(output.path, path), temporary=output.temporary) as file:
        if view.format == "parquet" or view.aggregates:  # a block's sums are for the end of the run only
            write_parquet(table, file, metadata=_metadata(output, view), byte_stream_split=output.byte_stream_split)
        else:
            with gzip_stream(file) if view.compress else contextlib.nullcontext(file) as stream:
                if view.format == "tfrecord":
                    scratch = output.temporary if storage.is_local(output.path) else None
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
    with storage.write_whole(storage.join(output.path, path), temporary=output.temporary) as file:
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
    with storage.write_whole(storage.join(output.path, path), temporary=output.temporary) as file:
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
) -> Commit | SkippedFile:
    """Write all that one block gives: its parts, its rejects, and at last the commit that makes it done.

    `SkippedFile` instead of a commit where the file is no longer what it was when it was found.
    """
    text = block.tokens.text
    problem = metrics.unbalanced(text.counts)
    if problem is not None:
        raise AssertionError(f"{text.block.name}: records are missing: {problem}")
    name = text.block.name
    commit_path = storage.join(output.path, COMMITS, f"{name}.json")
    paths = [*(part_path(view, name) for view in views), f"{REJECTS}/{name}.jsonl"]
    if any(storage.exists(storage.join(output.path, path)) for path in paths):
        # An earlier commit may list these files. What is empty says that it holds no longer, however this run ends.
        with storage.write_whole(commit_path, temporary=output.temporary):
            pass
    parts = {}
    for view in views:
        vectors = block.vectors[view.name]
        if view.aggregates:
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
    change = storage.find_change(text.block.file)
    if change is not None:
        return change
    commit = Commit(output.fingerprint, text.block, counts, parts)
    with storage.write_whole(commit_path, temporary=output.temporary) as file:
        file.write(json.dumps(commit.to_json(), sort_keys=True).encode("ascii"))
    return commit
