"""The site built by `make docs` is complete and fetches nothing from a network. mkdocs itself checks its links."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from repository import ROOT

SITE = ROOT / "out" / "site"
PAGES = sorted(SITE.rglob("*.html"))


class Resources(HTMLParser):
    """The URLs that a browser fetches to show a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("img", "script", "iframe", "source", "video"):
            self.found.append(values.get("src") or "")
        elif tag == "link":
            self.found.append(values.get("href") or "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SITE)))
def test_page_fetches_nothing_from_other_sites(page):
    fetched = [path for path in Resources(page).found if path and not path.startswith("data:")]
    assert [path for path in fetched if re.match(r"(\w+:)?//", path)] == []
    if page.name != "404.html":  # its paths start at the root of a server
        assert [path for path in fetched if not (page.parent / path.split("?")[0]).exists()] == []


def test_style_sheets_fetch_nothing_from_other_sites():
    sheets = list(SITE.rglob("*.css"))
    assert sheets
    assert [
        sheet.name for sheet in sheets if re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text())
    ] == []


def test_repository_files_are_pages():
    page = (SITE / "scheduled_runs" / "index.html").read_text()
    assert 'href="../repository/configs/nightly.yaml/"' in page
    assert "max_reject_rate" in (SITE / "repository" / "configs" / "nightly.yaml" / "index.html").read_text()
    assert 'href="scheduled_runs/"' in (SITE / "index.html").read_text()


def test_notebook_is_page_with_pictures():
    page = SITE / "word_senses" / "index.html"
    assert [path for path in Resources(page).found if "word_senses" in path] == ["../word_senses_1.png"]


def test_pages_are_listed_for_programs():
    listed = dict(re.findall(r"^- \[(.*)\]\((.*)\): .", (SITE / "llms.txt").read_text(), re.MULTILINE))
    assert (listed["Home"], listed["FAQ"], listed["Word senses, a notebook"]) == ("./", "faq/", "word_senses/")
    assert [address for address in listed.values() if not (SITE / address / "index.html").exists()] == []
