"""What the settings of the input cannot say together, and which encodings can be read."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerbeam.pipeline.config.schema import Config

# Columns that are ours, at any level and in any file format (besides layer_0, layer_1, ... and those with _std behind).
COLUMN_NAMES = {
    "file",
    "id",
    "line",
    "sentence",
    "start",
    "end",
    "token_index",
    "word_index",
    "token",
    "word",
    "text",
    "token_id",
    "segment_id",
    "num_tokens",
    "num_dropped",
    "num_texts",
    "count",
    "embedding",
    "pooled_output",
}
_LAYER_COLUMN = re.compile(r"layer_\d+(_std)?|(embedding|pooled_output)_std")
# Settings of the input that only some formats know.
_FORMATS = {
    "record": ("text",),
    "encoding": ("text", "jsonl"),
    "text_field": ("jsonl", "parquet"),
    "pair_field": ("jsonl", "parquet"),
    "pair_separator": ("text",),
    "id_field": ("jsonl", "parquet"),
    "keep_fields": ("jsonl", "parquet"),
}


def check_encoding(encoding: str) -> str:
    """Python's name of the codec. ValueError where a line end in it is not the byte 0x0A: files are cut there."""
    try:
        name = codecs.lookup(encoding).name
        line_end = "a\r\nb".encode(name)
    except (LookupError, UnicodeError, ValueError):
        raise ValueError(f"Python knows no text encoding {encoding}; for example utf-8, latin-1, cp1252") from None
    if name == "utf-8-sig":
        return "utf-8"  # a byte order mark is dropped anyway
    if name.startswith(("utf-16", "utf-32")):
        raise ValueError(
            f"{encoding} is not read: a line end is not one byte in it; convert the files, for example with "
            f"`iconv -f {name.upper()} -t UTF-8`"
        )
    others = (bytes([byte]).decode(name, "ignore") for byte in range(256) if byte != 0x0A)
    if line_end != b"a\r\nb" or any("\n" in character for character in others):
        raise ValueError(f"{encoding} is not read: a line end in it is not the byte 0x0A; convert the files to UTF-8")
    return name


def input_contradictions(config: Config) -> Iterator[str]:
    """One line for each, that says how to mend it."""
    given = config.input
    for key, formats in _FORMATS.items():
        if given.format not in formats and getattr(given, key) != type(given).model_fields[key].default:
            yield f"input.{key}: format {given.format} has no such setting (it belongs to {' and '.join(formats)})"
    pair = "pair_field" if given.pair_field is not None else "pair_separator"
    if getattr(given, pair) is not None:
        if given.unit == "sentence":
            yield f"input.{pair}: a pair is one text; take it away, or take unit: record"
        if config.encoder.long_text == "window":
            yield f"input.{pair}: windows are for single texts; take it away, or take encoder.long_text: truncate"
    if given.pair_separator == "":
        yield "input.pair_separator: is empty; give the characters between the two texts, or null"
    if given.pair_field == given.text_field:
        yield f"input.pair_field: {given.pair_field} is input.text_field already"
    seen: dict[str, str] = {}
    for name in given.keep_fields:
        # Without regard to case: many readers of Parquet have none.
        column = name.lower()
        if column in COLUMN_NAMES or _LAYER_COLUMN.fullmatch(column):
            yield f"input.keep_fields.{name}: a column of ours has this name; the field must be called something else"
        elif not name or name.startswith("_"):
            yield f"input.keep_fields.{name}: a column's name is not empty and has no `_` at its start"
        elif seen.setdefault(column, name) != name:
            yield f"input.keep_fields.{name}: differs from {seen[column]} in case only"
