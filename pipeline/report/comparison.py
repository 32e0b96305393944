"""The page of `layerbeam compare A B --html FILE`, in the style of the report."""

from __future__ import annotations

from typing import Any

from layerbeam.pipeline.report.page import check_extra, render, write_page


def write_comparison(path: str, comparison: Any) -> None:
    """Write a `Comparison` as a page that fetches nothing. UsageError if the extra `report` is not installed."""
    check_extra("compare --html")
    page = render("comparison.html.j2", comparison=comparison).encode("utf-8")
    write_page(path, page, None, option="--html")
