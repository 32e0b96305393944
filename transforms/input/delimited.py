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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import FIELD_TYPES, Slice, TextBlock
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.input import text
from layerbeam.transforms.input.content import HEAD_BYTES, UTF8_MARK, refusing_other_content
from layerbeam.transforms.input.input_format import InputFormat
from layerbeam.transforms.input.records import INT64, Records, UnreadableFileError, too_long, wrong_column_error
from layerbeam.transforms.settings import BlockLimits, RecordFormat

# The parser's limit is one for the whole process, and that of a record is no higher. A character takes four bytes.
csv.field_size_limit(1 << 28)

_RUN_BYTES = 1 << 20
# A quoted field holds rows by mistake if its lines have so many delimiters, and each as many as a row has.
_DELIMITERS_OF_ROWS = 10
_INTEGER = re.compile(r"([+-]?[0-9]+)(\.0*)?")
_REASONS = {
    "unexpected end of data": "a quote is opened and not closed",
    "new-line character seen in unquoted field": "a carriage return is not in quotes",
}
_QUOTES = {'"': "'\"'", "'": '"\'"'}  # as YAML has them
_BLANK = "has a blank before the quote of a field"
_ESCAPE = "set input.escape: '\\' if that stands before quotes in a text"
_NO_QUOTES = "set input.quote: null if quotes are part of the texts"


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


# What often separates fields, with a word for it.
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


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
        rows = list(_parse(io.BytesIO(names if is_cut else raw), record_format))
        if is_cut:
            num_lines = block.num_lines - sum(row.num_lines for row in rows)
            rows.append(_Row(raw[len(names) :], num_lines, [], too_long(record_format)))
        line = block.first_line + np.cumsum([0, *(row.num_lines for row in rows)])
        place = block.first_byte + np.cumsum([0, *(len(row.raw) for row in rows)])
        skipped = int(at_start and bool(header.raw))
        rows, line, place = rows[skipped:], line[skipped:-1], place[skipped:-1]
        raws = pa.array([row.raw.rstrip(b"\r\n") for row in rows], pa.binary())
        more_lines = np.array([max(row.num_lines - 1, 0) for row in rows], np.int64)
        records = Records(block, record_format, line, place, raws, more_lines=more_lines)
        whole = _whole_rows(rows, header, records)
        columns = []
        for name, type_ in record_format.fields_read:
            column = header.names.index(name)
            values = [None if fields is None else fields[column] for fields in whole]
            columns.append(_column(values, name, type_, records))
        return records.to_block(columns)

    def count(self, file: InputFile, record_format: RecordFormat, at_most: int) -> int:
        """The rows of a file, or `at_most` if it has more."""
        with storage.open_binary(file.path) as opened:
            chunks = refusing_other_content(storage.read_chunks(opened, file.path), record_format)
            parsed = _parse(_lines(chunks, record_format), record_format)
            rows = (row for row in parsed if row.ends)
            if record_format.column_names is None:
                next(rows, None)
            return sum(1 for _ in itertools.islice(rows, at_most))


def _whole_rows(rows: Sequence[_Row], header: _Header, records: Records) -> list[list[str] | None]:
    """The fields of each row; None if it has none, or is a reject, which gets its reason."""
    encoding = records.record_format.encoding
    given_names = [name.encode(encoding, "replace").decode("latin-1") for name in header.names]
    whole: list[list[str] | None] = []
    for index, row in enumerate(rows):
        problem = _problem(row, len(header.names), records.record_format)
        if problem is not None:
            records.reasons[index] = problem
        # The names of the columns come again where files were joined.
        is_text = row.fields != given_names or (len(given_names) == 1 and not row.raw.startswith(UTF8_MARK))
        whole.append(row.fields if is_text and problem is None and len(row.fields) == len(header.names) else None)
    return whole


def _column(values: list[str | None], name: str, type_: str, records: Records) -> pa.Array:
    """A field of all rows, as a column of its type; a value that has no such type is a reject."""
    if type_ not in ("string", "id"):
        return _numbers(values, name, type_, records.reasons)
    data = [None if v is None or (type_ == "id" and not v) else v.encode("latin-1") for v in values]
    return records.decode(pa.array(data, pa.binary()), name)


def _key_of(header: _Header, record_format: RecordFormat) -> text.Key:
    """The text and the pair of a row; of a row that has none, all of it."""
    names = [name for name in (*record_format.text_fields, record_format.pair_field) if name is not None]
    columns = [header.names.index(name) for name in names]

    def key(raw: bytes) -> bytes:
        fields = next(_parse(io.BytesIO(raw), record_format)).fields
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
        first = next(_parse(_lines(chunks, record_format), record_format), None)
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


def bad_lines(sample: bytes, record_format: RecordFormat) -> int:
    """How many lines of a sample are in rows that would be rejected. Its first row says how many fields a row has."""
    rows = list(_parse(io.BytesIO(sample), record_format))
    columns = len(rows[0].fields) if rows else 0
    return sum(row.num_lines for row in rows if _problem(row, columns, record_format) is not None)


def _problem(row: _Row, columns: int, record_format: RecordFormat) -> str | None:
    """Why a row is not a record of so many fields, and the setting that may read it; None if it is, or is empty."""
    problem = _misplaced_quotes(row, columns, record_format) if row.problem is None else row.problem
    if problem is not None:
        return _with_remedy(problem, row, record_format)
    if len(row.fields) == columns or not any(map(str.strip, row.fields)):
        return None
    problem = f"has {len(row.fields)} fields, not {columns}"
    for mark, written in _QUOTES.items():
        quoted = [field for field in row.fields if field.lstrip(" ").startswith(mark)]
        if mark != record_format.quote_mark and (quoted or any(field.endswith(mark) for field in row.fields)):
            blanks = " and no blanks are before the quotes" if any(field.startswith(" ") for field in quoted) else ""
            return f"{problem}; set input.quote: {written} if fields are in quotes{blanks}"
    return problem


def _misplaced_quotes(row: _Row, columns: int, record_format: RecordFormat) -> str | None:
    """What shows that the quotes of a row, which Python's parser takes, are part of its texts; None if nothing does."""
    delimiter, quote = record_format.separator, record_format.quote_mark
    if quote is None:
        return None
    if f" {quote}".encode() in row.raw:
        raw = delimiter + row.raw.decode("latin-1")
        # If such a field were in quotes, its own would come twice.
        blank = [field for field in row.fields if field.startswith(" ") and field.lstrip(" ").startswith(quote)]
        if any(delimiter + field in raw for field in blank):
            return _BLANK
    if row.num_lines > 2:
        inner = [line for line in row.raw.rstrip(b"\r\n").split(b"\n")[1:-1] if line.strip()]
        found = {line.count(delimiter.encode()) for line in inner}
        if found == {columns - 1} and len(inner) * (columns - 1) >= _DELIMITERS_OF_ROWS:
            return "has lines in quotes that look like rows"
    return None


def _with_remedy(problem: str, row: _Row, record_format: RecordFormat) -> str:
    """The problem, with the setting of quotes that may read the row, if one may."""
    quote = record_format.quote_mark
    if quote is None or "carriage return" in problem or problem == too_long(record_format):
        return problem
    escapes = record_format.escape is None and f"\\{quote}".encode() in row.raw
    remove = "remove such blanks, or " if problem == _BLANK else ""
    return f"{problem}; {remove}{_ESCAPE if escapes else _NO_QUOTES}"


def _lines(chunks: Iterable[bytes], record_format: RecordFormat) -> Iterator[bytes]:
    for run in storage.whole_lines(chunks, record_format.max_record_bytes):
        yield from io.BytesIO(run) if b"\n" in run else [run]  # without a copy of a piece of a long line


def _parse(lines: Iterable[bytes], record_format: RecordFormat) -> Iterator[_Row]:
    lines, taken, size = iter(lines), list[bytes](), 0
    is_utf8, escape = record_format.encoding == "utf-8", _Escape.of(record_format)

    def take() -> Iterator[str]:
        nonlocal size
        for line in lines:
            is_first = not taken
            taken.append(line)
            size += len(line)
            if size > record_format.max_record_bytes:
                raise csv.Error(too_long(record_format))
            while is_first and is_utf8 and line.startswith(UTF8_MARK):  # again where files were joined
                line = line[len(UTF8_MARK) :]
            yield (line if escape is None else escape.double(line)).decode("latin-1")

    quote = record_format.quote_mark
    new_reader = functools.partial(
        csv.reader,
        delimiter=record_format.separator,
        quotechar=quote,
        quoting=csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL,
        escapechar=record_format.escape,
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
            raw = b"".join(taken)
            if size > record_format.max_record_bytes:
                yield from _pieces(raw, lines, record_format)
                reader = new_reader(take())
                continue
            message = str(error).split(" - ")[0].replace("\t", "\\t")
            problem = f"is not valid {record_format.format.upper()}: {_REASONS.get(message, message)}"
        yield _Row(b"".join(taken), len(taken), fields, problem)


class _Escape:
    """What `input.escape` stands before. Before anything else it is a character of the text."""

    def __init__(self, escape: str, escaped: str):
        one = re.escape(escape).encode()
        self._pair = re.compile(one + rb"([" + re.escape(escape + escaped).encode() + rb"]?)")
        self._doubled = 2 * escape.encode()

    @classmethod
    def of(cls, record_format: RecordFormat) -> _Escape | None:
        """That of the format; None if it has none."""
        escape = record_format.escape
        return None if escape is None else cls(escape, record_format.quote_mark or record_format.separator)

    def double(self, line: bytes) -> bytes:
        """The line for Python's parser, which drops an escape before any character."""
        return self._pair.sub(lambda found: found[0] if found[1] else self._doubled, line)

    def remove(self, line: bytes) -> bytes:
        """The line without what is escaped."""
        return self._pair.sub(b"", line)


def _pieces(raw: bytes, lines: Iterator[bytes], record_format: RecordFormat) -> Iterator[_Row]:
    """The pieces of a row that is too long. `raw`: its lines up to the one with which it is."""
    quotes, problem, in_line = 0, too_long(record_format), False
    quote, escape = (record_format.quote_mark or "").encode(), _Escape.of(record_format)
    while raw:
        quotes += (raw if escape is None else escape.remove(raw)).count(quote) if quote else 0
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
        for row in _parse(_lines(chunks, record_format), record_format):
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
            number = parse_number(given, type_)
            if number is None:
                reasons.setdefault(index, f"field `{name}` is not {type_}")
        numbers.append(number)
    return pa.array(numbers, FIELD_TYPES[type_])


def parse_number(given: str, type_: str) -> int | float | bool | None:
    """The value; None if it is not of the type. `3.0` is an integer: pandas writes a column with a gap so.

    >>> [parse_number(*given) for given in (("3.0", "int64"), ("nan", "float64"), ("True", "bool"), ("1_0", "float64"))]
    [3, None, True, None]
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
