"""JSON Lines decoded as records: one object per line, by Python's own parser.

Each line is parsed alone, because pyarrow's reader infers one schema for the whole file, fails at the first bad line,
and silently drops one of two equal keys. The parser takes some 1 % of the encoder's time.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.blocks import FIELD_TYPES
from layerbeam.transforms.commits import BlockId, Rejected
from layerbeam.transforms.read.records import Records, lone_surrogate
from layerbeam.transforms.read.text import decode
from layerbeam.transforms.settings import RecordFormat

# A fixed limit, because Python's depends on the depth of the caller.
_MAX_DEPTH = 500
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_INT64 = range(-(1 << 63), 1 << 63)
_NAMES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}


class _Object(dict[str, Any]):
    """A JSON object that knows its duplicate keys."""

    duplicates: frozenset[str] = frozenset()


def _make_object(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        result.duplicates = frozenset(name for name in result if names.count(name) > 1)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")


_parse: Callable[[str], Any] = json.JSONDecoder(object_pairs_hook=_make_object, parse_constant=_refuse_constant).decode


@dataclasses.dataclass(frozen=True)
class _Row:
    text: str
    pair: str | None
    fields: tuple[Any, ...]


class _RejectedRecordError(Exception):
    pass


def decode_jsonl(block: BlockId, raw: bytes, record_format: RecordFormat) -> Records:
    """The block's lines as records. A line of white space is always blank, also if blank texts are kept."""
    decoded = decode(block, raw, record_format)
    rejected = list(decoded.rejected)
    full = pc.not_equal(pc.utf8_trim_whitespace(decoded.texts), "").to_numpy(zero_copy_only=False)
    rows: list[_Row] = []
    kept: list[int] = []
    for index in np.flatnonzero(full).tolist():
        try:
            rows.append(_read_row(decoded.texts[index].as_py(), record_format))
            kept.append(index)
        except _RejectedRecordError as error:
            start, stop = int(decoded.starts[index]), int(decoded.stops[index])
            place = (int(decoded.line[index]), block.first_byte + start)
            rejected.append(Rejected(block.file.path, *place, "read", str(error), raw[start:stop]))
    names = (
        *(("id", "string") for _ in (record_format.id_field,) if record_format.id_field is not None),
        *record_format.keep_fields.items(),
    )
    columns: Iterable[tuple[Any, ...]] = zip(*(row.fields for row in rows), strict=True) if rows else [()] * len(names)
    return Records(
        pa.array([row.text for row in rows], pa.string()),
        decoded.line[kept],
        sorted(rejected, key=lambda reject: reject.line),
        None if record_format.pair_field is None else pa.array([row.pair for row in rows], pa.string()),
        {name: pa.array(values, FIELD_TYPES[type_]) for (name, type_), values in zip(names, columns, strict=True)},
        num_blank=int(np.count_nonzero(~full)),
    )


def _read_row(line: str, record_format: RecordFormat) -> _Row:
    if _depth(line) > _MAX_DEPTH:
        raise _RejectedRecordError(f"is nested more than {_MAX_DEPTH} deep")
    try:
        record = _parse(line)
    except ValueError as error:
        message = str(error).split(" at byte ")[0]
        if isinstance(error, json.JSONDecodeError):
            message = f"{error.msg.removesuffix(' at')} at character {error.pos}"
        raise _RejectedRecordError(f"is not valid JSON: {message}") from None
    if not isinstance(record, _Object):
        raise _RejectedRecordError(f"is not a JSON object but {_name(record)}")
    text = _string(record, record_format.text_field)
    if text is None:
        missing = "is null" if record_format.text_field in record else "is missing"
        raise _RejectedRecordError(f"field `{record_format.text_field}` {missing}")
    pair = None if record_format.pair_field is None else _string(record, record_format.pair_field)
    fields = [_identifier(record, record_format.id_field)] if record_format.id_field is not None else []
    fields += [_kept(record, name, type_) for name, type_ in record_format.keep_fields.items()]
    return _Row(text, pair, tuple(fields))


def _depth(line: str) -> int:
    """The nesting depth of brackets: approximate if the line is not valid JSON, 0 if it has few of them."""
    if line.count("[") + line.count("{") <= _MAX_DEPTH:
        return 0
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", _STRING.sub("", line)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _get(record: _Object, name: str) -> Any:
    if name in record.duplicates:
        raise _RejectedRecordError(f"field `{name}` occurs twice")
    return record.get(name)


def _string(record: _Object, name: str) -> str | None:
    value = _get(record, name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _RejectedRecordError(f"field `{name}` is {_name(value)}, not a string")
    surrogate = lone_surrogate(value)
    if surrogate is not None:
        raise _RejectedRecordError(f"field `{name}`: {surrogate}")
    return value


def _identifier(record: _Object, name: str) -> str | None:
    """A string, or the digits of an integer."""
    value = _get(record, name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _string(record, name)


def _kept(record: _Object, name: str, type_: str) -> Any:
    if type_ == "string":
        return _string(record, name)
    value = _get(record, name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if type_ == "bool" and isinstance(value, bool):
        return value
    if type_ == "int64" and is_number and isinstance(value, int):
        if value in _INT64:
            return value
        raise _RejectedRecordError(f"field `{name}` does not fit in int64")
    if type_ == "float64" and is_number:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise _RejectedRecordError(f"field `{name}` does not fit in float64")
    shown = "a number with a fraction" if type_ == "int64" and isinstance(value, float) else _name(value)
    raise _RejectedRecordError(f"field `{name}` is {shown}, not {type_}")


def _name(value: Any) -> str:
    return _NAMES.get(type(value), "an object")
