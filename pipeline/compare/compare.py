"""`layerbeam compare A B`: how alike the vectors of the same rows of two runs are, and which moved most."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from layerbeam.pipeline.compare.statistics import (
    Array,
    Cosines,
    centred_gram,
    cosines,
    kept_neighbours,
    rotated_cosines,
)
from layerbeam.pipeline.console import count_noun, plain_console
from layerbeam.pipeline.dataset.join import Join, Pairs
from layerbeam.pipeline.dataset.reader import Run, open_run
from layerbeam.pipeline.dataset.row_texts import plain_location, texts_of
from layerbeam.pipeline.dataset.view import View
from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.transforms.flow.commits import Part
from layerbeam.transforms.views.number_types import as_matrix

NEIGHBOURS = 10
# CKA keeps n x n products for each layer.
_CKA_ROWS = 500
_LEAST_ROWS = 4
_SHOWN = 160  # characters of a text


@dataclasses.dataclass(frozen=True)
class ComparedViews:
    """A view of each run. `rows`: in both; `only`: in one of them; `joined_by`: columns that rows have in common.

    `columns`: for vector columns `a` and `b` the cosines of all rows (None if the widths differ): mean, median, `p5`
    and `p1`, which 5 % and 1 % of the rows do not exceed, least; and of the sample: `rotated`, `rotated_p5`, after the
    best rotation, and `kept`, the share of the nearest neighbours that stay. `cka`: [layers of A, layers of B], named
    by `layers`, of `cka_rows` rows. `moved`: rows with the lowest cosines in the columns `moved_by`, and their texts.
    """

    a: str
    b: str
    level: str
    joined_by: Sequence[str]
    rows: int
    only: tuple[int, int]
    sample: int
    columns: Sequence[Mapping[str, Any]]
    cka: Sequence[Sequence[float]]
    cka_rows: int
    layers: tuple[Sequence[str], Sequence[str]]
    moved_by: str
    moved: Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`settings`: what the runs were made with differently. `left_out`: views that are not compared."""

    a: str
    b: str
    settings: Sequence[str]
    views: Sequence[ComparedViews]
    left_out: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def compare(paths: tuple[str, str], *, view: str | None, sample: int, seed: int, count: int) -> Comparison:
    """Two runs compared, in all views that both have or in one. UsageError if there is nothing to compare.

    `view`: NAME, or NAME=OTHER if it has another name in the second run. `sample`: rows for rotations and neighbours.
    `count`: rows that moved most.
    """
    runs = open_run(paths[0], allow_incomplete=True), open_run(paths[1], allow_incomplete=True)
    pairs = _view_pairs(runs, view)
    views = [_compare_views(runs, pair, sample, seed, count) for pair in pairs]
    compared = {each.name for pair in pairs for each in pair}
    left_out = dict.fromkeys(name for run in runs for name in run if view is None and name not in compared)
    return Comparison(*paths, runs[0].differences(runs[1]), views, list(left_out))


def _view_pairs(runs: tuple[Run, Run], given: str | None) -> list[tuple[View, View]]:
    """The views of one level to compare: those given, or all of one name."""
    one, other = (
        {view.name: view for view in map(run.view, run) if view.has_places and not view.has_vector_lists}
        for run in runs
    )
    names = [(name, name) for name in one if name in other]
    if given is not None:
        first, _, second = given.partition("=")
        names = [(first, second or first)]
        for name, views, run in zip(names[0], (one, other), runs, strict=True):
            if name not in views:
                hint = did_you_mean(name, views) or f"; it has {', '.join(views) or 'none'}"
                raise UsageError(f"--view {given}: {run.path} has no such view with a vector and a place per row{hint}")
    pairs = [(one[a], other[b]) for a, b in names if one[a].level == other[b].level != "word_type"]
    if not pairs:
        has = "; ".join(
            f"{run.path} has {', '.join(f'{view.name} ({view.level})' for view in views.values()) or 'none'}"
            for run, views in zip(runs, (one, other), strict=True)
        )
        raise UsageError(f"no view of the same name and level has a vector per row: {has}; give --view NAME=OTHER")
    return pairs


def _compare_views(
    runs: tuple[Run, Run], views: tuple[View, View], sample: int, seed: int, count: int
) -> ComparedViews:
    a, b = views
    same_names = [(name, name) for name in a.vectors if name in b.vectors]
    columns = list(dict.fromkeys([*same_names, (a.vectors[-1], b.vectors[-1])]))  # and the last of each
    are_as_wide = a.width == b.width
    plain, drawn, moved, rows = {pair: Cosines() for pair in columns}, _Sample(sample, seed), _MostMoved(count), 0
    join = Join(runs, views)
    for pairs in join:
        tables = (
            a.read(pairs.part, a.vectors, pairs.rows),
            b.read(pairs.other_part, b.vectors, pairs.other_rows),
        )
        one, other = (
            {name: as_matrix(table[name]).astype(np.float32, copy=False) for name in table.column_names}
            for table in tables
        )
        rows += len(pairs.rows)
        drawn.add(pairs, (one, other))
        for pair in columns if are_as_wide else ():
            found = cosines(one[pair[0]], other[pair[1]])
            plain[pair].add(found)
            if pair == columns[-1]:
                moved.add(found, [(pairs.part, row) for row in pairs.rows.tolist()])
    if rows < _LEAST_ROWS:
        raise UsageError(_too_few(views, join.columns, rows))
    one, other = drawn.vectors
    if not are_as_wide:
        moved.add(rotated_cosines(one[columns[-1][0]], other[columns[-1][1]]), drawn.places[1::2])
    grams = [np.stack([centred_gram(values[:_CKA_ROWS]) for values in side.values()]) for side in (one, other)]
    return ComparedViews(
        a.name,
        b.name,
        a.level,
        join.columns,
        rows,
        (a.num_rows - rows, b.num_rows - rows),
        len(drawn.places),
        [{"a": x, "b": y, **plain[x, y].figures(), **_of_sample(one[x], other[y])} for x, y in columns],
        (grams[0] @ grams[1].T).round(6).tolist(),
        min(_CKA_ROWS, len(drawn.places)),
        (a.vectors, b.vectors),
        " and ".join(dict.fromkeys(columns[-1])) + ("" if are_as_wide else ", rotated"),
        moved.rows(runs[0], a),
    )


def _of_sample(one: Array, other: Array) -> dict[str, float]:
    rotated, kept = rotated_cosines(one, other), kept_neighbours(one, other, NEIGHBOURS)
    found = {"rotated": rotated.mean(), "rotated_p5": np.quantile(rotated, 0.05), "kept": kept}
    return {name: round(float(value), 9) for name, value in found.items()}


def _too_few(views: tuple[View, View], columns: Sequence[str], rows: int) -> str:
    first, other_first = (view.first_rows(1).select(columns[:2]).to_pylist() for view in views)
    return (
        f"{views[0].path} and {views[1].path} have {count_noun(rows, 'row')} of view {views[0].name} in common, by "
        f"{', '.join(columns)}; at least {_LEAST_ROWS} are compared. The first rows are {first or 'none'} and "
        f"{other_first or 'none'}: embed the same files, under the same paths, or with input.id_field"
    )


class _Sample:
    """Vectors of the rows with the lowest hashes, in their order: whatever comes first. At most `count`."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._turn = np.uint64(seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        self._hashes = np.zeros(0, np.uint64)
        self.places: list[tuple[Part, int]] = []
        self.vectors: tuple[dict[str, Array], dict[str, Array]] = ({}, {})

    def add(self, pairs: Pairs, vectors: tuple[dict[str, Array], dict[str, Array]]) -> None:
        known, hashes = len(self._hashes), np.concatenate([self._hashes, pairs.keys.view(np.uint64) ^ self._turn])
        chosen = np.argsort(hashes)[: self._count]
        kept, new = chosen[chosen < known], chosen[chosen >= known] - known
        if not len(new):
            return
        order = np.argsort(hashes[np.concatenate([kept, new + known])])
        places = [self.places[row] for row in kept.tolist()]
        places += [(pairs.part, row) for row in pairs.rows[new].tolist()]
        self._hashes, self.places = hashes[chosen], [places[row] for row in order.tolist()]
        for side, found in zip(self.vectors, vectors, strict=True):
            for name, values in found.items():
                side[name] = np.concatenate([side.get(name, values[:0])[kept], values[new]])[order]


class _MostMoved:
    """The rows with the lowest cosines. At most `count`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._found: list[tuple[float, Part, int]] = []

    def add(self, cosines: Array, places: Sequence[tuple[Part, int]]) -> None:
        lowest = np.argsort(cosines, kind="stable")[: self._count].tolist()
        self._found += [(float(cosines[number]), *places[number]) for number in lowest]
        self._found = sorted(self._found, key=lambda found: found[0])[: self._count]

    def rows(self, run: Run, view: View) -> list[dict[str, Any]]:
        """The columns but the vectors, cosine and text of each, the lowest first."""
        found = [view.read(part, view.other_columns, np.array([row])).to_pylist()[0] for _, part, row in self._found]
        texts = [None] * len(found) if "text" in view.schema.names else texts_of(run, view, found)
        for (cosine, _, _), row, known in zip(self._found, found, texts, strict=True):
            row |= {"cosine": round(cosine, 9), "text": row.get("text", None if known is None else known.text)}
        return found


def print_comparison(comparison: Comparison) -> None:
    """Print a table for each view, the layers that are most alike, and the rows that moved most."""
    console, paths = plain_console(soft_wrap=True), (comparison.a, comparison.b)
    console.print(f"{paths[0]} and {paths[1]}")
    console.print_section("differ in", comparison.settings or ["no setting, encoder or version"])
    for view in comparison.views:
        names = view.a if view.a == view.b else f"{view.a} and {view.b}"
        only = ", ".join(f"{number:,} only in {path}" for number, path in zip(view.only, paths, strict=True))
        console.print(f"\n{names}: {count_noun(view.rows, 'row')} in both, {only}")
        headings = ("vectors", "mean", "median", "5 %", "1 %", "least", "rotated", "kept")
        console.print_table(headings, [_cells(column) for column in view.columns], left=("vectors",))
        console.print(
            f"cosines of all rows; of a sample of {view.sample:,}: after the best rotation, and the share of the "
            f"{NEIGHBOURS} nearest neighbours kept"
        )
        best = (f"{view.layers[1][int(np.argmax(values))]} {max(values):.3f}" for values in view.cka)
        alike = ", ".join(f"{name} {other}" for name, other in zip(view.layers[0], best, strict=True))
        console.print(f"most alike, by CKA: {alike}")
        console.print(f"moved most, by {view.moved_by}:")
        for row in view.moved:
            text = "(no text)" if row["text"] is None else " ".join(row["text"].split())[:_SHOWN]
            of_word = f"{row[view.level]}: " if view.level in ("token", "word") else ""
            console.print(f"{row['cosine']:>9.4f}  {plain_location(row)}  {of_word}{text}")
    if comparison.left_out:
        console.print(f"\nleft out  {', '.join(comparison.left_out)}: in one run, or not a vector with a place per row")


def _cells(column: Mapping[str, Any]) -> list[str]:
    figures = [column[name] for name in ("mean", "median", "p5", "p1", "least", "rotated")]
    names = ", ".join(dict.fromkeys([column["a"], column["b"]]))
    return [names, *("-" if figure is None else f"{figure:.4f}" for figure in figures), f"{column['kept']:.1%}"]
