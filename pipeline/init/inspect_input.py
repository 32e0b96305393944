"""`layerbeam init --input FILE`: what the files hold, and the settings of `input` that read it."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from layerbeam.pipeline.console import count_noun, one_line
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.inputs import find_inputs
from layerbeam.pipeline.run.detect_format import formats_by_name, several_formats
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import InputFile, printable
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.input.content import UTF8_MARK, contradiction, format_by_content, format_by_name, read_head
from layerbeam.transforms.input.delimited import DELIMITERS, bad_lines
from layerbeam.transforms.input.jsonl import fields_of
from layerbeam.transforms.settings import USUAL_DELIMITER, WORD_COLUMNS, RecordFormat

# Names of columns that hold the text, the most certain first.
_TEXT_NAMES = (
    "text", "sentence", "content", "body", "document", "passage", "paragraph", "article", "message", "review",
    "comment", "abstract", "description", "title",
)  # fmt: skip
_SAMPLE_BYTES = 1 << 20
_SAMPLE_ROWS = 1000
_SHOWN_COLUMNS = 12
# For text that is not UTF-8. Nothing but its reader can tell apart the encodings with one byte per character.
_OTHER_ENCODING = "cp1252"
# A name of a column in quotes, or a field in quotes with two for one.
_WRITTEN_IN_QUOTES = re.compile(rb'\A(\xef\xbb\xbf)?"[^"\n]*"[\t\r\n]|(^|\t)"[^\t\n]*[^"\t]""[^\t\n]*"(\t|\r?$)', re.M)

# The values of each column in the sample that are strings.
_Columns = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class FoundInput:
    """`settings`: of the section `input`; `reads`: what they read; `notes`: what was found and chosen, for a user."""

    settings: dict[str, Any]
    reads: str
    notes: Sequence[str]


def inspect_input(pattern: str, output_path: str) -> FoundInput:
    """The settings that read a file, or the files of a glob or folder. UsageError if there is no text to read."""
    file, head = _first_file(pattern, output_path)
    name = one_line(printable(file.path))
    format_ = format_by_content(head) or format_by_name(file.path) or "text"
    settings: dict[str, Any] = {"files": [pattern], "format": format_}
    problem = contradiction(head, RecordFormat(format=format_))  # type: ignore[arg-type] # one of INPUT_FORMATS
    if problem is not None:
        problem = problem.replace("; leave it out of input.files", "; give a file with text")
        raise UsageError(f"--input: {name} {problem}")
    facts = [INPUT_FORMATS[format_].title]
    if storage.is_compressed(file.path):
        facts.append(f"compressed ({os.path.splitext(file.path)[1]})")
    try:
        columns = _parquet_columns(file.path) if format_ == "parquet" else _read_text(file.path, settings, facts)
    except (OSError, pa.ArrowException, csv.Error) as error:
        reason = storage.reason_of(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"--input: {name}: cannot be read ({reason})") from error
    if format_ == "text":
        notes = [f"{name}: {', '.join(facts)}", "reads each line as a text; `input.record` has other choices"]
        return FoundInput(settings, pattern, notes)
    if format_ in WORD_COLUMNS:
        what = f"reads each sentence as a list of words, with the columns {', '.join(WORD_COLUMNS[format_])}"
        notes = [f"{name}: {', '.join(facts)}", what]
        return FoundInput(settings, pattern, notes)
    shown = ", ".join(map(one_line, itertools.islice(columns, _SHOWN_COLUMNS)))
    facts.append(f"{count_noun(len(columns), 'column')}: {shown}{', ...' if len(columns) > _SHOWN_COLUMNS else ''}")
    what = f"{name}: {', '.join(facts)}"
    settings["text_field"], why = _choose(columns, what)
    reads = f"column `{one_line(settings['text_field'])}` of {one_line(printable(pattern))}"
    return FoundInput(settings, reads, [what, f"reads {reads} ({why})"])


def _first_file(pattern: str, output_path: str) -> tuple[InputFile, bytes]:
    """The first file that is not empty, and its first bytes. UsageError if there is none, or of different formats."""
    try:
        found = [file for file in find_inputs([os.path.expanduser(pattern)], output_path) if not file.problem]
    except UsageError as error:
        raise UsageError(str(error).replace("input.files:", "--input:", 1)) from error
    named = formats_by_name(found)
    if len(named) > 1:
        raise UsageError(f"--input: {several_formats(named)}; give a glob of one format")
    for file in found:
        try:
            head = read_head(file.path)
        except OSError as error:
            raise UsageError(f"--input: {printable(file.path)}: cannot be read ({storage.reason_of(error)})") from error
        if head.removeprefix(UTF8_MARK).strip():
            return file, head
    what = f"{printable(found[0].path)} is" if len(found) == 1 else f"all {len(found):,} files are"
    raise UsageError(f"--input: {what} empty; give a file with text")


def _read_sample(path: str) -> bytes:
    """Whole lines from the start of the file, decompressed."""
    sample = b""
    with storage.open_binary(path) as file:
        for chunk in storage.read_chunks(file, path):
            sample += chunk
            if len(sample) >= _SAMPLE_BYTES:
                return sample[: sample.rfind(b"\n") + 1] or sample
    return sample


def _read_text(path: str, settings: dict[str, Any], facts: list[str]) -> _Columns:
    """The columns of a file that is not Parquet. Adds settings, and facts for a user."""
    sample, format_ = _read_sample(path), settings["format"]
    lines = [line for line in sample.splitlines() if not line.isascii()]
    if 2 * sum(_decodes(line, "utf-8") for line in lines) >= len(lines):
        encoding = "utf-8"
        facts.append("UTF-8 with a byte order mark" if sample.startswith(UTF8_MARK) else "UTF-8")
    elif all(_decodes(line, _OTHER_ENCODING) for line in lines):
        encoding = settings["encoding"] = _OTHER_ENCODING
        example = printable(lines[0].decode(encoding).strip()[:60])
        facts.append(f"not UTF-8, so probably {encoding} (a line in it: {example})")
    else:
        raise UsageError(
            f"--input: {printable(path)} is neither UTF-8 nor {_OTHER_ENCODING}; convert it to UTF-8 with `iconv`, or "
            "write the configuration without --input and set input.encoding"
        )
    text = sample.removeprefix(UTF8_MARK).decode(encoding, "replace")
    if format_ in USUAL_DELIMITER:
        columns = _delimited_columns(text, sample, settings)
        facts.append(f"separated by {DELIMITERS[settings.get('delimiter', USUAL_DELIMITER[format_])]}")
        facts += [f"{name}: {settings[name] or 'null'}" for name in ("quote", "escape") if name in settings]
        return columns
    return _json_columns(text) if format_ == "jsonl" else {}


def _decodes(line: bytes, encoding: str) -> bool:
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _quoting(sample: bytes, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings `quote` and `escape` with which fewest lines would be rejected; none if these are the defaults."""
    if settings["format"] == "csv":
        choices: list[dict[str, Any]] = [{}, {"escape": "\\"}, {"quote": None}]
    else:
        choices = [{}, {"quote": '"'}, {"quote": '"', "escape": "\\"}]
    bad = [bad_lines(sample, _form(settings | choice)) for choice in choices]
    if settings["format"] == "tsv" and min(bad[1:]) <= bad[0] and _WRITTEN_IN_QUOTES.search(sample):
        bad[0] = len(sample)
    return choices[bad.index(min(bad))]


def _form(settings: Mapping[str, Any]) -> RecordFormat:
    return RecordFormat(**{name: value for name, value in settings.items() if name != "files"})


def _rows(text: str, form: RecordFormat) -> Iterator[list[str]]:
    return csv.reader(
        io.StringIO(text),
        delimiter=form.separator,
        quoting=csv.QUOTE_NONE if form.quote_mark is None else csv.QUOTE_MINIMAL,
        escapechar=form.escape,
    )


def _delimited_columns(text: str, sample: bytes, settings: dict[str, Any]) -> _Columns:
    """The columns, named by the first row. Sets `delimiter`, `quote` and `escape` unless they are the usual ones."""
    usual = USUAL_DELIMITER[settings["format"]]
    # The character that gives most fields in the first row, if the next rows have as many.
    counts = {}
    for delimiter in sorted(DELIMITERS, key=lambda delimiter: delimiter != usual):
        rows = [row for row in itertools.islice(_rows(text, _form(settings | {"delimiter": delimiter})), 50) if row]
        counts[delimiter] = len(rows[0]) if sum(len(row) == len(rows[0]) for row in rows) > len(rows) / 2 else 1
    chosen = max(counts, key=lambda delimiter: counts[delimiter])
    if chosen != usual:
        settings["delimiter"] = chosen
    settings |= _quoting(sample, settings)
    header, *rows = itertools.islice(_rows(text, _form(settings)), 1 + _SAMPLE_ROWS)
    whole = [row for row in rows if len(row) == len(header)]
    if rows and not whole:
        lengths = f"the first row has {count_noun(len(header), 'name')}, and the next one {len(rows[0])} fields"
        raise csv.Error(f"{lengths}; give each column a name in the first row")
    return {
        name: [row[place] for row in whole if row[place] and not _is_number(row[place])]
        for place, name in enumerate(header)
        if header.count(name) == 1
    }


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _json_columns(text: str) -> _Columns:
    columns: dict[str, list[str]] = {}
    for line in text.split("\n")[:_SAMPLE_ROWS]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for name, value in fields_of(record) if isinstance(record, dict) else ():
            values = columns.setdefault(name, [])
            if isinstance(value, str):
                values.append(value)
    return columns


def _parquet_columns(path: str) -> _Columns:
    with storage.open_arrow(path) as opened:
        parquet = pq.ParquetFile(opened)
        texts = [field.name for field in parquet.schema_arrow if _holds_text(field.type)]
        rows = next(parquet.iter_batches(_SAMPLE_ROWS, columns=texts), None) if texts else None
        names = parquet.schema_arrow.names
        values = {} if rows is None else rows.to_pydict()
    return {name: [v for v in values.get(name, []) if v is not None] for name in names if names.count(name) == 1}


def _holds_text(type_: pa.DataType) -> bool:
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _choose(columns: _Columns, what: str) -> tuple[str, str]:
    """(the column with the text, why): by its name, else that with the longest values. UsageError if none has any."""
    means = {name: sum(map(len, values)) / len(values) for name, values in columns.items() if values}
    if not means:
        raise UsageError(f"--input: {what}; none of them holds text")
    for wanted in _TEXT_NAMES:
        for name in means:
            if name.rpartition(".")[2].strip().lower() == wanted:
                return name, "by its name"
    longest = max(means, key=lambda name: means[name])
    return longest, f"its texts are the longest, {means[longest]:,.0f} characters on average"
