"""Parts written: the rows of a block, rejects, tables; and rows that are copied from other parts."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import storage
from layerbeam.transforms.columns import schema
from layerbeam.transforms.commits import Commit, FileRange, Part, Rejected, name_of, printable
from layerbeam.transforms.layout import EMPTY, REJECTS, part_name, rejects_path
from layerbeam.transforms.parts import format_of, part_folder, part_path, read_rejects, read_tables, table_path
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views import View

_GZIP_LEVEL = 1
_COPIED_BYTES = 1 << 20


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


class Move(NamedTuple):
    """What a commit holds of a file, and the same bytes as they are found now: perhaps of another file, or lower."""

    source: FileRange
    target: FileRange

    def is_of(self, file: str) -> bool:
        """Whether rows or rejects that name this file are those of the source."""
        return file == printable(self.source.file.path)

    def moved_table(self, table: pa.Table, *, is_pack: bool) -> pa.Table:
        """The rows of the source, as the target has them."""
        rows = table.filter(pc.equal(table["file"], printable(self.source.file.path))) if is_pack else table
        columns = {
            "file": lambda: pa.repeat(printable(self.target.file.path), rows.num_rows),
            "line": lambda: pc.add(rows["line"], self.target.first_line - self.source.first_line),
        }
        for name in columns.keys() & set(rows.column_names):
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(name), columns[name]())
        return rows

    def moved_reject(self, reject: Rejected) -> Rejected:
        """The same reject, as the target has it."""
        byte = reject.byte_offset
        return dataclasses.replace(
            reject,
            file=self.target.file.path,
            line=reject.line + self.target.first_line - self.source.first_line,
            byte_offset=byte if byte < 0 else byte + self.target.first_byte - self.source.first_byte,
        )


def copy_files(output: Output, views: Sequence[View], commit: Commit, moves: Sequence[Move]) -> Commit:
    """The commit of files whose rows are copied from the parts of another commit; nothing is encoded.

    OSError, ValueError or pa.ArrowException if a part cannot be read, or is not what was written.
    """
    files = [move.target for move in moves]
    name, is_pack = name_of(files), len(commit.files) > 1
    parts = {}
    for view in views:
        if (folder := part_folder(view)) not in commit.parts:
            continue
        path = _checked(output, commit.parts[folder])
        if view.aggregates:  # sums know neither files nor lines
            parts[folder] = _copy(output, view, name, path, commit.parts[folder])
            continue
        whole = pa.concat_tables(read_tables(path, schema(view)))
        table = pa.concat_tables([move.moved_table(whole, is_pack=is_pack) for move in moves]).combine_chunks()
        if table.num_rows:
            parts[folder] = write_part(output, view, name, table)
    if REJECTS in commit.parts:
        found = list(filter(None, read_rejects(_checked(output, commit.parts[REJECTS]))))
        rejected = [move.moved_reject(one) for move in moves for one in found if not is_pack or move.is_of(one.file)]
        if rejected:
            parts[REJECTS] = write_rejects(output, name, rejected)
    counted = tuple(dataclasses.replace(move.target, counts=move.source.counts) for move in moves)
    return Commit(name, commit.fingerprint, counted, parts, output.attempt)


def _checked(output: Output, part: Part) -> str:
    """The path of a part. ValueError if its bytes are not those that were written."""
    path = storage.join(output.path, part.path)
    if storage.hash_file(path)[0] != part.sha256:
        raise ValueError(f"{path} has changed since it was written")
    return path


def _copy(output: Output, view: View, name: str, path: str, part: Part) -> Part:
    """The same bytes under the name of another block."""

    def path_of(sha256: str) -> str:
        return part_path(view, part_name(name, sha256))

    with storage.open_binary(path) as source, output.write_atomically(path_of) as file:
        shutil.copyfileobj(source, file, _COPIED_BYTES)
    return dataclasses.replace(part, path=path_of(file.sha256))


def can_copy(commit: Commit) -> bool:
    """Whether the rows of its files can be told apart by the column `file`."""
    return len({printable(file.path) for file in commit.inputs}) == len(commit.files)
