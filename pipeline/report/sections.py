"""The sections of the report except that of words: each computes its data from the run, alone."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pyarrow.compute as pc

from layerbeam.pipeline.console import size_text
from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.pipeline.report.context import PLACE, ReportContext, SampledView, Section
from layerbeam.pipeline.report.plots import SIGNS
from layerbeam.pipeline.report.stats import Array, project_layers
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.views.columns import unit

_MAX_BARS = 64
# Without a view of texts, lengths are counted from rows of tokens or words, in random parts up to this many rows.
_MAX_ROWS = 2_000_000
_MAX_REASONS = 40
_MAX_POINTS = 800
_QUERIES = 8
_NEIGHBOURS = 5
_TEXT_VIEW = "`texts: {level: text, layers: all, pooling: mean}`"


def overview(context: ReportContext) -> Section:
    """The run at a glance: what `layerbeam show` prints about the vectors. Speed is not part of the page."""
    run, summary = context.run, context.run.summary()
    facts = [
        *((name.capitalize(), fact) for name, fact in summary.facts),
        ("Tokens", f"{summary.counts.get(metrics.TOKENS, 0):,}, without special tokens"),
        *(("Note", note) for note in summary.notes),
        *(("Problem", problem) for problem in summary.problems),
        ("Fingerprint", summary.fingerprint),
        ("Written by", ", ".join(f"{name} {version}" for name, version in run.manifest["versions"].items())),
    ]
    views = [
        (view.name, view.level, f"{view.num_rows:,}", size_text(view.entry["bytes"]), view.vectors_text)
        for view in map(run.view, run)
    ]
    shown = {"encoder": summary.encoder["handle"], "encoder_text": summary.encoder_text}
    shown |= {"facts": facts, "views": views}
    return Section({"state": summary.state, "counts": dict(summary.counts)}, shown)


def lengths(context: ReportContext) -> Section:
    """A histogram of tokens per text, without special tokens, and what `max_seq_length` cuts off."""
    found = _text_lengths(context)
    if found is None:
        hint = "No view contains the lengths of the texts; add one with `level: text` under `views`."
        return Section(missing_hint=hint)
    kept, dropped, source = found
    tokens = kept if dropped is None else kept + dropped
    encoder = context.run.manifest["settings"]["encoder"]
    # What a text keeps depends on the special tokens and the prompt around it: those that were cut off show it.
    cut = None if dropped is None or not dropped.any() else int(kept[dropped > 0].max())
    common = int(np.quantile(tokens, 0.999))  # a few very long texts would flatten the rest
    width = max(1, -(-(common + 1) // _MAX_BARS))
    last = max(common, min(cut or 0, int(tokens.max()))) // width + 1
    edges = np.arange(last + 1) * width
    figures: dict[str, Any] = {
        "texts": len(tokens),
        "mean": float(tokens.mean()),
        "median": float(np.median(tokens)),
        "longest": int(tokens.max()),
        "max_seq_length": encoder["max_seq_length"],
    }
    if encoder["long_text"] == "truncate" and dropped is not None:
        figures |= {"cut": float((dropped > 0).mean()), "tokens_lost": float(dropped.sum() / max(tokens.sum(), 1))}
    bars, _ = np.histogram(tokens, edges)
    ranges = [f"{low} to {low + width - 1}" if width > 1 else str(low) for low in edges[:-1]]
    shown = {
        "source": source,
        "long_text": encoder["long_text"],
        "cut": cut,
        "line": None if cut is None or cut > edges[-1] else cut + 1,
        "bars": bars,
        "table": [(tokens_in_bar, int(n)) for tokens_in_bar, n in zip(ranges, bars, strict=True) if n],
        "edges": edges,
        "width": width,
        "beyond": int((tokens >= edges[-1]).sum()),
    }
    return Section(figures, shown)


def _text_lengths(context: ReportContext) -> tuple[Array, Array | None, str] | None:
    """(tokens with a vector, tokens cut off or None if unknown) for each text, and where they were counted."""
    for view in context.of_level("text", with_lists=True):
        rows = view.sample_table(["num_tokens", "num_dropped"])
        source = f"{view.sample_text} of view {view.name}"
        return rows["num_tokens"].to_numpy(), rows["num_dropped"].to_numpy(), source
    for view in context.of_level("token", "word"):
        if view.has_all_words and view.has_places:
            counts, parts = _count_tokens(view)
            source = f"{len(counts):,} texts in {parts:,} of {len(view.parts):,} parts of view {view.name}"
            return counts, None, source
    return None


def _count_tokens(view: SampledView) -> tuple[Array, int]:
    """(tokens of each text, number of parts read); the rows of a text are in one part."""
    column, function = ("num_tokens", "sum") if view.level == "word" else ("start", "count")
    counts: list[Array] = []
    rows_left = _MAX_ROWS
    for part in view.random_parts():
        rows = view.read(part, ["line", "sentence", "start", column])
        texts = rows.filter(pc.field("start") >= 0).group_by(["line", "sentence"]).aggregate([(column, function)])
        counts.append(texts[f"{column}_{function}"].to_numpy())
        rows_left -= part.rows
        if rows_left < 0:
            break
    return np.concatenate(counts), len(counts)


def rejects(context: ReportContext) -> Section:
    """Number of rejects per reason; the page shows the most frequent reasons."""
    reasons = dict(context.run.summary().rejects)
    shown = {
        "total": sum(reasons.values()),
        "records": context.run.manifest["counts"].get(metrics.RECORDS, 0),
        "rows": [(reason, n, 100 * n / max(reasons.values())) for reason, n in list(reasons.items())[:_MAX_REASONS]],
    }
    return Section({"reasons": reasons}, shown)


def layers(context: ReportContext) -> Section:
    """Every layer of every view with rows: distribution of values and norms, anisotropy."""
    views = context.of_level("token", "word", "text", "record")
    if not views:
        return Section(missing_hint=context.hint("view", "`tokens: {level: token, layers: all}`"))
    figures = {
        view.name: {
            "rows": view.sample_size,
            "layers": {column: layer.figures for column, layer in view.layers.items()},
        }
        for view in views
    }
    return Section(figures, {"views": views})


def check_color_by(context: ReportContext) -> None:
    """UsageError if no view of texts, or with `--word` of words, has the column to colour by."""
    levels = ("text", "record", *(("word", "token") if context.words else ()))
    views, color_by = context.of_level(*levels), context.color_by
    if color_by is None:
        return
    if not views:
        raise UsageError(f"--color-by: {context.hint('view of texts', _TEXT_VIEW)}")
    kind = "texts or words" if context.words else "texts"
    columns = [(view, name) for view in views for name in view.schema.names]
    known = list(dict.fromkeys(name for view, name in columns if name not in (*view.vectors, "text", "line")))
    if color_by not in known:
        raise UsageError(
            f"--color-by {color_by}: no view of {kind} has this column; it can be {', '.join(known)} "
            f"(input.keep_fields adds other fields of the corpus){did_you_mean(color_by, known)}"
        )


def projection(context: ReportContext) -> Section:
    """The vectors of each view of texts or records with the column to colour by, on two principal components."""
    color_by = context.color_by or "file"
    views = context.of_level("text", "record")
    if not views:
        return Section(missing_hint=context.hint("view of texts", _TEXT_VIEW))
    views = [view for view in views if color_by in view.schema.names]
    if not views:
        return Section(missing_hint=f"No view of texts has the column {color_by}, by which only words are coloured.")
    figures, shown = {}, []
    for view in views:
        categories, names = categorize(view.sample_table([color_by])[color_by].to_pylist())
        random = np.random.default_rng([context.seed, view.sample_size])
        drawn = np.sort(random.permutation(view.sample_size)[:_MAX_POINTS])
        projections = project_layers((column, view.sample_vectors(column)) for column in view.vectors)
        figures[view.name] = {
            "rows": view.sample_size,
            "points": len(drawn),
            "color": color_by,
            "explained_variance": {column: layer.explained for column, layer in projections.items()},
        }
        rows = view.sample_table(view.existing(*PLACE, "text")).take(drawn).to_pylist()
        shown.append(
            {
                "view": view,
                "names": names,
                "projections": projections,
                "drawn": drawn,
                "categories": categories[drawn],
                "points": rows,
            }
        )
    return Section(figures, {"color_by": color_by, "views": shown})


def categorize(values: list[Any]) -> tuple[Array, list[str]]:
    """([n] category numbers, names of the categories): the most frequent values; the last one holds the others.

    >>> categorize(["b", "a", "b", None])
    (array([0, 1, 0, 2]), ['b', 'a', '(none)'])
    """
    most = len(SIGNS)
    if len(set(values)) > most and all(isinstance(value, int | float) for value in values if value is not None):
        return _fifths(values)
    names = ["(none)" if value is None else str(value) for value in values]
    counts = Counter(names)
    by_count = sorted(counts, key=lambda name: (name == "(none)", -counts[name], name))
    number = {name: min(place, most - 1) for place, name in enumerate(by_count)}
    if len(by_count) > most:
        by_count[most - 1 :] = [f"{len(by_count) - most + 1:,} others"]
    return np.array([number[name] for name in names], np.int64), by_count


def _fifths(values: list[Any]) -> tuple[Array, list[str]]:
    """Fifths of numbers, named by their smallest and largest value; values of None come last."""
    known = np.array([value for value in values if value is not None])
    edges = np.unique(np.quantile(known, [0.2, 0.4, 0.6, 0.8]))
    present, fifths = np.unique(np.searchsorted(edges, known), return_inverse=True)
    names = [f"{known[fifths == i].min()} to {known[fifths == i].max()}" for i in range(len(present))]
    numbers = np.full(len(values), len(names))
    numbers[[value is not None for value in values]] = fifths
    return numbers, [*names, "(none)"] if len(known) < len(values) else names


def neighbours(context: ReportContext) -> Section:
    """The nearest texts in a view's last layer: to the command's texts among all rows, to random ones in the sample."""
    views = context.of_level("text")
    if not views:
        hint = context.hint("view of texts", _TEXT_VIEW)
        if context.texts:
            raise UsageError(f"--text: {hint}")
        return Section(missing_hint=hint)
    view = views[0]
    column = max(view.vectors, key=lambda name: int(name.removeprefix("layer_")) if name.startswith("layer_") else -1)
    rows = view.sample_table(view.existing(*PLACE, "text")).to_pylist()
    texts = [row["text"] for row in rows]
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2 and not context.texts:
        return Section(missing_hint="There are fewer than two different texts.")
    drawn = np.random.default_rng([context.seed, 1]).permutation(len(distinct))[:_QUERIES]
    chosen = sorted(texts.index(distinct[i]) for i in drawn)
    own = []
    if context.texts:
        from layerbeam.pipeline.dataset.query_texts import encode_given  # it imports Beam and TensorFlow

        encoded = encode_given(context.run, view.name, column, context.texts, trust=context.trust)
        nearest = _nearest_texts(view, column, encoded)
        own = [{"text": text, "nearest": hits} for text, hits in zip(context.texts, nearest, strict=True)]
    vectors = unit(view.sample_vectors(column))
    figures = []
    for row in chosen:
        cosines = np.clip(vectors @ vectors[row], -1, 1)
        best_rows: dict[str, int] = {}
        for other in np.argsort(-cosines, kind="stable").tolist():
            best_rows.setdefault(texts[other], other)
        del best_rows[texts[row]]
        hits = [
            {"cosine": float(cosines[hit]), **rows[hit]} for hit in itertools.islice(best_rows.values(), _NEIGHBOURS)
        ]
        figures.append({"text": texts[row], "nearest": hits})
    return Section(
        {"view": view.name, "column": column, "own_texts": own, "queries": figures},
        {"sample": view.sample_text, "neighbours": _NEIGHBOURS, "rows": view.num_rows},
    )


def _nearest_texts(view: SampledView, column: str, vectors: Array) -> list[list[dict[str, Any]]]:
    """For each vector the texts of the view with the highest cosines, of all its rows; of equal texts the first row."""
    count = 4 * _NEIGHBOURS
    while True:
        found = view.nearest(vectors, count, layer=column, columns=view.existing(*PLACE, "text"))
        best: list[dict[str, dict[str, Any]]] = [{} for _ in vectors]
        for row in found.to_pylist():
            query, cosine = row.pop("query"), row.pop("score")
            best[query].setdefault(row["text"], {"cosine": cosine, **row})
        if count >= view.num_rows or min(map(len, best)) >= _NEIGHBOURS:
            return [list(rows.values())[:_NEIGHBOURS] for rows in best]
        count *= 8  # a text that is often in the corpus
