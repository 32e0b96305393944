"""CSV and TSV files cut into blocks and decoded, by Python's own parser.

A field in quotes may hold line breaks, so only a parser that begins at the file's start knows where a row ends. One
worker therefore scans a whole file for the ends of its blocks; the blocks are then read and encoded in parallel. The
first block begins with the row of column names, and the hash of every block covers that row.

The parser reads each byte as a character, and the fields are decoded afterwards. It is strict: after a quote in the
wrong place the row is rejected, and the next line begins a new one. A row that is too long is not parsed: it ends with
the first line end that has an even number of quotes before it. The first row counts with the names of the columns.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import FIELD_TYPES, Slice, TextBlock
from layerbeam.transforms.commits import FileRange, InputFile
from layerbeam.transforms.input import text
from layerbeam.transforms.input.content import HEAD_BYTES, UTF8_MARK, refusing_other_content
from layerbeam.transforms.input.input_format import InputFormat
from layerbeam.transforms.input.records import INT64, Records, UnreadableFileError, too_long, wrong_column_error
from layerbeam.transforms.settings import BlockLimits, RecordFormat

# The parser's limit is one for the whole process, and that of a record is no higher. A character takes four bytes.
csv.field_size_limit(1 << 28)

_RUN_BYTES = 1 << 20
_INTEGER = re.compile(r"([+-]?[0-9]+)(\.0*)?")
_REASONS = {
    "unexpected end of data": "a quote is opened and not closed",
    "new-line character seen in unquoted field": "a carriage return is not in quotes",
}


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row: its bytes with the line end, how many lines these are, and its fields or why it has none.

    One that is too long comes in pieces, and the last one `ends` it.
    """

    raw: bytes
    num_lines: int
    fields: list[str]
    problem: str | None
    ends: bool = True


# What often separates fields, with a word for it; and what does by default.
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
USUAL_DELIMITER = {"csv": ",", "tsv": "\t"}


@dataclasses.dataclass(frozen=True)
class _Header:
    """The names of the columns, and the bytes of the row that has them; none if they are in the configuration."""

    names: list[str]
    raw: bytes


class CsvInput(InputFormat):
    """Rows of fields, separated by commas unless `input.delimiter` says otherwise."""

    title = "CSV"
    endings = (".csv",)

    def cut(
        self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat
    ) -> Iterator[tuple[FileRange, tuple[_Header, bytes]]]:
        """Identity and content of each block of the slice.

        Raises UnreadableFileError if the file lacks a column that the configuration names.
        """
        header = read_header(slice_.file, record_format)
        if header is not None:
            runs = _find_rows(slice_, record_format, has_header=bool(header.raw) and slice_.start == 0)
            key = _key_of(header, record_format)
            for block, raw in text.into_blocks(slice_, limits, record_format, runs, also_hashed=header.raw, key=key):
                yield block, (header, raw)

    def read(self, block: FileRange, record_format: RecordFormat) -> tuple[_Header, bytes]:
        """The block's content, read again. Raises UnreadableFileError if the file has other bytes at that place."""
        header = read_header(block.file, record_format) or _Header([], b"")
        return header, text.read_bytes(block, also_hashed=header.raw)

    def decode(self, block: FileRange, content: tuple[_Header, bytes], record_format: RecordFormat) -> TextBlock:
        """The block's rows as texts. An empty line is blank."""
        header, raw = content
        at_start = block.first_byte == 0
        is_cut = len(raw) < block.end_byte - block.first_byte
        names = header.raw if at_start else b""
        rows = list(_parse(io.BytesIO(names if is_cut else raw), record_format, at_file_start=at_start))
        if is_cut:
            rows.append(_Row(raw[len(names) :], 0, [], too_long(record_format)))
        line = block.first_line + np.cumsum([0, *(row.num_lines for row in rows)])
        place = block.first_byte + np.cumsum([0, *(len(row.raw) for row in rows)])
        skipped = int(at_start and bool(header.raw))
        rows, line, place = rows[skipped:], line[skipped:-1], place[skipped:-1]
        raws = pa.array([row.raw.rstrip(b"\r\n") for row in rows], pa.binary())
        records = Records(block, record_format, line, place, raws)
        whole: list[list[str] | None] = []
        for index, row in enumerate(rows):
            problem = row.problem
            is_whole = len(row.fields) == len(header.names)
            is_empty = not any(map(str.strip, row.fields)) and not is_whole
            if problem is None and not is_whole and not is_empty:
                problem = f"has {len(row.fields)} fields, not {len(header.names)}"
            if problem is not None:
                records.reasons[index] = problem
            whole.append(row.fields if is_whole and problem is None else None)
        columns = []
        for name, type_ in record_format.fields_read:
            column = header.names.index(name)
            values = [None if fields is None else fields[column] for fields in whole]
            if type_ in ("string", "id"):
                given = [None if v is None or (type_ == "id" and not v) else v.encode("latin-1") for v in values]
                columns.append(records.decode(pa.array(given, pa.binary()), name))
            else:
                columns.append(_numbers(values, name, type_, records.reasons))
        return records.to_block(columns)

    def count(self, file: InputFile, record_format: RecordFormat, at_most: int) -> int:
        """The rows of a file, or `at_most` if it has more."""
        with storage.open_binary(file.path) as opened:
            chunks = refusing_other_content(storage.read_chunks(opened, file.path), record_format)
            parsed = _parse(_lines(chunks, record_format), record_format, at_file_start=True)
            rows = (row for row in parsed if row.ends)
            if record_format.column_names is None:
                next(rows, None)
            return sum(1 for _ in itertools.islice(rows, at_most))


def _key_of(header: _Header, record_format: RecordFormat) -> text.Key:
    """The text and the pair of a row; of a row that has none, all of it."""
    names = [name for name in (record_format.text_field, record_format.pair_field) if name is not None]
    columns = [header.names.index(name) for name in names]

    def key(raw: bytes) -> bytes:
        fields = next(_parse(io.BytesIO(raw), record_format, at_file_start=False)).fields
        return "".join(fields[column] for column in columns).encode("latin-1") if len(fields) > max(columns) else raw

    return key


class TsvInput(CsvInput):
    """Rows of fields, separated by tabs unless `input.delimiter` says otherwise."""

    title = "TSV"
    endings = (".tsv",)


def read_header(file: InputFile, record_format: RecordFormat) -> _Header | None:
    """The columns of a file; None if it is empty. Raises UnreadableFileError if one lacks that is configured."""
    end = None if storage.is_compressed(file.path) else HEAD_BYTES
    with storage.open_binary(file.path, end) as opened:
        chunks = refusing_other_content(storage.read_chunks(opened, file.path, HEAD_BYTES), record_format)
        first = next(_parse(_lines(chunks, record_format), record_format, at_file_start=True), None)
    if first is None:
        return None
    if record_format.column_names is not None:
        header = _Header(record_format.column_names, b"")
    else:
        if first.problem is not None:
            raise UnreadableFileError(f"its first row, with the names of the columns, {first.problem}")
        try:
            names = [field.encode("latin-1").decode(record_format.encoding) for field in first.fields]
        except UnicodeDecodeError as error:
            raise UnreadableFileError(f"its first row, with the names of the columns, is not text: {error}") from error
        header = _Header(names, first.raw)
    for name, _ in record_format.fields_read:
        if header.names.count(name) != 1:
            raise wrong_column_error(name, header.names)
    return header


def _lines(chunks: Iterable[bytes], record_format: RecordFormat) -> Iterator[bytes]:
    for run in storage.whole_lines(chunks, record_format.max_record_bytes):
        yield from io.BytesIO(run) if b"\n" in run else [run]  # without a copy of a piece of a long line


def _parse(lines: Iterator[bytes], record_format: RecordFormat, *, at_file_start: bool) -> Iterator[_Row]:
    taken, size = list[bytes](), 0

    def take() -> Iterator[str]:
        nonlocal size
        for line in lines:
            is_first = at_file_start and not taken and not begun
            taken.append(line)
            size += len(line)
            if size > record_format.max_record_bytes:
                raise csv.Error(too_long(record_format))
            yield (line.removeprefix(UTF8_MARK) if is_first else line).decode("latin-1")

    begun = False
    new_reader = functools.partial(
        csv.reader,
        delimiter=record_format.delimiter or USUAL_DELIMITER[record_format.format],
        quotechar=record_format.quote,
        quoting=csv.QUOTE_NONE if record_format.quote is None else csv.QUOTE_MINIMAL,
        strict=True,
    )
    reader = new_reader(take())
    while True:
        taken, size = [], 0
        fields, problem = list[str](), None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if size > record_format.max_record_bytes:
                yield from _pieces(b"".join(taken), lines, record_format)
                reader, begun = new_reader(take()), True
                continue
            message = str(error).split(" - ")[0]
            problem = f"is not valid {record_format.format.upper()}: {_REASONS.get(message, message)}"
        yield _Row(b"".join(taken), len(taken), fields, problem)
        begun = True


def _pieces(raw: bytes, lines: Iterator[bytes], record_format: RecordFormat) -> Iterator[_Row]:
    """The pieces of a row that is too long. `raw`: its lines up to the one with which it is."""
    quotes, problem, in_line = 0, too_long(record_format), False
    while raw:
        quotes += raw.count(record_format.quote.encode()) if record_format.quote else 0
        in_line = not raw.endswith(b"\n")
        ends = not in_line and quotes % 2 == 0
        yield _Row(raw, raw.count(b"\n"), [], problem, ends)
        if ends:
            return
        raw = next(lines, b"")
    yield _Row(b"", int(in_line), [], problem)


def _find_rows(slice_: Slice, record_format: RecordFormat, *, has_header: bool) -> Iterator[text.Run]:
    """Runs of whole rows. The names of the columns belong to the first row."""
    end = sys.maxsize if slice_.end is None else slice_.end
    position, line = slice_.start, slice_.first_line
    data, places, lines = bytearray(), [position], [line]
    with storage.open_binary(slice_.file.path, slice_.end) as file:
        if position:
            file.seek(position)
        chunks = storage.read_chunks(file, slice_.file.path, end - position)
        for row in _parse(_lines(chunks, record_format), record_format, at_file_start=position == 0):
            data += row.raw
            position, line = position + len(row.raw), line + row.num_lines
            if has_header:
                has_header = False
                continue
            if row.ends:
                places.append(position)
                lines.append(line)
            if len(data) >= _RUN_BYTES:
                yield data, np.array(places, np.int64), np.array(lines, np.int64)
                data, places, lines = bytearray(), [], []
            if row.ends and position >= end:
                break
        text.refuse_early_end(slice_, position)
    if data or places:
        if not places or places[-1] != position:  # nothing but the names of the columns
            places, lines = [*places, position], [*lines, line]
        yield data, np.array(places, np.int64), np.array(lines, np.int64)


def _numbers(values: list[str | None], name: str, type_: str, reasons: dict[int, str]) -> pa.Array:
    numbers: list[Any] = []
    for index, value in enumerate(values):
        number, given = None, (value or "").strip()
        if given:
            number = _number(given, type_)
            if number is None:
                reasons.setdefault(index, f"field `{name}` is not {type_}")
        numbers.append(number)
    return pa.array(numbers, FIELD_TYPES[type_])


def _number(given: str, type_: str) -> int | float | bool | None:
    """The value; None if it is not of the type. `3.0` is an integer: pandas writes a column with a gap so.

    >>> _number("3.0", "int64"), _number("nan", "float64"), _number("True", "bool"), _number("1_0", "float64")
    (3, None, True, None)
    """
    if type_ == "bool":
        return {"true": True, "false": False}.get(given.lower())
    if type_ == "int64":
        match = _INTEGER.fullmatch(given)
        return int(match[1]) if match and len(given) < 40 and int(match[1]) in INT64 else None
    try:
        number = float(given)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in given else None
