"""Static SVG plots by Matplotlib, in the colours of the page's style sheet.

No text of a corpus enters a plot: names and sentences appear in legends and tables. One drawing serves light, dark and
print: Matplotlib draws with placeholder colours, which `_embed` replaces by the style sheet's variables.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layerbeam.pipeline.report.markup import Html, escape
from layerbeam.pipeline.report.stats import Array, LayerStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Matplotlib's markers and the same signs as text, by category; the last one is for all remaining categories.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "o")
SIGNS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "○")

_INK, _FAINT, _CUT, _PLOT = "#010101", "#020202", "#030303", "#040404"
_VARIABLES = {_INK: "var(--ink)", _FAINT: "var(--line)", _CUT: "var(--cut)", _PLOT: "var(--plot)"}
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "layerbeam",
    "font.size": 8,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
}


class Plots:
    """Draws plots, with ids that are unique in the page."""

    def __init__(self) -> None:
        self._count = 0

    def histogram(self, counts: Array, edges: Array, cut: float | None, *, x: str, y: str, label: str) -> Html:
        """Bars between `edges`; a dashed line at `cut`, and bars from there on in its colour."""
        from matplotlib.ticker import MaxNLocator, StrMethodFormatter

        figure, axes = _axes(6.4, 2.3)
        over = np.full(len(counts), False) if cut is None else edges[:-1] >= cut
        for chosen, color in ((~over, _PLOT), (over, _CUT)):
            axes.bar(edges[:-1][chosen], counts[chosen], np.diff(edges)[chosen] * 0.92, align="edge", color=color)
        if cut is not None:
            axes.axvline(cut, color=_CUT, linewidth=1.2, linestyle="--")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
            axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        return self._finish(figure, label)

    def distributions(self, layers: Mapping[str, LayerStatistics], what: str, *, y: str, label: str) -> Html:
        """A shape for each layer, as wide as its values or norms are frequent; bar and tick: quartiles and median."""
        figure, axes = _axes(4.6, 2.5)
        for place, layer in enumerate(getattr(statistics, what) for statistics in layers.values()):
            if len(layer.counts):
                widths = 0.42 * layer.counts / max(layer.counts.max(), 1)  # of two values, none is in the middle 98 %
                centres = (layer.edges[1:] + layer.edges[:-1]) / 2
                axes.fill_betweenx(centres, place - widths, place + widths, color=_PLOT, alpha=0.45, linewidth=0)
            else:
                axes.axhline(0, linewidth=0)  # the axis starts at 0 instead of magnifying rounding errors
            low, median, high = layer.quartiles
            axes.plot([place, place], [low, high], color=_INK, linewidth=2, solid_capstyle="butt")
            axes.plot([place - 0.14, place + 0.14], [median, median], color=_INK, linewidth=2)
        _name_layers(axes, list(layers))
        axes.set_ylabel(y)
        return self._finish(figure, label)

    def lines(self, layers: Mapping[str, Mapping[str, float]], keys: Sequence[str], *, y: str, label: str) -> Html:
        """A line over the layers for each key, at most three."""
        figure, axes = _axes(4.6, 2.5)
        lines = [[layer[key] for layer in layers.values()] for key in keys]
        for values, color, style, marker in zip(lines, (_PLOT, _CUT, _INK), ("-", "--", ":"), MARKERS, strict=False):
            axes.plot(values, color=color, linestyle=style, marker=marker, markersize=4)
        low = np.nanmin([0.0, *np.ravel(lines)])
        axes.set_ylim(low - 0.05 * (low < 0), 1.03)
        axes.grid(axis="y", color=_FAINT, linewidth=0.6)
        _name_layers(axes, list(layers))
        axes.set_ylabel(y)
        return self._finish(figure, label)

    def scatter(self, points: Array, categories: Array, *, label: str) -> Html:
        """[n, 2] points with the markers and colours of their categories, the first category on top."""
        figure, axes = _axes(2.3, 2.1)
        size = 40 if len(points) <= 60 else 24 if len(points) <= 300 else 8
        rows = {int(category): np.flatnonzero(categories == category) for category in np.unique(categories)[::-1]}
        for category, chosen in rows.items():
            style: dict[str, Any] = {"s": size, "marker": MARKERS[category], "linewidths": 0, "color": _INK}
            axes.scatter(points[chosen, 0], points[chosen, 1], gid=f"points-{category}", **style)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.06)
        return self._finish(figure, label, rows)

    def matrix(self, cosines: Array, borders: Sequence[int], low: float, *, label: str) -> Html:
        """[n, n] cosines from `low` to 1, with white lines before the rows `borders`."""
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
        return Html(_embed(out.getvalue(), f"p{self._count}", label, rows or {}))


def _settings() -> Any:
    """Matplotlib's defaults, not the user's matplotlibrc, so that equal runs give equal pages; with our changes."""
    import matplotlib as mpl

    keep = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith(("backend", "date"))}
    return keep | _SETTINGS


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


def _name_layers(axes: Axes, columns: Sequence[str]) -> None:
    """Label the axis with layer numbers, at most 13 of them."""
    places = range(0, len(columns), 1 + (len(columns) - 1) // 13)
    axes.set_xticks(places, [columns[place].removeprefix("layer_") for place in places])
    axes.set_xlabel("layer" if columns[0].startswith("layer_") else "")
    axes.set_xlim(-0.6, len(columns) - 0.4)


def _embed(svg: str, prefix: str, label: str, rows: Mapping[int, Array]) -> str:
    """Matplotlib's document as an element of the page: no style sheet, own ids, colour variables, points by row."""
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
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip()


def _points(category: int, drawn: str, rows: Array) -> str:
    """Points of a category: their group has its class and their row numbers; single points have no style."""
    drawn = re.sub(r' style="[^"]*"', "", drawn)
    return f'<g class="points k{category}" data-rows="{" ".join(map(str, rows))}">{drawn}</g></g>'
