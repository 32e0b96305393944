"""`layerbeam report OUT`: one HTML page that shows a run, with everything it needs in it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import os
from collections.abc import Sequence
from importlib import resources
from typing import Any

from layerbeam.pipeline.cli.console import plain_console, size_text
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.report.glance import at_a_glance, lengths, rejects
from layerbeam.pipeline.report.html import Html, foreign, join, tag
from layerbeam.pipeline.report.layers import layers
from layerbeam.pipeline.report.plots import check_matplotlib
from layerbeam.pipeline.report.rows import open_folder
from layerbeam.pipeline.report.section import Asked, Section
from layerbeam.pipeline.report.senses import senses
from layerbeam.pipeline.report.texts import check_color, neighbours, projection
from layerbeam.transforms import storage
from layerbeam.transforms.layout import REPORT, TEMPORARY

DEFAULT_SAMPLE = 20_000
# The order of the page; each is made after those above it.
_SECTIONS = (at_a_glance, lengths, rejects, layers, projection, senses, neighbours)


@dataclasses.dataclass(frozen=True)
class Written:
    """Where the page is, and what it says in figures."""

    path: str
    bytes: int
    sample: int
    seed: int
    sections: Sequence[Section]

    def to_json(self) -> dict[str, Any]:
        """Plain values; a figure that there is none of is null."""
        sections = {
            section.id: {"title": section.title, "lacks": section.lacks, "figures": section.numbers}
            for section in self.sections
        }
        return {
            "path": self.path,
            "bytes": self.bytes,
            "sample": self.sample,
            "seed": self.seed,
            "sections": _without_nan(sections),
        }


def write_report(
    output_path: str,
    *,
    words: Sequence[str] = (),
    color: str | None = None,
    sample: int = DEFAULT_SAMPLE,
    seed: int = 0,
    to: str | None = None,
) -> Written:
    """Write the page of what is committed in an output folder, finished or not.

    `to`: instead of `report.html` in the folder. UsageError where there is no run, no Matplotlib, or no such column.
    """
    check_matplotlib()
    asked = Asked(open_folder(output_path, seed), tuple(dict.fromkeys(words)), color, sample, seed)
    check_color(asked.folder.of_level("text", "record"), color)
    sections = [make(asked) for make in _SECTIONS]
    page = _page(asked, sections).encode("utf-8")
    path = storage.join(output_path, REPORT) if to is None else to
    _write(path, page, output_path if to is None else None)
    return Written(path, len(page), sample, seed, sections)


def print_written(written: Written) -> None:
    """To the terminal."""
    console = plain_console(soft_wrap=True)
    console.print(f"{written.path}: {size_text(written.bytes)}, one page with everything in it; open it in a browser")
    for section in written.sections:
        if section.lacks:
            console.print(f"          {section.title}: {section.lacks}")


def _write(path: str, page: bytes, output_path: str | None) -> None:
    """The page appears whole or not at all. UsageError where it cannot be written."""
    folder = os.path.dirname(path)
    if output_path is None and storage.is_local(path) and not os.path.isdir(folder or "."):
        raise UsageError(f"--to {path}: there is no folder {folder}; make it, or give another one")
    temporary = folder or "." if output_path is None else storage.join(output_path, TEMPORARY)
    try:
        with storage.write_whole(path, temporary=temporary) as file:
            file.write(page)
    except OSError as error:
        hint = "; --to FILE writes it elsewhere" if output_path is not None else ""
        raise UsageError(f"{path}: cannot be written ({storage.reason_of(error)}){hint}") from error
    if output_path is not None:
        storage.delete_empty_folder(temporary)


def _page(asked: Asked, sections: Sequence[Section]) -> str:
    style, script = _file("page.css"), _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is fetched, and no other script runs, whatever the corpus holds.
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{digest}'"
    )
    name = os.path.basename(asked.folder.path.rstrip("/")) or asked.folder.path
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{name} – layerbeam report"),
        tag("style", Html(style)),
    )
    said = (
        f"Drawn from a sample: at most {asked.sample_rows:,} rows of each view, by seed {asked.seed} "
        "(--sample, --seed). Each figure says what it is of."
    )
    links = [tag("li", tag("a", section.title, href=f"#{section.id}")) for section in sections]
    body = tag(
        "body",
        tag("header", tag("h1", foreign(asked.folder.path)), tag("p", said)),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("main", *(_section(section) for section in sections)),
        tag("footer", _FOOTER),
        tag("div", id="tip", hidden=True),
        tag("script", Html(script)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _section(section: Section) -> Html:
    return tag("section", tag("h2", section.title), section.body, id=section.id)


_FOOTER = join(
    [
        tag("p", "Layer 0 is the embedding layer's output, layer k that of Transformer block k."),
        tag(
            "p",
            "Ethayarajh (2019), How Contextual are Contextualized Word Representations?, EMNLP. Timkey and van "
            "Schijndel (2021), All Bark and No Bite: Rogue Dimensions in Transformer Language Models Obscure "
            "Representational Quality, EMNLP. Rousseeuw (1987), Silhouettes.",
        ),
    ]
)


def _file(name: str) -> str:
    return resources.files("layerbeam.pipeline.report").joinpath(name).read_text(encoding="utf-8")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
