"""`layerbeam search OUT`: the rows of a finished run nearest to a text, or to a row of the run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.console import count_noun, plain_console
from layerbeam.pipeline.dataset.nearest import OWN_COLUMNS, Metric, check_where
from layerbeam.pipeline.dataset.reader import Run, open_run
from layerbeam.pipeline.dataset.row_texts import blocks_with, plain_location, texts_of
from layerbeam.pipeline.dataset.view import UnknownNameError, View
from layerbeam.pipeline.dataset.word_rows import LACKS_TEXTS, WordRows, same_words
from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.pipeline.search.where import parse_where
from layerbeam.transforms.flow.commits import Part, printable
from layerbeam.transforms.views.number_types import as_matrix

# The line in FILE:LINE or FILE:LINE:WORD; the names of files and words may have such a part, too.
_LINE = re.compile(r"(?<=.):(\d+)(?=:.|\Z)", re.DOTALL)
_WORDS = ("token", "word")
_TEXTS = ("text", "record")
# What tells a row from all others of its view.
_KEY = ("folder", "file", "line", "sentence", "token_index", "word_index")
_NAMED = 30
# Characters that are printed on each side of the word, or of a text twice as many.
_CONTEXT = 80


@dataclasses.dataclass(frozen=True)
class Query:
    """What the rows are compared with. `given`: as the command gave it, under `text` or `like`.

    `rows`: those that it is made of, which are not among the nearest; `matches`: how many words of the line it may be.
    """

    given: Mapping[str, str]
    vector: npt.NDArray[Any]
    rows: Sequence[Mapping[str, Any]] = ()
    matches: int = 1


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """`nearest`: for each query its rows, with `score`, `text` if it is known, and the `span` of a word in it."""

    view: View
    column: str
    metric: Metric
    where: str | None
    queries: Sequence[Query]
    nearest: Sequence[Sequence[Mapping[str, Any]]]

    def to_json(self) -> dict[str, Any]:
        found = zip(self.queries, self.nearest, strict=True)
        return {
            "path": self.view.path,
            "view": self.view.name,
            "column": self.column,
            "metric": self.metric,
            "where": self.where,
            "queries": [{**query.given, "rows": query.rows, "nearest": rows} for query, rows in found],
        }


def search(
    output: str | Sequence[str],
    *,
    texts: Sequence[str],
    like: Sequence[str],
    view: str | None,
    layer: str | None,
    count: int,
    metric: Metric,
    where: str | None,
    prompt: str | None,
    trust: bool,
) -> SearchResult:
    """The `count` rows of a view nearest to each text and each row. `trust`: as for `Run.job`.

    `prompt`: before each text, the name of one of the model's prompts or the prompt itself; None: `query_prompt`.

    UsageError if the run is not finished, or an option names what it does not have.
    """
    if not (texts or like):
        raise UsageError("what to search for is missing: give --text, or --like")
    run = open_run(output, allow_incomplete=True)
    searched = _view(run, view, of_texts=bool(texts))
    try:
        column = searched.vector_column(int(layer) if layer is not None and layer.isdecimal() else layer)
    except (ValueError, UnknownNameError) as error:
        raise UsageError(f"--layer: {error}") from error
    expression = None if where is None else _checked_where(run, searched, where)
    queries = [Query({"like": given}, *_like(run, searched, column, given)) for given in like]
    if texts:
        from layerbeam.pipeline.dataset.query_texts import encode_given  # it imports Beam and TensorFlow

        vectors = encode_given(run, searched.name, column, texts, prompt=prompt, trust=trust)
        queries = [Query({"text": text}, vector) for text, vector in zip(texts, vectors, strict=True)] + queries
    found = searched.nearest(
        np.stack([query.vector for query in queries]),
        count + max(len(query.rows) for query in queries),
        layer=column,
        metric=metric,
        where=expression,
        columns=[name for name in searched.other_columns if name not in OWN_COLUMNS],
    )
    rows = [found.filter(pc.equal(found["query"], number)).drop_columns("query") for number in range(len(queries))]
    nearest = [
        _without(of_query.to_pylist(), query.rows)[:count] for of_query, query in zip(rows, queries, strict=True)
    ]
    _add_texts(run, searched, [row for of_query in [*nearest, *(query.rows for query in queries)] for row in of_query])
    return SearchResult(searched, column, metric, where, queries, nearest)


def _view(run: Run, name: str | None, *, of_texts: bool) -> View:
    """The view of that name, or the only one that can be searched."""
    levels = _TEXTS if of_texts else (*_TEXTS, *_WORDS)
    views = [view for view in map(run.view, run) if view.level in levels and view.has_places]
    views = [view for view in views if not view.has_vector_lists]
    if name is None:
        return _only_view(run, views, of_texts=of_texts)
    try:
        view = run.view(name)
    except UnknownNameError as error:
        raise UsageError(f"--view {error}") from error
    if name in [each.name for each in views]:
        return view
    if view.level in _WORDS and of_texts:
        raise UsageError(f"--view {name}: has a row per {view.level}, not per text: give --like FILE:LINE:WORD")
    if view.has_vector_lists:
        what = "has a list of vectors in each row (pooling: none), not one vector"
        raise UsageError(f"--view {name}: {what}: see docs/output.md")
    raise UsageError(
        f"--view {name}: its rows have no place in a file; in Python: open_run(...)[{name!r}].nearest(...)"
    )


def _only_view(run: Run, views: Sequence[View], *, of_texts: bool) -> View:
    """The only one of the views that can be searched. UsageError if there are none or several."""
    if len(views) == 1:
        return views[0]
    kind = "views of texts with one vector each" if of_texts else "views with a vector per row and its place"
    known = ", ".join(view.name for view in views)
    lists = [each for each in run if run[each].has_vector_lists]
    only = f", only lists of vectors ({', '.join(lists)}): see docs/output.md" if lists else ""
    what = f"several {kind}: {known}" if views else f"no {kind}{only}"
    raise UsageError(f"--view is missing: {run.path} has {what}")


def _checked_where(run: Run, view: View, where: str) -> pc.Expression:
    expression = parse_where(where, same_words(run, view) if view.level == "word" else None)
    try:
        check_where(view, expression)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    return expression


def _like(run: Run, view: View, column: str, given: str) -> tuple[npt.NDArray[Any], list[dict[str, Any]], int]:
    """(the vector at a place of the run, the mean for several pieces of a word; its rows; see `Query.matches`)."""
    places = [(given[: found.start()], int(found[1]), given[found.end() + 1 :]) for found in _LINE.finditer(given)]
    if not places:
        raise UsageError(
            f"--like {given}: is not FILE:LINE or FILE:LINE:WORD, such as a.txt:17:bank; FILE and LINE are as in "
            "the columns `file` and `line`, which counts from 0"
        )
    if len(places) > 1:
        known = {printable(entry["path"]) for entry in run.inputs()}
        places = [place for place in places if place[0] in known][-1:] or places
    file, line, which = places[0]
    place = file, line
    parts = [block.parts[view.name] for block in blocks_with(run, [place]) if view.name in block.parts]
    if len(parts) > 1:
        folders = ", ".join(map(view.folder_of, parts))
        raise UsageError(f"--like {given}: {file} is in several folders, {folders}; search one of them for it first")
    part = parts[0] if parts else None
    columns = [name for name in view.other_columns if name not in OWN_COLUMNS]
    in_line = np.zeros(0, np.int64)
    if part is not None:
        lines = view.read(part, ["file", "line"])
        in_line = np.flatnonzero(pc.and_(pc.equal(lines["file"], place[0]), pc.equal(lines["line"], place[1])))
    if part is None or not len(in_line):
        raise UsageError(f"--like {given}: {_missing(run, view, *place)}")
    table = view.read(part, columns, in_line)
    found = _which(run, view, part, table, in_line, which or None)
    if isinstance(found, str):
        raise UsageError(f"--like {given}: {found}")
    vectors = as_matrix(view.read(part, [column], in_line[found[0]])[column])
    return vectors.astype(np.float64).mean(axis=0), table.take(found[0]).to_pylist(), len(found)


def _which(
    run: Run, view: View, part: Part, table: pa.Table, in_line: npt.NDArray[Any], which: str | None
) -> str | list[npt.NDArray[Any]]:
    """The rows of a line that are meant, each time as indices; or what to give instead."""
    if view.level in _TEXTS:
        rows = [np.array([row]) for row in range(table.num_rows)]
        if which is not None:
            numbers = table["sentence"].to_pylist() if view.level == "text" else []
            rows = [rows[i] for i, number in enumerate(numbers) if str(number) == which]
        if len(rows) == 1:
            return rows
        last = table.num_rows - 1
        return f"the line has {count_noun(last + 1, 'row')} in view {view.name}" + (
            f": give the number of the sentence, FILE:LINE:0 to FILE:LINE:{last}" if last else "; leave the rest out"
        )
    word = WordRows(run, which or "")
    hits = word.find(view, part, in_line)
    words = word.seen or list(dict.fromkeys(table[view.level].to_pylist()))
    shown = ", ".join(words[:_NAMED]) + (", ..." if len(words) > _NAMED else "")
    if which is None:
        return f"which {view.level}? Give FILE:LINE:WORD; view {view.name} has of this line: {shown}"
    index = {row: i for i, row in enumerate(in_line.tolist())}
    if not hits and word.lacks_texts:
        return f"view {view.name}: {LACKS_TEXTS}"
    if not hits:
        return f"view {view.name} has no {which!r} in this line, only: {shown}{did_you_mean(which, words)}"
    return [np.array([index[row] for row in hit]) for hit in hits]


def _missing(run: Run, view: View, file: str, line: int) -> str:
    """Why there is no row of that line."""
    files = [printable(entry["path"]) for entry in run.inputs()]
    if file not in files:
        same_name = [known for known in files if known.rpartition("/")[2] == file.rpartition("/")[2]]
        hint = f"; did you mean `{same_name[0]}`?" if len(same_name) == 1 else did_you_mean(file, files)
        return f"{file} is none of the {count_noun(len(files), 'input file')} of {run.path}{hint}"
    return f"view {view.name} has no row of line {line} of {file}; lines count from 0, as in the column `line`"


def _without(rows: list[dict[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows but those of the query itself."""
    keys = {_key(row) for row in own}
    return [row for row in rows if _key(row) not in keys]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _KEY)


def _add_texts(run: Run, view: View, rows: Sequence[Any]) -> None:
    """Add to each row its `text`, or None, and in views of words the `span` of the word, or None."""
    has_texts = "text" in view.schema.names
    known = [None] * len(rows) if has_texts else texts_of(run, view, rows)
    for row, found in zip(rows, known, strict=True):
        text, start = (row["text"], None) if "text" in row else found or (None, None)
        row["text"] = text
        if view.level in _WORDS:
            row["span"] = None if text is None else _span(row, view.level, text, start)


def _span(row: Mapping[str, Any], level: str, text: str, start: int | None) -> tuple[int, int] | None:
    """Where the word is. `start`: the text's in the record; None if it is not known, as of a sentence kept with a word.

    The second texts of pairs have offsets of their own, so the word is compared.
    """
    word = re.sub("^(##|\u0120|\u2581)", "", row[level])
    first, end = (row[name] - (start or 0) for name in ("start", "end"))
    is_inside = 0 <= first < end <= len(text)
    if is_inside and text[first:end].casefold() == word.casefold():
        return first, end
    others = [match.span() for match in re.finditer(re.escape(word), text, re.IGNORECASE)] if row["start"] >= 0 else []
    return others[0] if len(others) == 1 else (first, end) if is_inside and start is not None else None


def print_search(result: SearchResult) -> None:
    """Print each query, and below it a line per row: score, place, text with the word in brackets."""
    console = plain_console(soft_wrap=True)
    where = "" if result.where is None else f" where {result.where}"
    rows = count_noun(result.view.num_rows, "row")
    console.print(f"{result.view.name}, {result.column}, {result.metric}: all of {rows}{where}")
    for query, nearest in zip(result.queries, result.nearest, strict=True):
        of_several = f", the first of {query.matches}" if query.matches > 1 else ""
        console.print(f"\n{query.given.get('text') or query.given['like']}{of_several}")
        lines = [*(("query", row) for row in query.rows[:1]), *((f"{row['score']:.4f}", row) for row in nearest)]
        places = [_place(result.view, row) for _, row in lines]
        width = max(map(len, places), default=0)
        for (score, row), place in zip(lines, places, strict=True):
            console.print(f"{score:>9}  {place:{width}}  {_shown(result.view.level, row)}".rstrip())
        if not nearest:
            console.print("no row")
    lacking = sum(row["text"] is None for nearest in result.nearest for row in nearest)
    if lacking:
        rows = count_noun(lacking, "row")
        console.print(f"\n{rows} without a text: no view has it, and the input file is missing or has changed")


def _place(view: View, row: Mapping[str, Any]) -> str:
    """Where a row is from, on one line."""
    return (f"{row['folder']}: " if view.in_folders else "") + plain_location(row)


def _shown(level: str, row: Mapping[str, Any]) -> str:
    """The text on one line, cut off far from the word."""
    text, span = row["text"], row.get("span")
    if text is None:
        return str(row.get(level, ""))
    if span is None:
        head = " ".join(text[: 2 * _CONTEXT].split())
        of_word = f"{row[level]}: " if level in _WORDS else ""
        return f"{of_word}{head}{' ...' if len(text) > 2 * _CONTEXT else ''}"
    start, end = span  # of a token with the blank before it
    start += len(text[start:end]) - len(text[start:end].lstrip())
    before, word, after = text[:start], text[start:end], text[end:]
    left = ("... " if len(before) > _CONTEXT else "") + before[-_CONTEXT:]
    right = after[:_CONTEXT] + (" ..." if len(after) > _CONTEXT else "")
    return " ".join(f"{left}[{word}]{right}".split())
