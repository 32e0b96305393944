"""`layerbeam report OUT`: one HTML page that shows a run and fetches nothing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from layerbeam.pipeline.console import count_noun, plain_console, size_text
from layerbeam.pipeline.dataset.reader import open_run
from layerbeam.pipeline.dataset.row_texts import location
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.markup import Html, escape, escape_code, escape_path
from layerbeam.pipeline.report import plots, sections
from layerbeam.pipeline.report.context import ReportContext, Section, sample_views
from layerbeam.pipeline.report.word_senses import word_senses
from layerbeam.transforms import storage
from layerbeam.transforms.flow.layout import REPORT

# (id, title, what computes it), in the order of the page.
_SECTIONS = (
    ("glance", "The run at a glance", sections.overview),
    ("lengths", "Length of the texts", sections.lengths),
    ("rejects", "Rejects by reason", sections.rejects),
    ("layers", "Layers: values, norms, anisotropy", sections.layers),
    ("projection", "Texts, layer by layer", sections.projection),
    ("words", "A word over the layers", word_senses),
    ("neighbours", "Nearest neighbours", sections.neighbours),
)


@dataclasses.dataclass(frozen=True)
class ReportResult:
    """Where the page is, and its data by (id, title)."""

    path: str
    bytes: int
    sample: int
    seed: int
    sections: Mapping[tuple[str, str], Section]

    @property
    def problems(self) -> list[str]:
        """What was asked for and is not in the run."""
        return [problem for section in self.sections.values() for problem in section.problems]

    def to_json(self) -> dict[str, Any]:
        sections = {
            id_: {
                "title": title,
                "lacks": section.missing_hint,
                "problems": section.problems,
                "figures": section.figures,
            }
            for (id_, title), section in self.sections.items()
        }
        return {**vars(self), "sections": sections}


def write_report(
    output: str | Sequence[str],
    *,
    words: Sequence[str],
    texts: Sequence[str],
    color_by: str | None,
    sample: int,
    seed: int,
    to: str | None,
    trust: bool = False,
) -> ReportResult:
    """Write the page of an output folder, finished or not, or of several, to `to` or to `report.html` in the folder.

    `trust`: as for `Run.job`. Raises UsageError if there is no run, no such column, a text that cannot be encoded,
    or the extra `report` is not installed.
    """
    check_extra("report")
    run = open_run(output, allow_unfinished=True)
    if to is None and run.path not in run.members:
        raise UsageError("--to is missing: name the file for the page of several folders")
    views, words, texts = sample_views(run, sample, seed), tuple(dict.fromkeys(words)), tuple(dict.fromkeys(texts))
    context = ReportContext(run, views, words, texts, color_by, sample, seed, trust)
    sections.check_color_by(context)
    computed = {(id_, title): compute(context) for id_, title, compute in _SECTIONS}
    page = _render(context, computed).encode("utf-8")
    path = storage.join(run.path, REPORT) if to is None else to
    write_page(path, page, run.path if to is None else None)
    return ReportResult(path, len(page), sample, seed, computed)


def print_report_result(result: ReportResult) -> None:
    """Path and size of the page, and the sections that it leaves out."""
    console = plain_console(soft_wrap=True)
    console.print(f"{result.path}: {size_text(result.bytes)}, one page with everything in it; open it in a browser")
    left_out = [title for (_, title), section in result.sections.items() if section.missing_hint]
    if left_out:
        console.print(f"left out  {'; '.join(left_out)} (--json says what each needs)")


def check_extra(command: str) -> None:
    """UsageError with the exact command if a package of the extra cannot be imported."""
    for module in ("jinja2", "matplotlib.figure", "scipy", "sklearn"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(
                f"layerbeam {command} needs {module.partition('.')[0]}, which is not installed: "
                f"{storage.install_command('report')}"
            ) from error


def _render(context: ReportContext, computed: Mapping[tuple[str, str], Section]) -> str:
    script = _resource("page.js")
    with plots.settings():
        return render(
            "page.html.j2",
            plots=plots.Plots(),
            signs=plots.SIGNS,
            context=context,
            name=os.path.basename(context.run.path.rstrip("/")) or context.run.path,
            sections={key: section for key, section in computed.items() if not section.missing_hint},
            script=Html(script),
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )


def render(template: str, **values: Any) -> str:
    """A page of a template in this folder, which also has `style`, the style sheet."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, finalize=escape, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"fmt": format, "count": count_noun, "code": escape_code, "path": escape_path}
    environment.filters |= {"location": location, "layer": lambda column: column.replace("layer_", "layer ")}
    return environment.from_string(_resource(template)).render(style=Html(_resource("page.css")), **values)


def _resource(name: str) -> str:
    return resources.files("layerbeam.pipeline.report").joinpath(name).read_text(encoding="utf-8")


def write_page(path: str, page: bytes, output_path: str | None, option: str = "--to") -> None:
    """Write the page atomically. UsageError, which names the option that gave the path, if that fails."""
    folder = os.path.dirname(path)
    if output_path is None and storage.is_local(path) and not os.path.isdir(folder or "."):
        raise UsageError(f"{option} {path}: the folder {folder} does not exist; create it, or name another file")
    try:
        with storage.write_atomically(path) as file:
            file.write(page)
    except OSError as error:
        hint = "; --to FILE writes it elsewhere" if output_path is not None else ""
        raise UsageError(f"{path}: cannot be written ({storage.reason_of(error)}){hint}") from error
