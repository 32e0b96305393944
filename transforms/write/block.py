"""Blocks of vectors written as parts, and rejects as JSON Lines."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import TokenBlock, VectorBlock
from layerbeam.transforms.columns import make_table, schema
from layerbeam.transforms.commits import Commit, Part, Rejected, SkippedFile
from layerbeam.transforms.layout import EMPTY, REJECTS, part_name, rejects_path
from layerbeam.transforms.parts import format_of, part_path, table_path
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views import View
from layerbeam.transforms.write.word_types import row_groups, sum_words

UNKNOWN = "[UNK]"
_GZIP_LEVEL = 1


def write_part(output: Output, view: View, name: str, table: pa.Table) -> Part:
    """Write the view's rows of the block of that name as `<view>/<name>-<hash>.<format>`.

    Equal tables give equal bytes.
    """
    tables = row_groups(view, table) if view.aggregates else [table]
    return _write(output, view, lambda sha256: part_path(view, part_name(name, sha256)), tables)


def write_word_types(output: Output, view: View, number: int, of: int, table: pa.Table) -> Part:
    """Write part `number` of the table of a `word_type` view, which has `of` parts."""
    return _write(output, view, lambda _: table_path(view, number, of), [table])


def write_empty_part(output: Output, view: View) -> Part:
    """A part without rows, so that readers know the columns of a view that has none."""
    return _write(output, view, lambda _: part_path(view, EMPTY), [schema(view).empty_table()])


def _write(output: Output, view: View, path_of: Callable[[str], str], tables: Sequence[pa.Table]) -> Part:
    """Write a file whose path `path_of` gives from the SHA-256 of its bytes; the suffix is always the same."""
    any_path = path_of("")
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(output.write_whole(path_of))
        stream = file
        if any_path.endswith(".gz"):  # without time and name in the header, so that equal data gives equal bytes
            stream = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0))
        format_of(any_path).write(view, tables[0].schema, tables, stream, output)
    return Part(path_of(file.sha256), sum(table.num_rows for table in tables), file.num_bytes, file.sha256)


def write_rejects(output: Output, name: str, rejected: Sequence[Rejected]) -> Part:
    """Write one JSON object per rejected record; `raw` holds its bytes in base64."""

    def path_of(sha256: str) -> str:
        return rejects_path(part_name(name, sha256))

    with output.write_whole(path_of) as file:
        for reject in rejected:
            file.write(json.dumps(reject.to_json()).encode("ascii") + b"\n")
    return Part(path_of(file.sha256), len(rejected), file.num_bytes, file.sha256)


def count_tokens(tokens: TokenBlock, unknown_id: int) -> dict[str, int]:
    """Counts of a block: tokens with a vector, [UNK] tokens, truncated texts and the tokens they lost."""
    return {
        metrics.TOKENS: int(np.count_nonzero(tokens.start >= 0)),
        metrics.UNKNOWN_TOKENS: int(np.count_nonzero(tokens.token_ids == unknown_id)),
        metrics.TRUNCATED_TEXTS: int(np.count_nonzero(tokens.num_dropped)),
        metrics.DROPPED_TOKENS: int(tokens.num_dropped.sum()),
    }


def write_parts(
    output: Output, views: Sequence[View], vocabulary: pa.StringArray, block: VectorBlock
) -> Commit | SkippedFile:
    """Write the parts and the rejects of one block. Returns what to commit: `put_commit` makes the block done.

    If an earlier commit lists parts of the same texts, these stay as they are. `SkippedFile` instead of a commit if the
    file has changed since it was found.
    """
    text = block.tokens.text
    name = text.block.name
    problem = metrics.unbalanced(text.counts)
    if problem is not None:
        raise AssertionError(f"{name}: records are missing: {problem}")
    counts = text.counts | count_tokens(block.tokens, vocabulary.index(UNKNOWN).as_py())
    for rows in block.tokens.rows.values():
        counts |= rows.counts
    # Other counts mean that a new view adds or rejects texts. Then batches, and so rounding, may differ in all views.
    earlier = text.earlier
    is_kept = earlier is not None and earlier.counts.items() <= counts.items()
    parts = dict(earlier.parts) if earlier is not None and is_kept else {}
    for view in views:
        if view.name in parts:
            continue
        vectors = block.vectors[view.name]
        table = (
            sum_words(view, block.tokens, vectors)
            if view.aggregates
            else make_table(view, block.tokens, vectors, vocabulary)
        )
        if table.num_rows:
            parts[view.name] = write_part(output, view, name, table)
    if text.rejected and REJECTS not in parts:
        parts[REJECTS] = write_rejects(output, name, text.rejected)
    change = storage.find_change(text.block.file)
    if change is not None:
        return change
    return Commit(output.fingerprint, text.block, counts, parts, output.attempt)
