"""Sentences as lists of words, one word with its columns in a line: CoNLL-U, and the plain columns of CoNLL-2003.

A sentence ends with a blank line, and is a record; `line` is its first one, a comment included. So files are cut and
read as paragraphs are.

CoNLL-U has ten columns between tabs. A word is a line whose id is a whole number; the ids of a sentence count from 1.
Lines of multiword tokens (`3-4`) and of empty nodes (`8.1`) hold no words and are left out. `_` in a
column is null, but for the form, and for the lemma of a word whose form is `_`. A comment `# key = value` is a field of
the sentence. Source: https://universaldependencies.org/format.

Plain columns stand between tabs, of which none is left out, or else between blanks. A line that begins with
-DOCSTART- holds no word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from layerbeam.transforms.flow.blocks import FIELD_TYPES, TextBlock
from layerbeam.transforms.flow.commits import FileRange
from layerbeam.transforms.input import text
from layerbeam.transforms.input.delimited import parse_number
from layerbeam.transforms.settings import RecordFormat, element_of

_MARK = "\ufeff"
_COMMENT = re.compile(r"#\s*([^\s=](?:[^=]*[^\s=])?)\s*=\s*(.*?)\s*")
_WORD_LINE = re.compile(rb"1(-\d+)?\t[^\t]+(\t[^\t]*){8}\r?")
_ID = re.compile(r"([1-9]\d*)|\d+[-.]\d+")
_DOCUMENT = "-DOCSTART-"


class _RejectedSentenceError(Exception):
    pass


class ConllInput(text.TextInput):
    """Plain columns: a word and its tags in each line."""

    title = "CoNLL columns"
    endings: ClassVar[tuple[str, ...]] = (".conll",)

    def record_of(self, record_format: RecordFormat) -> str:
        return "paragraph"

    def decode(self, block: FileRange, raw: bytes, record_format: RecordFormat) -> TextBlock:
        """The block's sentences. A line that is not as the format has it rejects its sentence."""
        records, sentences = text.decode(block, raw, record_format, "paragraph")
        fields = record_format.fields_read
        rows: list[list[Any]] = [[None] * len(fields)] * len(sentences)
        for index, sentence in enumerate(sentences.to_pylist()):
            if sentence is not None:
                try:
                    rows[index] = [*self._fields(sentence.split("\n"), record_format)]
                except _RejectedSentenceError as error:
                    records.reasons[index] = str(error)
        columns = zip(fields, zip(*rows, strict=True) if rows else [()] * len(fields), strict=True)
        return records.to_block(
            [pa.array(values, FIELD_TYPES.get(type_, pa.string())) for (_, type_), values in columns]
        )

    def _fields(self, lines: Sequence[str], record_format: RecordFormat) -> Iterator[Any]:
        """A value of each field of a sentence, in the order of `fields_read`."""
        names, words, comments = record_format.word_columns, list[Sequence[str | None]](), dict[str, str]()
        for number, line in enumerate(lines, start=1):
            try:
                columns = self._columns(line.removesuffix("\r"), len(words) + 1, comments)
                if columns is not None and len(columns) != len(names):
                    raise _RejectedSentenceError(f"has {len(columns)} columns, not {len(names)}")
            except _RejectedSentenceError as error:
                raise _RejectedSentenceError(f"{error} at line {number} of the sentence") from None
            if columns is not None:
                words.append(columns)
        for name, type_ in record_format.fields_read:
            if name in names:
                place, element = names.index(name), element_of(type_)
                yield [_typed(word[place], name, element, f" at word {index}") for index, word in enumerate(words)]
            else:
                yield _typed(comments.get(name), name, type_)

    def _columns(self, line: str, number: int, comments: dict[str, str]) -> Sequence[str | None] | None:
        """The columns of a line; None if it holds no word. `number`: of the next word, from 1."""
        if line.startswith(_DOCUMENT):
            return None
        return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


class ConlluInput(ConllInput):
    """CoNLL-U, the format of Universal Dependencies."""

    title = "CoNLL-U"
    endings = (".conllu",)

    def recognizes(self, head: bytes, lines: Sequence[bytes]) -> bool:
        return bool(lines) and lines[0].startswith(b"#") and any(map(_WORD_LINE.fullmatch, lines))

    def may_begin(self, lines: Sequence[bytes]) -> bool:
        return not lines or any(line.startswith(b"#") or line.count(b"\t") > 1 for line in lines)

    def _columns(self, line: str, number: int, comments: dict[str, str]) -> Sequence[str | None] | None:
        """The same, `_` as null. A comment is put into `comments`."""
        line = line.lstrip(_MARK)  # where files were joined
        if line.startswith("#"):
            comments |= comment_of(line)
            return None
        columns = line.split("\t")
        match = _ID.fullmatch(columns[0])
        if match is None or (match[1] is not None and match[1] != str(number)):
            raise _RejectedSentenceError("has no id" if match is None else "has an id that is not the next number")
        if match[1] is None:
            return None
        values: list[str | None] = [None if column == "_" else column for column in columns]
        values[1:2] = columns[1:2]
        if columns[1:3] == ["_", "_"]:
            values[2] = "_"
        return values


def comment_of(line: str) -> Mapping[str, str]:
    """{key: value} of a comment; nothing if the line is none, or has no key.

    >>> comment_of("# sent_id = weblog-1"), comment_of("# a remark")
    ({'sent_id': 'weblog-1'}, {})
    """
    match = _COMMENT.fullmatch(line)
    return {} if match is None else {match[1]: match[2]}


def _typed(value: str | None, name: str, type_: str, where: str = "") -> Any:
    if type_ in ("string", "id") or value is None or not value.strip():
        return value if type_ in ("string", "id") else None
    number = parse_number(value.strip(), type_)
    if number is None:
        raise _RejectedSentenceError(f"field `{name}` is not {type_}{where}")
    return number
