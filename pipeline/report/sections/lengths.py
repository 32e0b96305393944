"""The lengths of the texts, and what `max_seq_length` cuts off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from layerbeam.pipeline.report.context import ReportContext, Section
from layerbeam.pipeline.report.rows import RowsOfView
from layerbeam.pipeline.report.stats import Array

_MAX_BARS = 64
# Without a view of texts, lengths are counted from rows of tokens or words, in random parts up to this many rows.
_MAX_ROWS = 2_000_000


def lengths(context: ReportContext) -> Section:
    """A histogram of tokens per text, without [CLS] and [SEP]."""
    found = _text_lengths(context)
    if found is None:
        hint = "No view contains the lengths of the texts; add one with `level: text` under `views`."
        return Section(missing_hint=hint)
    kept, dropped, source = found
    tokens = kept if dropped is None else kept + dropped
    encoder, given = (context.folder.head["settings"][name] for name in ("encoder", "input"))
    special = 3 if given.get("pair_field") or given.get("pair_separator") else 2
    cut = encoder["max_seq_length"] - special if encoder["long_text"] == "truncate" else None
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
    if cut is not None and dropped is not None:
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
    for view in context.folder.of_level("text"):
        rows = context.sample(view).table(["num_tokens", "num_dropped"])
        source = f"{context.description(view)} of view {view.name}"
        return rows["num_tokens"].to_numpy(), rows["num_dropped"].to_numpy(), source
    for view in context.folder.of_level("token", "word"):
        if view.has_all_words and view.has_places:
            counts, parts = _count_tokens(view)
            source = f"{len(counts):,} texts in {parts:,} of {len(view.parts):,} parts of view {view.name}"
            return counts, None, source
    return None


def _count_tokens(view: RowsOfView) -> tuple[Array, int]:
    """(tokens of each text, number of parts read); the rows of a text are in one part."""
    column, function = ("num_tokens", "sum") if view.level == "word" else ("start", "count")
    counts: list[Array] = []
    rows_left = _MAX_ROWS
    for part in view.random_parts():
        rows = view.read(part, list(dict.fromkeys(["line", "sentence", "start", column])))
        texts = rows.filter(pc.field("start") >= 0).group_by(["line", "sentence"]).aggregate([(column, function)])
        counts.append(texts[f"{column}_{function}"].to_numpy())
        rows_left -= part.rows
        if rows_left < 0:
            break
    return np.concatenate(counts), len(counts)
