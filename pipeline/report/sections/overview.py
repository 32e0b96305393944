"""The run at a glance: what `layerbeam show` prints about the vectors. Speed is not part of the page."""

from __future__ import annotations

from layerbeam.pipeline.cli.console import count_noun, size_text
from layerbeam.pipeline.output.manifest import vectors_text
from layerbeam.pipeline.output.summary import balances, encoder_text, notes
from layerbeam.pipeline.report.context import ReportContext, Section
from layerbeam.transforms import metrics


def overview(context: ReportContext) -> Section:
    """State, encoder, input, counts and views."""
    summary, versions = context.folder.summary, context.folder.head["versions"]
    counts, inputs = summary["counts"], summary["inputs"]
    facts = [
        ("Input", f"{count_noun(inputs['files'], 'file')}, {size_text(inputs['bytes'])}"),
        *((unit.capitalize(), balance) for unit, balance in balances(counts)),
        ("Tokens", f"{counts.get(metrics.TOKENS, 0):,}, without [CLS] and [SEP]"),
        *(("Note", note) for note in notes(summary)),
        *(("Problem", problem) for problem in summary["problems"]),
        ("Fingerprint", summary["fingerprint"]),
        ("Written by", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    views = [
        (name, view["level"], f"{view['rows']:,}", size_text(view["bytes"]), vectors_text(view))
        for name, view in summary["views"].items()
    ]
    shown = {
        "encoder": summary["encoder"]["handle"],
        "encoder_text": encoder_text(summary["encoder"]),
        "facts": facts,
        "views": views,
    }
    return Section({"state": summary["state"], "counts": dict(counts)}, shown)
