"""The run at a glance, its rejects by reason, and its lengths: what was read, what was left out, what was cut off."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow.compute as pc

from layerbeam.pipeline.cli.console import count_noun, size_text
from layerbeam.pipeline.output.manifest import vectors_text
from layerbeam.pipeline.output.summary import balances, encoder_text, notes
from layerbeam.pipeline.report.html import figure, folded, foreign, join, table, tag
from layerbeam.pipeline.report.rows import RowsOfView
from layerbeam.pipeline.report.section import Asked, Section
from layerbeam.pipeline.report.stats import Array
from layerbeam.transforms import metrics

_BARS = 64
_REASONS = 40
# Lengths made of tokens or words: from parts drawn at random until so many rows are read.
_LENGTH_ROWS = 2_000_000


def at_a_glance(asked: Asked) -> Section:
    """What `layerbeam show` says of the vectors; how fast they came is no part of the page."""
    what = asked.folder.summary
    encoder, counts, inputs = what["encoder"], what["counts"], what["inputs"]
    facts: list[tuple[str, object]] = [
        ("State", what["state"]),
        ("Encoder", join([foreign(encoder["handle"]), f": {encoder_text(encoder)}"])),
        ("Input", f"{count_noun(inputs['files'], 'file')}, {size_text(inputs['bytes'])}"),
        *((of.capitalize(), balance) for of, balance in balances(counts)),
        ("Tokens", f"{counts.get(metrics.TOKENS, 0):,}, without [CLS] and [SEP]"),
        *(("Note", note) for note in notes(what)),
        *(("Problem", problem) for problem in what["problems"]),
        ("Fingerprint", tag("code", what["fingerprint"])),
        ("Written by", ", ".join(f"{name} {version}" for name, version in asked.folder.head["versions"].items())),
    ]
    views = [
        (foreign(name), view["level"], f"{view['rows']:,}", size_text(view["bytes"]), vectors_text(view))
        for name, view in what["views"].items()
    ]
    body = join(
        [
            tag("dl", *(tag("div", tag("dt", name), tag("dd", fact)) for name, fact in facts)),
            table(
                ["view", "one row per", "rows", "size", "vectors"],
                views,
                caption="What was kept of the forward pass",
                numbers=["rows", "size"],
            ),
        ]
    )
    return Section("glance", "The run at a glance", body, {"state": what["state"], "counts": dict(counts)})


def rejects(asked: Asked) -> Section:
    """How often each reason comes."""
    reasons = asked.folder.summary["rejects"]
    if not reasons:
        return Section("rejects", "Rejects by reason", tag("p", "No record was rejected."), {"reasons": {}})
    most = max(reasons.values())
    rows = [
        (foreign(reason), tag("span", class_="bar", style=f"width:{100 * count / most:.1f}%"), f"{count:,}")
        for reason, count in list(reasons.items())[:_REASONS]
    ]
    total, read = sum(reasons.values()), asked.folder.summary["counts"].get(metrics.RECORDS, 0)
    left = f" The {_REASONS} most frequent reasons of {len(reasons):,}." if len(reasons) > _REASONS else ""
    how = tag(
        "p",
        f"{total:,} of {count_noun(read, 'record')} have no vector. Each stands with its place, its reason and its raw "
        f"bytes in the folder rejects beside the views.{left}",
    )
    body = join([how, table(["reason", "", "records"], rows, caption="Rejects by reason", numbers=["records"])])
    return Section("rejects", "Rejects by reason", body, {"reasons": dict(reasons)})


def lengths(asked: Asked) -> Section:
    """The lengths of the texts, and where `max_seq_length` cuts them."""
    name, title = "lengths", "Length of the texts"
    found = _lengths(asked)
    if found is None:
        return Section.missing(
            name, title, "No view tells how long the texts are; add one with `level: text` under `views`."
        )
    kept, dropped, said = found
    encoder = asked.folder.head["settings"]["encoder"]
    given = asked.folder.head["settings"]["input"]
    special = 3 if given.get("pair_field") or given.get("pair_separator") else 2
    cut = encoder["max_seq_length"] - special if encoder["long_text"] == "truncate" else None
    whole = kept if dropped is None else kept + dropped
    width = max(1, -(-int(np.quantile(whole, 0.999) + 1) // _BARS))
    last = max(int(np.quantile(whole, 0.999)), min(cut or 0, int(whole.max()))) // width + 1
    edges = np.arange(last + 1) * width
    beyond = int((whole >= edges[-1]).sum())
    counts, _ = np.histogram(whole, edges)
    mark = None if cut is None or cut > edges[-1] else cut + 1
    plot = asked.plots.histogram(
        counts,
        edges,
        mark,
        x="tokens in a text, without [CLS] and [SEP]",
        y="texts",
        label=f"Histogram of the lengths of {len(whole):,} texts: median {np.median(whole):.0f} tokens",
    )
    numbers: dict[str, Any] = {
        "texts": len(whole),
        "mean": float(whole.mean()),
        "median": float(np.median(whole)),
        "longest": int(whole.max()),
        "max_seq_length": encoder["max_seq_length"],
    }
    how = f"Of {said}: half of the texts have at most {np.median(whole):,.0f} tokens, the longest {whole.max():,}. "
    if cut is None:
        how += f"No text is cut (encoder.long_text: {encoder['long_text']}). "
    elif dropped is None:
        how += f"max_seq_length {encoder['max_seq_length']} cuts after {cut} tokens; how much, a text view would say. "
    else:
        numbers |= {"cut": float((dropped > 0).mean()), "tokens_lost": float(dropped.sum() / max(whole.sum(), 1))}
        how += (
            f"max_seq_length {encoder['max_seq_length']} cuts after {cut}: {numbers['cut']:.2%} of the texts are "
            f"longer and lose their end, {numbers['tokens_lost']:.2%} of all tokens (beyond the dashed line). "
            if dropped.any()
            else f"max_seq_length {encoder['max_seq_length']} cuts after {cut}: no text is longer. "
        )
    how += f"Each bar is {count_noun(width, 'length')} wide" + (f"; {beyond:,} texts lie beyond it." if beyond else ".")
    rows = [
        (f"{low} to {low + width - 1}" if width > 1 else str(low), f"{n:,}")
        for low, n in zip(edges[:-1], counts, strict=True)
        if n
    ]
    more = folded("The bars as a table", table(["tokens", "texts"], rows, caption="Texts by length", numbers=["texts"]))
    return Section(name, title, figure(plot, how, more, class_="wide"), numbers)


def _lengths(asked: Asked) -> tuple[Array, Array | None, str] | None:
    """(tokens with a vector, tokens lost or None where that is not known) of each text, and of what they are."""
    for view in asked.folder.of_level("text"):
        rows = asked.sample(view).table(["num_tokens", "num_dropped"])
        said = f"{asked.sample(view).said} of view {view.name}"
        return rows["num_tokens"].to_numpy(), rows["num_dropped"].to_numpy(), said
    for view in asked.folder.of_level("token", "word"):
        if view.has_all_words and view.has_places:
            counts, parts = _texts_of_rows(view)
            return np.array(counts, np.int64), None, f"{len(counts):,} texts in {parts} of view {view.name}"
    return None


def _texts_of_rows(view: RowsOfView) -> tuple[list[int], str]:
    """The tokens of each text, by its rows; and from how many parts."""
    counts: Counter[tuple[str, int, int]] = Counter()
    left, read = _LENGTH_ROWS, 0
    for part in view.random_parts():
        weight = ["num_tokens"] if view.level == "word" else []
        rows = view.read(part, ["line", "sentence", "start", *weight])
        rows = rows.filter(pc.greater_equal(rows["start"], 0))
        tokens = rows["num_tokens"].to_numpy() if weight else np.ones(rows.num_rows, np.int64)
        keys = zip(rows["line"].to_pylist(), rows["sentence"].to_pylist(), tokens.tolist(), strict=True)
        for line, sentence, n in keys:
            counts[part.path, line, sentence] += n
        left, read = left - part.rows, read + 1
        if left < 0:
            break
    return list(counts.values()), f"{read:,} of {len(view.parts):,} parts"
