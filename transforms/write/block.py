"""Blocks of vectors written as parts, rejects as JSON Lines, and the commit last."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import TokenBlock, VectorBlock
from layerbeam.transforms.columns import make_table, schema
from layerbeam.transforms.commits import Commit, Part, Rejected, SkippedFile
from layerbeam.transforms.layout import EMPTY, REJECTS, commit_path, rejects_path
from layerbeam.transforms.parts import FORMATS, block_format, part_path, table_path
from layerbeam.transforms.parts.part_format import Output, PartFormat
from layerbeam.transforms.views import View
from layerbeam.transforms.write.word_types import make_word_types, sum_words

UNKNOWN = "[UNK]"
_GZIP_LEVEL = 1


def write_part(output: Output, view: View, name: str, table: pa.Table) -> Part:
    """Write the view's rows of one block under `<view>/<name>.<format>`; equal tables give equal bytes."""
    path = part_path(view, name)
    return _write(output, view, path, block_format(view), table.schema, [table], table.num_rows)


def write_word_types(output: Output, view: View, parts: Sequence[Part]) -> Part:
    """Write the table of a `word_type` view, from the parts of all blocks, as `<view>/word_types.<format>`."""
    rows, tables = make_word_types(output.path, view, parts)
    return _write(output, view, table_path(view), FORMATS[view.format], schema(view), tables, rows)


def write_empty_part(output: Output, view: View) -> Part:
    """A part without rows, so that readers know the columns of a view that has none."""
    return write_part(output, view, EMPTY, schema(view).empty_table())


def _write(
    output: Output,
    view: View,
    path: str,
    format_: PartFormat,
    columns: pa.Schema,
    tables: Iterable[pa.Table],
    rows: int,
) -> Part:
    with storage.write_whole(storage.join(output.path, path), temporary=output.temporary) as file:
        gzips = view.compress and format_.gzips
        with gzip_stream(file) if gzips else contextlib.nullcontext(file) as stream:
            format_.write(view, columns, tables, stream, output)
    return Part(path, rows, file.num_bytes, file.sha256)


def gzip_stream(file: Any) -> gzip.GzipFile:
    """A stream that compresses into the file; no time and no name in the header, so equal data gives equal bytes."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=file, mtime=0)


def write_rejects(output: Output, name: str, rejected: Iterable[Rejected]) -> Part:
    """Write one JSON object per rejected record; `raw` holds its bytes in base64."""
    path = rejects_path(name)
    rows = 0
    with storage.write_whole(storage.join(output.path, path), temporary=output.temporary) as file:
        for reject in rejected:
            file.write(json.dumps(reject.to_json()).encode("ascii") + b"\n")
            rows += 1
    return Part(path, rows, file.num_bytes, file.sha256)


def count_tokens(tokens: TokenBlock, unknown_id: int) -> dict[str, int]:
    """Counts of a block: tokens with a vector, [UNK] tokens, truncated texts and the tokens they lost."""
    return {
        metrics.TOKENS: int(np.count_nonzero(tokens.start >= 0)),
        metrics.UNKNOWN_TOKENS: int(np.count_nonzero(tokens.token_ids == unknown_id)),
        metrics.TRUNCATED_TEXTS: int(np.count_nonzero(tokens.num_dropped)),
        metrics.DROPPED_TOKENS: int(tokens.num_dropped.sum()),
    }


def write_block(
    output: Output, views: Sequence[View], vocabulary: pa.StringArray, block: VectorBlock
) -> Commit | SkippedFile:
    """Write the parts and the rejects of one block, and last the commit that makes the block done.

    `SkippedFile` instead of a commit if the file has changed since it was found.
    """
    text = block.tokens.text
    name = text.block.name
    problem = metrics.unbalanced(text.counts)
    if problem is not None:
        raise AssertionError(f"{name}: records are missing: {problem}")
    commit_file = storage.join(output.path, commit_path(name))
    paths = [*(part_path(view, name) for view in views), rejects_path(name)]
    if any(storage.exists(storage.join(output.path, path)) for path in paths):
        # An earlier commit may list these files. An empty one invalidates it, however this run ends.
        with storage.write_whole(commit_file, temporary=output.temporary):
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
    with storage.write_whole(commit_file, temporary=output.temporary) as file:
        file.write(json.dumps(commit.to_json(), sort_keys=True).encode("ascii"))
    return commit
