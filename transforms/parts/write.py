"""Parts written: the rows of a block, rejects, tables; and rows that are copied from other parts."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import TextBlock
from layerbeam.transforms.flow.commits import Commit, FileRange, Part, Rejected, name_of, printable
from layerbeam.transforms.flow.layout import EMPTY, REJECTS, part_name, rejects_path
from layerbeam.transforms.parts import format_of, parse_rejects, part_folder, part_path, table_path
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.view import ViewSpec

_GZIP_LEVEL = 1
# What `copy_files` raises if it cannot copy.
NOT_COPIED = (OSError, ValueError, pa.ArrowException)


def write_part(output: Output, view: ViewSpec, name: str, *tables: pa.Table) -> Part:
    """Write the view's rows of the block of that name as `<view>/<name>-<hash>.<format>`.

    Equal tables give equal bytes. In Parquet each is a row group, or several.
    """
    return _write(output, view, lambda sha256: part_path(view, part_name(name, sha256)), tables)


def write_word_types(output: Output, view: ViewSpec, number: int, of: int, table: pa.Table) -> Part:
    """Write part `number` of the table of a `word_type` view, which has `of` parts."""
    return _write(output, view, lambda _: table_path(view, number, of), [table])


def write_empty_part(output: Output, view: ViewSpec) -> Part:
    """A part without rows, so that readers know the columns of a view that has none."""
    return _write(output, view, lambda _: part_path(view, EMPTY), [schema(view).empty_table()])


def _write(output: Output, view: ViewSpec, path_of: Callable[[str], str], tables: Sequence[pa.Table]) -> Part:
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


class Move(NamedTuple):
    """What a commit holds of a file, and the same bytes as they are found now: perhaps of another file, or lower.

    `texts`: of the target, if its texts only are the same, and its other fields may be others.
    """

    source: FileRange
    target: FileRange
    texts: TextBlock | None = None

    def moved_table(self, table: pa.Table, *, is_pack: bool) -> pa.Table:
        """The rows of the source, as the target has them."""
        rows = table.filter(pc.equal(table["file"], printable(self.source.file.path))) if is_pack else table
        columns = {
            "file": pa.repeat(printable(self.target.file.path), rows.num_rows),
            "line": pc.add(rows["line"], self.target.first_line - self.source.first_line),
        }
        for name in columns.keys() & set(rows.column_names):  # extract_features.py's lines know no file
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), columns[name])
        return rows if self.texts is None else _with_fields(rows, self.texts)

    def counted(self) -> FileRange:
        """The target, as its commit has it."""
        counts = dict(self.source.counts)
        if self.texts is not None and metrics.DUPLICATE_IDS in counts:
            counts[metrics.DUPLICATE_IDS] = self.texts.total(metrics.DUPLICATE_IDS)
        return dataclasses.replace(self.target, counts=counts, texts=self.source.texts)

    def moved_reject(self, reject: Rejected) -> Rejected:
        """The same reject, as the target has it."""
        byte = reject.byte_offset
        return dataclasses.replace(
            reject,
            file=self.target.file.path,
            line=reject.line + self.target.first_line - self.source.first_line,
            byte_offset=byte if byte < 0 else byte + self.target.first_byte - self.source.first_byte,
        )


def _with_fields(rows: pa.Table, texts: TextBlock) -> pa.Table:
    """The rows with the fields that their records have now."""
    record = np.searchsorted(texts.line, rows["line"].to_numpy()) if "line" in rows.column_names else None
    for name in texts.fields.keys() & set(rows.column_names):
        values = texts.fields[name].take(pa.array(record))
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
    return rows


def copy_files(output: Output, views: Sequence[ViewSpec], commit: Commit, moves: Sequence[Move]) -> Commit:
    """The commit of files whose rows are copied from the parts of another commit; nothing is encoded.

    NOT_COPIED if a part cannot be read, or is not what was written, or if two files print alike.
    """
    if len({printable(file.path) for file in commit.inputs}) < len(commit.files):
        raise ValueError("two files of a pack have names that print alike")
    files = [move.target for move in moves]
    name, is_pack = name_of(files), len(commit.files) > 1
    parts = {}
    for view in views:
        if (folder := part_folder(view)) not in commit.parts:
            continue
        data = _read(output, commit.parts[folder])
        if view.aggregates:  # sums know neither files nor lines
            parts[folder] = _write_bytes(output, view, name, data, commit.parts[folder])
            continue
        path = commit.parts[folder].path
        whole = pa.concat_tables(format_of(path).read(io.BytesIO(data), path, schema(view), None))
        table = pa.concat_tables([move.moved_table(whole, is_pack=is_pack) for move in moves]).combine_chunks()
        if table.num_rows:
            parts[folder] = write_part(output, view, name, table)
    if REJECTS in commit.parts:
        found = list(filter(None, parse_rejects(_read(output, commit.parts[REJECTS]))))
        rejected = [
            move.moved_reject(reject)
            for move in moves
            for reject in found
            if not is_pack or reject.file == printable(move.source.file.path)
        ]
        if rejected:
            parts[REJECTS] = write_rejects(output, name, rejected)
    counted = tuple(move.counted() for move in moves)
    return Commit(name, commit.fingerprint, counted, parts, output.attempt, made_with=commit.made_with)


def _read(output: Output, part: Part) -> bytes:
    """The bytes of a part. ValueError if they are not those that were written."""
    data = storage.read_bytes(storage.join(output.path, part.path))
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise ValueError(f"{part.path} has changed since it was written")
    return data


def _write_bytes(output: Output, view: ViewSpec, name: str, data: bytes, part: Part) -> Part:
    """The bytes of a part under the name of another block."""

    def path_of(sha256: str) -> str:
        return part_path(view, part_name(name, sha256))

    with output.write_atomically(path_of) as file:
        file.write(data)
    return dataclasses.replace(part, path=path_of(file.sha256))
