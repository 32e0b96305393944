"""`layerbeam report OUT`: one HTML page that shows a run and fetches nothing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import math
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from layerbeam.pipeline.cli.console import count_noun, plain_console, size_text
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.report.context import ReportContext, Section
from layerbeam.pipeline.report.markup import Html, escape
from layerbeam.pipeline.report.plots import SIGNS, Plots
from layerbeam.pipeline.report.rows import open_folder
from layerbeam.pipeline.report.sections.layers import layers
from layerbeam.pipeline.report.sections.lengths import lengths
from layerbeam.pipeline.report.sections.neighbours import neighbours
from layerbeam.pipeline.report.sections.overview import overview
from layerbeam.pipeline.report.sections.projection import check_color_by, projection
from layerbeam.pipeline.report.sections.rejects import rejects
from layerbeam.pipeline.report.sections.word_senses import word_senses
from layerbeam.transforms import storage
from layerbeam.transforms.layout import REPORT, TEMPORARY

DEFAULT_SAMPLE = 20_000
# (id, title, what computes it), in the order of the page.
_SECTIONS = (
    ("glance", "The run at a glance", overview),
    ("lengths", "Length of the texts", lengths),
    ("rejects", "Rejects by reason", rejects),
    ("layers", "Layers: values, norms, anisotropy", layers),
    ("projection", "Texts, layer by layer", projection),
    ("words", "A word over the layers", word_senses),
    ("neighbours", "Nearest neighbours", neighbours),
)


@dataclasses.dataclass(frozen=True)
class ReportResult:
    """Where the page is, and its data by (id, title)."""

    path: str
    bytes: int
    sample: int
    seed: int
    sections: Mapping[tuple[str, str], Section]

    def to_json(self) -> dict[str, Any]:
        """Plain values; NaN becomes null."""
        sections = {
            id_: {"title": title, "lacks": section.missing_hint, "figures": section.figures}
            for (id_, title), section in self.sections.items()
        }
        return {**vars(self), "sections": _without_nan(sections)}


def write_report(
    output_path: str,
    *,
    words: Sequence[str] = (),
    color_by: str | None = None,
    sample: int = DEFAULT_SAMPLE,
    seed: int = 0,
    to: str | None = None,
) -> ReportResult:
    """Write the page of an output folder, finished or not, to `to` or to `report.html` in the folder.

    Raises UsageError if there is no run, no such column, or the extra `report` is not installed.
    """
    _check_extra()
    context = ReportContext(open_folder(output_path, seed), tuple(dict.fromkeys(words)), color_by, sample, seed)
    check_color_by(context.folder.of_level("text", "record"), color_by)
    sections = {(id_, title): compute(context) for id_, title, compute in _SECTIONS}
    page = _render(context, sections).encode("utf-8")
    path = storage.join(output_path, REPORT) if to is None else to
    _write(path, page, output_path if to is None else None)
    return ReportResult(path, len(page), sample, seed, sections)


def print_report_result(result: ReportResult) -> None:
    """Path and size of the page, and what the run lacks."""
    console = plain_console(soft_wrap=True)
    console.print(f"{result.path}: {size_text(result.bytes)}, one page with everything in it; open it in a browser")
    for (_, title), section in result.sections.items():
        if section.missing_hint:
            console.print(f"          {title}: {section.missing_hint}")


def _check_extra() -> None:
    """UsageError with the exact command if a package of the extra cannot be imported."""
    for module in ("jinja2", "matplotlib.figure", "scipy", "sklearn"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(
                f"layerbeam report needs {module.partition('.')[0]}, which is not installed: pip install "
                "'layerbeam[report]' (from a clone: pip install -c constraints.txt '.[report]')"
            ) from error


def _render(context: ReportContext, sections: Mapping[tuple[str, str], Section]) -> str:
    import jinja2

    style, script, template = (
        resources.files("layerbeam.pipeline.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js", "page.html.j2")
    )
    environment = jinja2.Environment(
        autoescape=True, finalize=escape, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"fmt": format, "layer": _layer_name, "count": count_noun}
    return environment.from_string(template).render(
        plots=Plots(),
        signs=SIGNS,
        context=context,
        name=os.path.basename(context.folder.path.rstrip("/")) or context.folder.path,
        sections=sections,
        style=Html(style),
        script=Html(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _layer_name(column: str) -> str:
    """
    >>> _layer_name("layer_3"), _layer_name("pooled_output")
    ('layer 3', 'pooled_output')
    """
    return column.replace("layer_", "layer ")


def _write(path: str, page: bytes, output_path: str | None) -> None:
    """Write the page atomically. UsageError if that fails."""
    folder = os.path.dirname(path)
    if output_path is None and storage.is_local(path) and not os.path.isdir(folder or "."):
        raise UsageError(f"--to {path}: the folder {folder} does not exist; create it, or name another file")
    temporary = folder or "." if output_path is None else storage.join(output_path, TEMPORARY)
    try:
        with storage.write_whole(path, temporary=temporary) as file:
            file.write(page)
    except OSError as error:
        hint = "; --to FILE writes it elsewhere" if output_path is not None else ""
        raise UsageError(f"{path}: cannot be written ({storage.reason_of(error)}){hint}") from error
    if output_path is not None:
        storage.delete_empty_folder(temporary)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
