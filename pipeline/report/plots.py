"""Plots as SVG by Matplotlib, static, in the page's own colours: they are variables of its style sheet.

No text of a corpus goes into a plot: names and sentences stand in the page's legends and tables. So that light, dark
and print share one drawing, Matplotlib draws in stand-in colours that `_in_page` turns into variables.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.report.html import Html, escape
from layerbeam.pipeline.report.stats import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "o")
SIGNS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "○")
# The last colour and sign are of all that is left over.
CATEGORIES = len(MARKERS)

_INK, _FAINT, _CUT = "#010101", "#020202", "#030303"
_STAND_INS = {_INK: "var(--ink)", _FAINT: "var(--line)", _CUT: "var(--cut)", "#040404": "var(--plot)"}
_PLOT = "#040404"
_FONT_SIZE = 8
_BINS = 48
# Rounding makes so much.
_NO_SPREAD = 1e-4


def check_matplotlib() -> None:
    """UsageError with the exact command where the extra is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "layerbeam report draws with Matplotlib, which is not installed here: pip install 'layerbeam[report]' "
            "(from a clone: pip install -c constraints.txt '.[report]')"
        ) from error


class Plots:
    """Draws plots; each gets ids of its own, so that all can stand in one page."""

    def __init__(self) -> None:
        self._count = 0

    def histogram(self, counts: Array, edges: Array, cut: float | None, *, x: str, y: str, label: str) -> Html:
        """Bars between `edges`; those that begin at `cut` or later in its colour."""
        figure, axes = _axes(6.4, 2.3)
        over = np.full(len(counts), False) if cut is None else edges[:-1] >= cut
        for chosen, color in ((~over, _PLOT), (over, _CUT)):
            axes.bar(edges[:-1][chosen], counts[chosen], np.diff(edges)[chosen] * 0.92, align="edge", color=color)
        if cut is not None:
            axes.axvline(cut, color=_CUT, linewidth=1.2, linestyle="--")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        _whole_numbers(axes)
        return self._finish(figure, label)

    def distributions(self, samples: Mapping[str, Array], *, y: str, label: str) -> Html:
        """A shape for each layer, as wide as values are frequent, with quartiles; the middle 98 % of the values."""
        figure, axes = _axes(4.6, 2.5)
        for place, values in enumerate(samples.values()):
            low, *quartiles, high = np.quantile(values, [0.01, 0.25, 0.5, 0.75, 0.99])
            if high - low > _NO_SPREAD * max(abs(low), abs(high)):
                counts, edges = np.histogram(values, _BINS, (low, high))
                widths = 0.42 * counts / max(counts.max(), 1)  # two values lie outside of their middle 98 %
                centres = (edges[1:] + edges[:-1]) / 2
                axes.fill_betweenx(centres, place - widths, place + widths, color=_PLOT, alpha=0.45, linewidth=0)
            else:
                axes.axhline(0, linewidth=0)  # norms of 1, of vectors that are normalized: no axis of rounding errors
            axes.plot([place, place], [quartiles[0], quartiles[2]], color=_INK, linewidth=2, solid_capstyle="butt")
            axes.plot([place - 0.14, place + 0.14], [quartiles[1]] * 2, color=_INK, linewidth=2)
        _name_layers(axes, list(samples))
        axes.set_ylabel(y)
        return self._finish(figure, label)

    def lines(self, names: Sequence[str], lines: Sequence[tuple[Array, str]], *, y: str, label: str) -> Html:
        """A line over the layers for each pair of values and marker; the first in the plots' colour."""
        figure, axes = _axes(4.6, 2.5)
        for number, (values, marker) in enumerate(lines):
            color, style = ((_PLOT, "-"), (_CUT, "--"), (_INK, ":"))[number]
            axes.plot(range(len(names)), values, color=color, linestyle=style, marker=marker, markersize=4)
        low = min([0.0, *(float(np.nanmin(v)) for v, _ in lines if not np.isnan(v).all())])
        axes.set_ylim(low - 0.05 * (low < 0), 1.03)
        axes.grid(axis="y", color=_FAINT, linewidth=0.6)
        _name_layers(axes, names)
        axes.set_ylabel(y)
        return self._finish(figure, label)

    def scatter(self, points: Array, categories: Array, *, label: str) -> Html:
        """[n, 2] points, each with the marker and colour of its category."""
        figure, axes = _axes(2.3, 2.1)
        size = 40 if len(points) <= 60 else 24 if len(points) <= 300 else 8
        # What is left over lies below.
        for category in sorted(set(categories.tolist()), reverse=True):
            chosen = points[categories == category]
            axes.scatter(
                chosen[:, 0],
                chosen[:, 1],
                s=size,
                marker=MARKERS[category],
                linewidths=0,
                gid=f"points-{category}",
                color=_INK,
            )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.06)
        rows = {category: np.flatnonzero(categories == category) for category in set(categories.tolist())}
        return self._finish(figure, label, rows)

    def matrix(self, cosines: Array, borders: Sequence[int], low: float, *, label: str) -> Html:
        """[n, n] cosines from `low` to 1, with lines before these rows."""
        figure, axes = _axes(2.3, 2.3)
        axes.imshow(cosines, cmap="viridis", vmin=low, vmax=1, interpolation="none")
        for border in borders:
            axes.axhline(border - 0.5, color="#ffffff", linewidth=0.8)
            axes.axvline(border - 0.5, color="#ffffff", linewidth=0.8)
        axes.set_axis_off()
        return self._finish(figure, label)

    def _finish(self, figure: Any, label: str, rows: Mapping[int, Array] | None = None) -> Html:
        import matplotlib as mpl

        self._count += 1
        out = io.StringIO()
        with mpl.rc_context(_settings()):
            figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        return Html(_in_page(out.getvalue(), f"p{self._count}", label, rows or {}))


def _settings() -> Any:
    import matplotlib as mpl

    changes = {
        "svg.fonttype": "none",
        "svg.hashsalt": "layerbeam",
        "font.size": _FONT_SIZE,
        "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "text.color": _INK,
    }
    # Not what the user's matplotlibrc says: equal runs make equal pages.
    keep = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith(("backend", "date"))}
    return {**keep, **changes}


def _axes(width: float, height: float) -> tuple[Any, Axes]:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(_settings()):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot(facecolor="none")
    axes.set_axisbelow(True)
    return figure, axes


def _name_layers(axes: Axes, names: Sequence[str]) -> None:
    """Layers under the axis by their numbers, some of many."""
    step = 1 + (len(names) - 1) // 13
    places = range(0, len(names), step)
    axes.set_xticks(places, [names[place].removeprefix("layer_") for place in places])
    axes.set_xlabel("layer" if names[0].startswith("layer_") else "")
    axes.set_xlim(-0.6, len(names) - 0.4)


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _in_page(svg: str, prefix: str, label: str, rows: Mapping[int, Array]) -> str:
    """Matplotlib's document as an element of the page: no style sheet, own ids, colours by name, points by row."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: [^;\"]*;|font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"|\sversion="[^"]*"', "", svg)
    svg = re.sub(
        r'<g id="points-(\d+)">(.*?)</g>\s*</g>',
        lambda found: _points(int(found[1]), found[2], rows[int(found[1])]),
        svg,
        flags=re.DOTALL,
    )
    used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    svg = re.sub(r'\sid="([^"]*)"', lambda found: f' id="{prefix}{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{prefix}', svg).replace("xlink:href", "href")
    for color, variable in _STAND_INS.items():
        svg = svg.replace(color, variable)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip()


def _points(category: int, drawn: str, rows: Array) -> str:
    """Points without a style each: their group has the class of the category, and the rows that they are."""
    drawn = re.sub(r' style="[^"]*"', "", drawn)
    numbers = " ".join(str(row) for row in rows)
    return f'<g class="points k{category}" data-rows="{numbers}">{drawn}</g></g>'
