"""JSON Lines decoded: one object per line, by Python's own parser.

Each line is parsed alone, because pyarrow's reader infers one schema for the whole file, fails at the first bad line,
and silently drops one of two equal keys. The parser takes some 1 % of the encoder's time.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.transforms.flow.blocks import FIELD_TYPES, TextBlock
from layerbeam.transforms.flow.commits import FileRange
from layerbeam.transforms.input import text
from layerbeam.transforms.input.records import EXACT, INT64, inexact, is_blank, lone_surrogate, replace_surrogates
from layerbeam.transforms.settings import RecordFormat, element_of

# A fixed limit, because Python's depends on the depth of the caller.
_MAX_DEPTH = 500
_MARK = "\ufeff"  # the byte order mark: also at the start of a later line, where files were joined
_NAMES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
_MISSING = object()
_DUPLICATE = object()  # the value of a key that occurs twice
_VALUE = rb'%s\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")'  # of a name
_OBJECT = re.compile(rb'\s*\{\s*("([^"\\]|\\.)*"\s*:|\}\s*$)')  # the start of a line


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        result |= {name: _DUPLICATE for name, count in counts.items() if count > 1}
    return result


_PARSER = json.JSONDecoder(object_pairs_hook=_make_object)


class _RejectedRecordError(Exception):
    pass


class JsonLinesInput(text.TextInput):
    """JSON Lines: one object per line."""

    title = "JSON Lines"
    endings = (".jsonl", ".ndjson")

    def recognizes(self, head: bytes, lines: Sequence[bytes]) -> bool:
        return bool(lines) and all(map(_OBJECT.match, lines))

    def may_begin(self, lines: Sequence[bytes]) -> bool:
        return not lines or any(b"{" in line for line in lines)

    def record_of(self, record_format: RecordFormat) -> str:
        return "line"

    def key_of(self, record_format: RecordFormat) -> text.Key:
        """The text and the pair as they stand in the line; of a line where they are not found, all of it."""
        names = [name for name in (*record_format.text_fields, record_format.pair_field) if name is not None]
        patterns = [re.compile(_VALUE % re.escape(json.dumps(name).encode())) for name in names]

        def key(line: bytes) -> bytes:
            found = [match[1] for match in (pattern.search(line) for pattern in patterns) if match]
            return b"".join(found) if found else line

        return key

    def decode(self, block: FileRange, raw: bytes, record_format: RecordFormat) -> TextBlock:
        """The block's lines as texts. A line of white space is always blank, also if blank texts are kept."""
        records, lines = text.decode(block, raw, record_format, "line")
        fields = record_format.fields_read
        rows: list[list[Any]] = [[None] * len(fields)] * len(lines)
        for index in np.flatnonzero(~is_blank(lines)).tolist():
            try:
                record = _parse(lines[index].as_py(), record_format.text_fields)
                rows[index] = [_read_field(record, name, type_, record_format) for name, type_ in fields]
            except _RejectedRecordError as error:
                records.reasons[index] = str(error)
        columns = zip(fields, zip(*rows, strict=True), strict=True)
        return records.to_block(
            [pa.array(values, FIELD_TYPES.get(type_, pa.string())) for (_, type_), values in columns]
        )


def fields_of(record: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of each field; those of inner objects, such as `meta.text`, after the object.

    >>> list(fields_of({"meta": {"text": "a"}}))
    [('meta', {'text': 'a'}), ('meta.text', 'a')]
    """
    for name, value in record.items():
        yield before + name, value
        if isinstance(value, dict):
            yield from fields_of(value, f"{before}{name}.")


def field_names(line: str) -> list[str] | None:
    """The names of the fields of the object in a line; None if it holds no object."""
    try:
        record = _PARSER.decode(line.lstrip(_MARK)) if _depth(line) <= _MAX_DEPTH else None
    except ValueError:
        return None
    return [name for name, _ in fields_of(record)] if isinstance(record, dict) else None


def _value(record: Any, name: str) -> Any:
    """The value of a key, else of a path to it: `meta.text` is the key `text` in the object of `meta`."""
    if record is None or record is _DUPLICATE:
        return record
    if not isinstance(record, dict):
        return _MISSING
    if name in record:
        return record[name]
    outer, _, inner = name.partition(".")
    return _value(record[outer], inner) if inner and outer in record else _MISSING


def _parse(line: str, text_fields: Sequence[str]) -> dict[str, Any]:
    """The object in the line, which has a text or null."""
    if _depth(line) > _MAX_DEPTH:
        raise _RejectedRecordError(f"is nested more than {_MAX_DEPTH} deep")
    try:
        record = _PARSER.decode(line.lstrip(_MARK))
    except json.JSONDecodeError as error:
        message = f"{error.msg.removesuffix(' at')} at character {error.pos}"
        raise _RejectedRecordError(f"is not valid JSON: {message}") from None
    except ValueError as error:
        raise _RejectedRecordError(f"is not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise _RejectedRecordError(f"is not a JSON object but {_kind_of(record)}")
    if all(_value(record, name) is _MISSING for name in text_fields):
        raise _RejectedRecordError(f"field `{text_fields[0]}` is missing")
    return record


def _depth(line: str) -> int:
    """The nesting depth of brackets: approximate if the line is not valid JSON, 0 if it has few of them."""
    if line.count("[") + line.count("{") <= _MAX_DEPTH:
        return 0
    # Of the pieces between quotes that are not escaped every second one is a string; the last one, if open, counts.
    # An expression for strings takes a hundred bytes per character, and quadratic time where a string is open.
    pieces = line.replace(r"\\", "").replace(r"\"", "").split('"')
    del pieces[1:-1:2]
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", "".join(pieces)))
    return max(itertools.accumulate(steps), default=0)


def _read_field(record: dict[str, Any], name: str, type_: str, record_format: RecordFormat) -> Any:
    """The field as a value of its type, an id as a string; None if it is missing or null."""
    value = _value(record, name)
    if value is None or value is _MISSING:
        return None
    if value is _DUPLICATE:
        raise _RejectedRecordError(f"field `{name}` occurs twice")
    element = element_of(type_)
    if element == type_:
        return _convert(value, name, type_, record_format)
    if not isinstance(value, list):
        raise _RejectedRecordError(f"field `{name}` is {_kind_of(value)}, not an array")
    is_text, values = name in record_format.text_fields, list[Any]()
    for one in value:
        try:
            values.append(None if one is None and not is_text else _convert(one, name, element, record_format))
        except _RejectedRecordError as error:
            raise _RejectedRecordError(f"{error} at word {len(values)}") from None
    return values


def _convert(value: Any, name: str, type_: str, record_format: RecordFormat) -> Any:
    if isinstance(value, str) and record_format.invalid_bytes == "replace":
        value = replace_surrogates(value)
    return _CONVERT[type_](value, name)


def _to_string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _RejectedRecordError(f"field `{name}` is {_kind_of(value)}, not a string")
    surrogate = lone_surrogate(value)
    if surrogate is not None:
        raise _RejectedRecordError(f"field `{name}`: {surrogate}")
    return value


def _to_id(value: Any, name: str) -> str:
    number = _integer(value)
    if number is None and isinstance(value, float) and abs(value) > EXACT:
        raise _RejectedRecordError(f"field `{name}` is {inexact(value)}, which has lost digits; write it as text")
    return _to_string(value, name) if number is None else str(number)


def _to_int64(value: Any, name: str) -> int:
    number = _integer(value)
    if number is None:
        shown = inexact(value) if isinstance(value, float) else _kind_of(value)
        raise _RejectedRecordError(f"field `{name}` is {shown}, not int64")
    if number not in INT64:
        raise _RejectedRecordError(f"field `{name}` does not fit in int64")
    return number


def _to_float64(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RejectedRecordError(f"field `{name}` is {_kind_of(value)}, not float64")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number):
        raise _RejectedRecordError(f"field `{name}` is NaN, not float64")
    if not math.isfinite(number):
        raise _RejectedRecordError(f"field `{name}` does not fit in float64")
    return number


def _to_bool(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _RejectedRecordError(f"field `{name}` is {_kind_of(value)}, not bool")
    return value


# By the types of `RecordFormat.fields_read`.
_CONVERT: Mapping[str, Callable[[Any, str], Any]] = {
    "string": _to_string,
    "id": _to_id,
    "int64": _to_int64,
    "float64": _to_float64,
    "bool": _to_bool,
}


def _integer(value: Any) -> int | None:
    """The value as an integer; 30284.0 is one, because pandas writes integers with gaps so."""
    if isinstance(value, float) and abs(value) <= EXACT and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kind_of(value: Any) -> str:
    return _NAMES.get(type(value), "an object")
