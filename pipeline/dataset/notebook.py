"""How a notebook shows a run and its views: tables of counts, columns and first rows, never vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.console import count_noun
from layerbeam.pipeline.dataset.view import shape_text, vectors_text
from layerbeam.pipeline.markup import Html, escape
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.views.number_types import element_type, vector_names

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.reader import Run
    from layerbeam.pipeline.dataset.view import View

_ROWS = 5
_CHARACTERS = 80


def run_html(run: Run) -> str:
    """The encoder, the counts, the problems, and a table of the views."""
    manifest = run.manifest
    counts, encoder = manifest["counts"], manifest["encoder"]
    rejected = sum(counts.get(name, 0) for name in (metrics.REJECTED, metrics.OF_SENTENCES[metrics.REJECTED]))
    facts = [
        f"{encoder['handle']}, {shape_text(encoder)}",
        f"{count_noun(counts.get(metrics.RECORDS, 0), 'record')} read, "
        f"{count_noun(metrics.embedded_texts(counts), 'text')} embedded, {rejected:,} rejected",
        *manifest["problems"],
    ]
    views = [
        (name, f"{entry['rows']:,}", entry["level"], vectors_text(entry), entry["format"])
        for name, entry in manifest["views"].items()
    ]
    head = _heading("layerbeam run", run.path, "" if manifest["complete"] else ", not complete")
    table = _table(("view", "rows", "one per", "vectors", "format"), views)
    return "".join([head, *(f"<div>{escape(fact)}</div>" for fact in facts), table])


def view_html(view: View) -> str:
    """The columns with their types, and the first rows without vectors."""
    columns = [(field.name, _type_text(field.type)) for field in view.schema]
    head = _heading("view", view.name, f": {count_noun(view.num_rows, 'row')}, one per {view.level}; {view.format}")
    return f"{head}{_table(('column', 'type'), columns)}{_first_rows(view)}"


def _first_rows(view: View) -> str:
    """The first rows of the first part; what is wrong with its file, if it cannot be read."""
    if not view.parts:
        return ""
    part = view.parts[0]
    # A text-based file has no more columns than it says, and is read only as far as these rows.
    without = [name for name in view.schema.names if name not in vector_names(view.schema)]
    names = without if view.file_format.is_columnar else None
    try:
        rows: pa.Table = view.read(part, names, np.arange(min(_ROWS, part.rows)))
    except (OSError, ValueError) as error:
        return f"<div>{escape(error)}</div>"
    if not rows.num_rows:
        return ""
    shown = rows.select([name for name in rows.column_names if name in without])
    caption = f"<div>first {count_noun(rows.num_rows, 'row')}, without vectors</div>"
    return caption + _table(shown.column_names, zip(*(column.to_pylist() for column in shown.columns), strict=True))


def _type_text(type_: pa.DataType) -> str:
    """`int64`, `384 x float32` of vectors, `lists of 384 x float32`."""
    element = element_type(type_)
    if not pa.types.is_fixed_size_list(element):
        return str(type_)
    lists = "lists of " if pa.types.is_list(type_) else ""
    return f"{lists}{element.list_size} x {np.dtype(element.value_type.to_pandas_dtype())}"


def _heading(what: str, name: str, rest: str) -> Html:
    return Html(f"<div>{escape(what)} <b>{escape(name)}</b>{escape(rest)}</div>")


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    lines = [_row("th", headings), *(_row("td", row) for row in rows)]
    return Html(f"<table>{''.join(lines)}</table>")


def _row(tag: str, cells: Iterable[object]) -> str:
    opened = f'<{tag} style="text-align: left">'
    return f"<tr>{''.join(f'{opened}{escape(_shortened(cell))}</{tag}>' for cell in cells)}</tr>"


def _shortened(cell: object) -> str:
    text = "" if cell is None else str(cell)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}..."
