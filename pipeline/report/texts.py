"""The text vectors: where they lie, layer by layer, and which texts are each other's nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.pipeline.report.html import Html, figure, folded, foreign, join, table, tag
from layerbeam.pipeline.report.plots import SIGNS
from layerbeam.pipeline.report.rows import RowsOfView
from layerbeam.pipeline.report.section import Asked, Section, brief, categories, components, layer_name
from layerbeam.pipeline.report.stats import Array, unit

_ADD = "No view of texts has rows; add one under `views`: `texts: {level: text, layers: all, pooling: mean}`."
_POINTS = 800
_QUERIES = 8
_NEIGHBOURS = 5


def check_color(views: Sequence[RowsOfView], color: str | None) -> None:
    """UsageError where no view of texts has that field."""
    fields = [
        name
        for view in views
        for name in view.schema.names
        if name not in view.vectors and name not in ("text", "line")
    ]
    if color is not None and views and color not in fields:
        known = list(dict.fromkeys(fields))
        raise UsageError(
            f"--color-by {color}: no view of texts has this column; it can be {', '.join(known)} (other fields of the "
            f"corpus go through with input.keep_fields){did_you_mean(color, known)}"
        )


def projection(asked: Asked) -> Section:
    """The first two principal components of each layer, side by side."""
    name, title = "projection", "Texts, layer by layer"
    views = asked.folder.of_level("text", "record")
    if not views:
        return Section.missing(name, title, _ADD)
    color = asked.color or "file"
    views = [view for view in views if color in view.schema.names]
    numbers: dict[str, Any] = {}
    return Section(name, title, join(_projection(asked, view, color, numbers) for view in views), numbers)


def _projection(asked: Asked, view: RowsOfView, color: str, numbers: dict[str, Any]) -> Html:
    sample = asked.sample(view)
    values = sample.table([color])[color].to_pylist()
    kinds, names = categories(values)
    random = np.random.default_rng([asked.seed, len(sample)])
    shown = np.sort(random.permutation(len(sample))[:_POINTS])
    layers = ((column, sample.vectors(column)) for column in view.vectors)
    plots, explained = components(asked.plots, layers, shown, kinds, f"{len(shown):,} texts by {color}")
    numbers[view.name] = {"rows": len(sample), "points": len(shown), "color": color, "explained_variance": explained}
    prefix = f"text-{view.name.encode().hex()}"
    read = (
        f"Each point is a {view.level}: {len(shown):,} of the sample ({sample.said}), by the first two "
        "principal components of each layer, which hold the share of the variance that is given: points far apart "
        f"differ, near ones may, in other directions. Colours are values of “{color}”: where they lie "
        "apart, the layer tells them apart."
    )
    columns = [c for c in ("file", "id", "line", "text") if c in view.schema.names]
    rows = [
        (_key(int(kinds[i])), foreign(names[kinds[i]]), *_cells(row))
        for i, row in zip(shown, _some(sample.table(columns), shown), strict=True)
    ]
    points = folded(
        "The points as a table",
        table(
            ["", color, "place", *(["text"] if "text" in columns else [])],
            rows,
            caption=f"The {len(rows):,} points",
            row_ids=_ids(prefix, len(rows)),
        ),
    )
    return join(
        [
            tag("h3", "View ", foreign(view.name), f", {len(view.vectors)} layer{'s' * (len(view.vectors) > 1)}"),
            tag("div", legend(names), figure(plots, read, points), class_="linked", data_rows=prefix),
        ]
    )


def legend(names: Sequence[str]) -> Html:
    """What signs and colours mean."""
    return tag("ul", *(tag("li", _key(i), " ", foreign(name)) for i, name in enumerate(names)), class_="legend")


def _key(category: int) -> Html:
    return tag("span", SIGNS[category], class_=f"k{category}", aria_hidden="true")


def _ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def _some(rows: Any, chosen: Array) -> list[dict[str, Any]]:
    picked: list[dict[str, Any]] = rows.take(chosen.tolist()).to_pylist()
    return picked


def _cells(row: dict[str, Any]) -> list[Html]:
    return [place(row), *([foreign(brief(row["text"]))] if "text" in row else [])]


def place(row: dict[str, Any]) -> Html:
    """Its id where the corpus has one; else file and line, from 1 as editors count."""
    return foreign(f"{row['file']}:{row['line'] + 1}" if row.get("id") is None else row["id"])


def neighbours(asked: Asked) -> Section:
    """Of some texts, drawn by the seed, those with the highest cosine."""
    name, title = "neighbours", "Nearest neighbours"
    views = asked.folder.of_level("text")
    if not views:
        return Section.missing(name, title, _ADD)
    view = views[0]
    column = max(view.vectors, key=lambda c: int(c.removeprefix("layer_")) if c.startswith("layer_") else -1)
    sample = asked.sample(view)
    rows = sample.table([c for c in ("file", "id", "line", "text") if c in view.schema.names])
    texts = rows["text"].to_pylist()
    vectors = unit(sample.vectors(column))
    random = np.random.default_rng([asked.seed, 1])
    different = list(dict.fromkeys(texts))
    if len(different) < 2:
        return Section(name, title, tag("p", "There are fewer than two different texts."), {})
    picked = random.permutation(len(different))[:_QUERIES]
    first = {text: number for number, text in reversed(list(enumerate(texts)))}
    queries = sorted(first[different[i]] for i in picked)
    cosines = vectors[queries] @ vectors.T
    blocks, numbers = [], []
    for query, row in zip(queries, cosines, strict=True):
        near = _nearest(row, texts, query)
        found = _some(rows, np.array([query, *near]))
        numbers.append({"text": texts[query], "nearest": [(texts[i], float(row[i])) for i in near]})
        lines = [
            (f"{row[i]:.3f}", place(hit), foreign(brief(hit["text"]))) for i, hit in zip(near, found[1:], strict=True)
        ]
        blocks.append(
            tag(
                "article",
                tag("h3", foreign(brief(texts[query])), class_="query"),
                table(["cosine", "place", "text"], lines, caption="Its nearest", numbers=["cosine"]),
            )
        )
    read = tag(
        "p",
        f"{len(queries)} texts drawn by the seed, each with the {_NEIGHBOURS} of the sample ({sample.said}) that have "
        f"the highest cosine in {layer_name(column)} of view {view.name}. The same words again are left out. Is what "
        "comes first of the same matter, or only of the same length, form or opening words?",
    )
    return Section(name, title, join([read, *blocks]), {"view": view.name, "column": column, "queries": numbers})


def _nearest(cosines: Array, texts: list[str], query: int) -> list[int]:
    """The rows with the highest cosine, of different texts."""
    seen, near = {texts[query]}, []
    for row in np.argsort(-cosines, kind="stable"):
        if texts[row] not in seen:
            seen.add(texts[row])
            near.append(int(row))
        if len(near) == _NEIGHBOURS:
            break
    return near
