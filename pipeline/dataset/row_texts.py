"""The texts of rows, found by their places: in a view of texts, or read again from the input files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from layerbeam.pipeline.dataset.reader import Run
from layerbeam.pipeline.dataset.view import FOLDER, View
from layerbeam.transforms.flow.commits import Commit, printable

# The columns file, line and sentence of a row.
Place: TypeAlias = tuple[str, int, int]


class RowText(NamedTuple):
    """A text, and the code point of the record with which it begins."""

    text: str
    start: int


def place_of(row: Mapping[str, Any]) -> Place:
    """Of a row with these columns; of a record, which has no sentence, that of its first text."""
    return row["file"], row["line"], row.get("sentence", 0)


def blocks_with(run: Run, lines: Iterable[tuple[str, int]]) -> Iterator[Commit]:
    """The blocks that hold some of these lines, given as the columns `file` and `line`."""
    wanted: dict[str, list[int]] = {}
    for file, line in lines:
        wanted.setdefault(file, []).append(line)
    for block in run.blocks():
        for own in block.files:
            end = own.first_line + own.num_lines
            if any(own.first_line <= line < end for line in wanted.get(printable(own.file.path), ())):
                yield block
                break


def text_views(run: Run) -> list[View]:
    """The views whose rows have a text and its place."""
    return [view for view in map(run.view, run) if view.level == "text" and view.has_places]


def texts_of(run: Run, view: View, rows: Sequence[Mapping[str, Any]]) -> list[RowText | None]:
    """The text of each row of a view, if it can be read; each is looked for in its own folder."""
    found: dict[tuple[str, Place], RowText] = {}
    folders = [row[FOLDER] if view.in_folders else run.path for row in rows]
    for folder in dict.fromkeys(folders):
        places = [place_of(row) for row, of_row in zip(rows, folders, strict=True) if of_row == folder]
        found |= {(folder, place): text for place, text in texts_at(run.members[folder], places).items()}
    return [found.get((folder, place_of(row))) for folder, row in zip(folders, rows, strict=True)]


def texts_at(run: Run, places: Iterable[Place]) -> dict[Place, RowText]:
    """The text of each place, if it can be read: of a view of texts, else the whole record from the input file."""
    wanted = set(places)
    views = text_views(run)
    found: dict[Place, RowText] = {}
    for block in blocks_with(run, {(file, line) for file, line, _ in wanted}):
        for view in views:
            if (part := block.parts.get(view.name)) is not None:
                rows = view.read(part, ["file", "line", "sentence", "text", "start"]).to_pylist()
                found |= {place_of(row): RowText(row["text"], row["start"]) for row in rows if place_of(row) in wanted}
                break
        else:
            with contextlib.suppress(OSError):  # missing, or changed since
                records = run.record_texts(block)
                found |= {place: RowText(records[place[:2]], 0) for place in wanted if place[:2] in records}
    return found


def plain_location(row: Mapping[str, Any]) -> str:
    """The location for a terminal, with plain spaces."""
    return location(row).replace("\N{NO-BREAK SPACE}", " ")


def location(row: Mapping[str, Any]) -> str:
    """The id if the corpus has one; otherwise the columns file, line and, if it is not 0, sentence, as they are.

    The numbers stay on the line of their names.

    >>> location({"file": "a.txt", "line": 7, "sentence": 0}).replace(chr(160), "_")
    'a.txt line_7'
    >>> location({"file": "a.txt", "line": 0, "id": "x"})
    'x'
    """
    if row.get("id") is not None:
        return str(row["id"])
    sentence = f" sentence\N{NO-BREAK SPACE}{row['sentence']}" if row.get("sentence") else ""
    return f"{row['file']} line\N{NO-BREAK SPACE}{row['line']}{sentence}"
