"""What each end of a run changed in the rows: files of `_runs`, which make a chain from one index to the next.

The first line of a file names the index before and after by the SHA-256 of `parts.jsonl`. Each further line says that
the rows of some lines of an input file came, or went, in some views. Only files of the chain that leads to the index of
today count: an end that died may have written one, and not the index.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from layerbeam.pipeline.errors import OutputError
from layerbeam.pipeline.output.commits import index_lines_if_any
from layerbeam.pipeline.output.run_log import run_numbers
from layerbeam.pipeline.output.scratch import Scratch
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import FileRange, printable
from layerbeam.transforms.flow.content_index import keys_of
from layerbeam.transforms.settings import adapter

Record = TypeVar("Record")

_NO_INDEX = hashlib.sha256().hexdigest()

# A row for each view and range of lines. In `net`, `number` pairs those of equal bytes that went and came.
_EVENTS = "CREATE TABLE events(sign INT, view TEXT, file TEXT, first_line INT, num_lines INT, content INT)"
_NET = """
CREATE TABLE net AS SELECT *, ROW_NUMBER() OVER (
        PARTITION BY sign, view, content, num_lines ORDER BY file, first_line) AS number
    FROM (SELECT SUM(sign) AS sign, view, file, first_line, num_lines, content
        FROM events GROUP BY view, file, first_line, num_lines, content) WHERE sign <> 0;
CREATE TABLE changes AS SELECT view, content, num_lines,
        MAX(CASE WHEN sign < 0 THEN file END) AS old_file,
        MAX(CASE WHEN sign < 0 THEN first_line END) AS old_first_line,
        MAX(CASE WHEN sign > 0 THEN file END) AS file,
        MAX(CASE WHEN sign > 0 THEN first_line END) AS first_line
    FROM net GROUP BY view, content, num_lines, number;
CREATE INDEX changes_of_file ON changes(file, first_line);
"""
_ALL = """
SELECT old_file, old_first_line, file, first_line, num_lines, GROUP_CONCAT(view, '/') FROM changes
WHERE :view IN (view, '') GROUP BY 1, 2, 3, 4, 5 ORDER BY COALESCE(file, old_file), COALESCE(first_line, old_first_line)
"""


class Event(NamedTuple):
    """Rows of lines of a file that came, or went, in these views.

    `file`: its name as the rows have it. `content`: stands for the bytes of the lines.
    """

    came: bool
    file: str
    first_line: int
    num_lines: int
    content: int
    views: tuple[str, ...]


def write_changes(output_path: str, number: int, after: str, events: Iterable[Event]) -> None:
    """Record what the end of a run changes, before it replaces the index. `after`: the SHA-256 of the new one."""
    before, name = _sha256_of_index(output_path), layout.changes_path(number, after)
    if before == after and storage.exists(storage.join(output_path, name)):
        return  # an engine has repeated the end
    with storage.write_atomically(storage.join(output_path, name)) as file:
        for line in itertools.chain([_Header(before, after)._asdict()], (event._asdict() for event in events)):
            file.write(json.dumps(line).encode("ascii") + b"\n")


def _sha256_of_index(output_path: str) -> str:
    sha256 = hashlib.sha256()
    for line in index_lines_if_any(output_path):
        sha256.update(line)
    return sha256.hexdigest()


class Place(NamedTuple):
    """A line of an input file, as rows have it."""

    file: str
    line: int


class Change(NamedTuple):
    """Lines whose rows came (`old` is None), went (`new` is None), or moved from there to here, in these views."""

    old: Place | None
    new: Place | None
    num_lines: int
    views: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`came`, `went` or `moved`."""
        return "came" if self.old is None else "went" if self.new is None else "moved"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        old = {} if self.old is None else {"old_file": self.old.file, "old_line": self.old.line}
        new = {} if self.new is None else self.new._asdict()
        return {"change": self.kind, **old, **new, "num_lines": self.num_lines, "views": self.views}


class Changes(Scratch):
    """The changes of all views between the ends of two runs. OutputError if they are not known.

    `since`: the position of the earlier end, or the number of its run; 0 for an empty folder, None for the end before
    the last one. `until`: the position of the end that wrote the index. A position, such as `3-0986df41cbcb9eb9`, is
    the number of a run and the start of the index's SHA-256 at its end: a folder that was made again has others. A row
    that went and came again is no change.
    """

    def __init__(self, output_path: str, since: str | int | None = None) -> None:
        self.since, self.until, paths = _find_chain(output_path, since)
        super().__init__(_EVENTS)
        for path in paths:
            self._change("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", _rows(path))
        self._run_script(_NET)

    def of(self, view: str = "") -> Iterator[Change]:
        """The changes of one view, or of all, in the order of the files and lines."""
        for old_file, old_line, file, line, num_lines, views in self._run(_ALL, {"view": view}):
            old = None if old_file is None else Place(old_file, old_line)
            new = None if file is None else Place(file, line)
            yield Change(old, new, num_lines, tuple(sorted(views.split("/"))))

    def kind_of(self, own: FileRange, view: str) -> str | None:
        """`came` or `moved`; None if the rows of these lines were there."""
        query = """SELECT CASE WHEN old_file IS NULL THEN 'came' ELSE 'moved' END FROM changes
                   WHERE (file, first_line, num_lines, content, view) = (?, ?, ?, ?, ?)"""
        lines = printable(own.file.path), own.first_line, own.num_lines
        return next((kind for (kind,) in self._run(query, (*lines, keys_of(own)[0], view))), None)


class _Header(NamedTuple):
    """The first line of a file."""

    before: str
    after: str


class _Link(NamedTuple):
    """A file of the chain, and the position of the end that wrote it. `before`: the SHA-256 of the index before."""

    number: int
    path: str
    before: str
    position: str


def _find_chain(output_path: str, since: str | int | None) -> tuple[str | int, str, list[str]]:
    """(the earlier end, the position of the end that wrote the index, the files between them)."""
    folder = storage.join(output_path, layout.RUNS)
    names = sorted(filter(None, map(layout.parse_changes_name, storage.file_names(folder))), reverse=True)
    last = max([*run_numbers(output_path), *(number for number, _ in names)], default=0)
    if isinstance(since, int) and since > last:
        raise OutputError(f"{output_path}: there is no run {since}; the last one is {last}")
    links, is_found = list[_Link](), False
    for link in _links(output_path, names):
        is_before_last = since is None and bool(links)
        links.append(link)
        is_found = is_before_last or link.position == since or (isinstance(since, int) and link.number <= since)
        if is_found:
            break
    if not (is_found or _is_whole(links, since, first=min(names)[0] if names else 0)):
        why = f"files of {layout.RUNS} are missing, or an earlier version wrote them"
        if isinstance(since, str):
            why = f"the folder was made again or restored from a copy, or {why}"
        earlier = "the run before" if since is None else f"run {since}"
        raise OutputError(f"{output_path}: how its rows changed since {earlier} is not known: {why}; read all rows")
    if since is None:
        since = links[-1].position if is_found else 0
    return since, links[0].position, [link.path for link in (links[:-1] if is_found else links)]


def _is_whole(links: Sequence[_Link], since: str | int | None, first: int) -> bool:
    """Whether the chain goes back to a state. `first`: the number of the first run that has a file."""
    if not links or isinstance(since, str):
        return False
    if since is None or links[-1].number <= since + 1:
        return True
    return links[-1].before == _NO_INDEX and first > since  # no run had ended by then


def _links(output_path: str, names: Iterable[tuple[int, str]]) -> Iterator[_Link]:
    """The chain of files that leads to the index of today, the newest first. `names`: of all files, like that."""
    left, after, last = list(names), _sha256_of_index(output_path), None
    for _ in range(len(left)):
        fits = (one for one in left if after.startswith(one[1]) and (last is None or one[0] <= last))
        number, digits = next(fits, (0, ""))
        if not number:
            return
        left.remove((number, digits))
        path = storage.join(output_path, layout.changes_path(number, digits))
        header = next(_read(path, _Header))
        if header.after == after:
            position, after, last = f"{number}-{digits}", header.before, number
            yield _Link(number, path, after, position)


def _rows(path: str) -> Iterator[tuple[int, str, str, int, int, int]]:
    """The rows of the table of events."""
    for event in _read(path, Event, skipped=1):
        lines = event.file, event.first_line, event.num_lines, event.content
        yield from ((1 if event.came else -1, view, *lines) for view in event.views)


def _read(path: str, type_: type[Record], skipped: int = 0) -> Iterator[Record]:
    """The lines of a file, without the first ones. OutputError if it is damaged."""
    parse = adapter(type_).validate_python
    try:
        with storage.open_binary(path) as file:
            for line in itertools.islice(file, skipped, None):
                yield parse(storage.parse_json(line))
    except ValueError as error:
        raise OutputError(f"{path}: cannot be read ({str(error).splitlines()[0]}); read all rows") from error
