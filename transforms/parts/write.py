"""Parts written: the rows of a block, rejects, tables; and the rows of some files copied from a part that has more."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import storage
from layerbeam.transforms.columns import schema
from layerbeam.transforms.commits import Commit, FileRange, Part, Rejected, name_of, printable
from layerbeam.transforms.layout import EMPTY, REJECTS, part_name, rejects_path
from layerbeam.transforms.parts import format_of, part_path, read_rejects, read_tables, table_path
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views import View

_GZIP_LEVEL = 1


def write_part(output: Output, view: View, name: str, *tables: pa.Table) -> Part:
    """Write the view's rows of the block of that name as `<view>/<name>-<hash>.<format>`.

    Equal tables give equal bytes. In Parquet each is a row group, or several.
    """
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
        file: Any = stack.enter_context(output.write_atomically(path_of))
        stream = file
        if any_path.endswith(".gz"):  # without time and name in the header, so that equal data gives equal bytes
            stream = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0))
        format_of(any_path).write(view, tables[0].schema, tables, stream, output)
    return Part(path_of(file.sha256), sum(table.num_rows for table in tables), file.num_bytes, file.sha256)


def write_rejects(output: Output, name: str, rejected: Sequence[Rejected]) -> Part:
    """Write one JSON object per rejected record; `raw` holds its bytes in base64."""

    def path_of(sha256: str) -> str:
        return rejects_path(part_name(name, sha256))

    with output.write_atomically(path_of) as file:
        for reject in rejected:
            file.write(json.dumps(reject.to_json()).encode("ascii") + b"\n")
    return Part(path_of(file.sha256), len(rejected), file.num_bytes, file.sha256)


def copy_files(output: Output, views: Sequence[View], commit: Commit, files: Sequence[FileRange]) -> Commit:
    """The commit of some of a pack's files, after their rows are copied from its parts; nothing is encoded.

    `files`: as they are now, in the pack's order.
    """
    name, shown = name_of(files), [printable(own.file.path) for own in files]
    parts = {}
    for view in views:
        if view.name in commit.parts:
            tables = read_tables(storage.join(output.path, commit.parts[view.name].path), schema(view))
            kept = [table.filter(pc.is_in(table["file"], pa.array(shown))) for table in tables]
            table = pa.concat_tables(kept).combine_chunks()
            if table.num_rows:
                parts[view.name] = write_part(output, view, name, table)
    if REJECTS in commit.parts:
        found = read_rejects(storage.join(output.path, commit.parts[REJECTS].path))
        rejected = [reject for reject in found if reject is not None and reject.file in shown]
        if rejected:
            parts[REJECTS] = write_rejects(output, name, rejected)
    counts = {own.file.path: own.counts for own in commit.files}
    counted = tuple(dataclasses.replace(own, counts=counts[own.file.path]) for own in files)
    return Commit(name, commit.fingerprint, counted, parts, output.attempt)


def can_copy(commit: Commit) -> bool:
    """Whether the rows of its files can be told apart by the column `file`."""
    return len({printable(file.path) for file in commit.inputs}) == len(commit.files)
