"""The rejected records by reason."""

from __future__ import annotations

from layerbeam.pipeline.report.context import ReportContext, Section
from layerbeam.transforms import metrics

_MAX_REASONS = 40


def rejects(context: ReportContext) -> Section:
    """Number of rejects per reason; the page shows the most frequent reasons."""
    summary = context.folder.summary
    reasons = dict(summary["rejects"])
    shown = {
        "total": sum(reasons.values()),
        "records": summary["counts"].get(metrics.RECORDS, 0),
        "rows": [(reason, n, 100 * n / max(reasons.values())) for reason, n in list(reasons.items())[:_MAX_REASONS]],
    }
    return Section({"reasons": reasons}, shown)
