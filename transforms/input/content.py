"""What a file holds, by its name and its first bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

from layerbeam.transforms import storage
from layerbeam.transforms.input.input_format import INPUT_FORMATS
from layerbeam.transforms.input.records import UnreadableFileError
from layerbeam.transforms.settings import RecordFormat

HEAD_BYTES = 1 << 12
_COMPRESSED_HEAD_BYTES = 1 << 16  # that is what decompression reads at once
UTF8_MARK = b"\xef\xbb\xbf"
_CONVERT = "it is {0}, not {1}; convert it, for example with `iconv -f {0} -t UTF-8`"
# UTF-32's marks first: one of them begins like one of UTF-16's.
_OTHER_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_MAGIC = {
    rb"\x1f\x8b\x08": ("gzip", "let its name end in .gz"),
    b"BZh[1-9]1AY&SY": ("bzip2", "let its name end in .bz2"),
    rb"\x28\xb5\x2f\xfd": ("Zstandard", "let its name end in .zst"),
    rb"\xfd7zXZ\x00": ("xz", "unpack it, or compress it with gzip, bzip2 or zstd"),
    rb"PK\x03\x04": ("a zip archive", "unpack it"),
}
_CONTROL = bytes([*range(9), *range(14, 27), *range(28, 32), 127])
_MIN_CONTROL, _MAX_CONTROL_SHARE = 8, 0.05
_JSON_ARRAY = re.compile(rb"\s*\[(\s*(\{|$)|\s*\n\s*[\"\[])")
_JSON_OBJECT = re.compile(rb'\s*\{\s*\n\s*"[^"\n]*"\s*:')
_SEPARATOR = re.compile(rb"sep=([^\r\n])\r?\n", re.IGNORECASE)
_LINES = 10


def format_by_name(path: str) -> str | None:
    """The format that a file's name says, without the ending of a compressed file.

    >>> format_by_name("a/B.JSONL.gz"), format_by_name("notes")
    ('jsonl', None)
    """
    name = os.path.splitext(path)[0] if storage.is_compressed(path) else path
    ending = os.path.splitext(name)[1].lower()
    return next((format_ for format_, one in INPUT_FORMATS.items() if ending in one.endings), None)


def format_by_content(head: bytes) -> str | None:
    """The format that the first bytes of a file show, such as `jsonl` or `parquet`; None if they show none."""
    lines = _lines(head)
    return next((format_ for format_, one in INPUT_FORMATS.items() if one.recognizes(head, lines)), None)


def _lines(head: bytes) -> list[bytes]:
    """The first lines that are not blank; the last one may be incomplete."""
    lines = head[:HEAD_BYTES].removeprefix(UTF8_MARK).split(b"\n")
    return [line for line in lines if line.strip()][:_LINES]


def read_head(path: str) -> bytes:
    """The first bytes of a file, decompressed by its name."""
    with storage.open_binary(path, _COMPRESSED_HEAD_BYTES if storage.is_compressed(path) else HEAD_BYTES) as file:
        if storage.is_compressed(path):
            return next(_from_head(storage.read_chunks(file, path)))[:HEAD_BYTES]
        return file.read(HEAD_BYTES)


def contradiction(head: bytes, record_format: RecordFormat) -> str | None:
    """Why a file with these first bytes is not read in this format and encoding, and what to do; None if it is."""
    head, format_, encoding = head[:HEAD_BYTES], record_format.format, record_format.encoding
    wanted = "UTF-8" if encoding == "utf-8" else encoding
    for mark, other in _OTHER_MARKS.items():
        if head.startswith(mark):
            return f"begins with the byte order mark {mark.hex(' ').upper()}: {_CONVERT.format(other, wanted)}"
    if encoding != "utf-8" and head.startswith(UTF8_MARK):
        return f"begins with the byte order mark of UTF-8, and input.encoding is {encoding}"
    return _wrong_lines(head, record_format) or _other_content(head, format_, wanted)


def _num_controls(head: bytes) -> int:
    return len(head) - len(head.translate(None, _CONTROL))


def _wrong_lines(head: bytes, record_format: RecordFormat) -> str | None:
    """What is wrong with the ends of the lines, or with the first one."""
    format_, text = record_format.format, head.removeprefix(UTF8_MARK)
    has_lines = format_ != "parquet" and not INPUT_FORMATS[format_].is_one_record(record_format)
    if has_lines and not _num_controls(head) and b"\n" not in head and head.count(b"\r") > 1:
        return "has lines that end with a carriage return alone; convert it, for example with `tr '\\r' '\\n'`"
    separator = _SEPARATOR.match(text)
    if record_format.is_delimited and separator is not None:
        given = separator[1].decode("latin-1")
        return f"begins with the line sep={given}, which only Excel reads; remove it and set input.delimiter: {given!r}"
    return None


def _other_content(head: bytes, format_: str, wanted: str) -> str | None:
    """What the first bytes show that is not this format, and what to do. `wanted`: the encoding, in words."""
    found = format_by_content(head)
    if found == format_ or not head:
        return None
    name = INPUT_FORMATS[format_].title
    if found is not None:
        return f"looks like {INPUT_FORMATS[found].title}, not {name}; set input.format: {found}"
    for magic, (what, remedy) in _MAGIC.items():
        if re.match(magic, head):
            return f"looks like {what}, not {name}; {remedy}"
    control = _num_controls(head)
    if control >= _MIN_CONTROL and control > _MAX_CONTROL_SHARE * len(head):
        for other, low, high in (("UTF-16LE", head[::2], head[1::2]), ("UTF-16BE", head[1::2], head[::2])):
            if high.count(0) > len(high) / 2 and not low.count(0):
                return f"has a zero in every other byte: {_CONVERT.format(other, wanted)}"
        return f"looks like binary data, not {name}; leave it out of input.files"
    lines = _lines(head)
    if lines and _JSON_ARRAY.match(b"\n".join(lines)):
        return f"looks like a JSON array, not {name}; write one object per line, for example with `jq -c '.[]'`"
    if lines and _is_json_over_lines(head.removeprefix(UTF8_MARK)):
        return f"looks like JSON objects over several lines, not {name}; write one per line, for example with `jq -c .`"
    if not INPUT_FORMATS[format_].may_begin(lines):
        return f"looks like text, not {name}; set input.format: text"
    return None


def _is_json_over_lines(text: bytes) -> bool:
    """Whether text begins with a JSON object that ends in a later line, or seems to."""
    try:
        record, end = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return _JSON_OBJECT.match(text) is not None
    return isinstance(record, dict) and "\n" in text.decode("utf-8", "replace").lstrip()[:end]


def refusing_other_content(chunks: Iterator[bytes], record_format: RecordFormat) -> Iterator[bytes]:
    """The chunks of a file from its start, of which `refuse_other_content` sees the first bytes."""
    chunks = _from_head(chunks)
    head = next(chunks)
    refuse_other_content(head[:HEAD_BYTES], record_format)
    yield head
    yield from chunks


def _from_head(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks of a file. The first has `HEAD_BYTES` or more, if the file has, however small its gzip members are."""
    head, problem = b"", None
    try:
        while len(head) < HEAD_BYTES and (chunk := next(chunks, b"")):
            head += chunk
    except OSError as error:
        problem = error
    yield head
    if problem is not None:
        raise problem
    yield from chunks


def refuse_other_content(head: bytes, record_format: RecordFormat) -> None:
    """Raises UnreadableFileError if a file with these first bytes holds another format, or text in another encoding."""
    problem = contradiction(head, record_format)
    if problem is not None:
        raise UnreadableFileError(problem)
