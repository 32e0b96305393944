"""Static SVG plots by Matplotlib, in the colours of the page's style sheet.

No text of a corpus enters a plot: names and sentences appear in legends and tables. One drawing serves light, dark and
print: Matplotlib draws with placeholder colours, which `_embed` replaces by the style sheet's variables.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layerbeam.pipeline.markup import Html, escape
from layerbeam.pipeline.report.stats import Array, LayerStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Matplotlib's markers and the same signs as text, by category; the last one is for all remaining categories.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "o")
SIGNS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "○")

_INK, _FAINT, _CUT, _PLOT = "#010101", "#020202", "#030303", "#040404"
_VARIABLES = {_INK: "var(--ink)", _FAINT: "var(--line)", _CUT: "var(--cut)", _PLOT: "var(--plot)"}
_SETTINGS: dict[Any, Any] = {
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

        figure, axes = _axes(6.4, 2.3, xlabel=x, ylabel=y, xlim=(edges[0], edges[-1]))
        over = np.full(len(counts), False) if cut is None else edges[:-1] >= cut
        for chosen, color in ((~over, _PLOT), (over, _CUT)):
            axes.bar(edges[:-1][chosen], counts[chosen], np.diff(edges)[chosen] * 0.92, align="edge", color=color)
        if cut is not None:
            axes.axvline(cut, color=_CUT, linewidth=1.2, linestyle="--")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
            axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        return self._finish(figure, label)

    def distributions(self, layers: Mapping[str, LayerStatistics], what: str, *, y: str, label: str) -> Html:
        """A shape for each layer, as wide as its values or norms are frequent; bar and tick: quartiles and median."""
        figure, axes = _axes(4.6, 2.5, ylabel=y)
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
        return self._finish(figure, label)

    def lines(self, layers: Mapping[str, Mapping[str, float]], keys: Sequence[str], *, y: str, label: str) -> Html:
        """A line over the layers for each key, at most three."""
        figure, axes = _axes(4.6, 2.5, ylabel=y)
        lines = [[layer[key] for layer in layers.values()] for key in keys]
        for values, color, style, marker in zip(lines, (_PLOT, _CUT, _INK), ("-", "--", ":"), MARKERS, strict=False):
            axes.plot(values, color=color, linestyle=style, marker=marker, markersize=4)
        low = np.nanmin([0.0, *np.ravel(lines)])
        axes.set_ylim(low - 0.05 * (low < 0), 1.03)
        axes.grid(axis="y", color=_FAINT, linewidth=0.6)
        _name_layers(axes, list(layers))
        return self._finish(figure, label)

    def scatter(self, points: Array, categories: Array, *, label: str, alone: bool = False) -> Html:
        """[n, 2] points with the markers and colours of their categories, the first category on top.

        `alone`: it is the only plot of its figure, so it is drawn large.
        """
        figure, axes = _axes(6.4, 4.2, xticks=[], yticks=[]) if alone else _axes(2.3, 2.1, xticks=[], yticks=[])
        size = 40 if len(points) <= 60 else 24 if len(points) <= 300 else 8
        rows = {int(category): np.flatnonzero(categories == category) for category in np.unique(categories)[::-1]}
        for category, chosen in rows.items():
            x, y = points[chosen].T
            axes.scatter(x, y, s=size, c=_INK, marker=MARKERS[category], linewidths=0, gid=f"points-{category}")
        axes.margins(0.06)
        return self._finish(figure, label, rows)

    def matrix(self, cosines: Array, borders: Sequence[int], low: float, *, label: str) -> Html:
        """[n, n] cosines from `low` to 1, with white lines before the rows `borders`."""
        figure, axes = _axes(2.3, 2.3)
        low = min(low, 1 - 1e-6)  # of equal vectors all cosines are 1: the colour of 1, not of the lowest
        axes.imshow(cosines, cmap="viridis", vmin=low, vmax=1, interpolation="none")
        for border in borders:
            axes.axhline(border - 0.5, color="#ffffff", linewidth=0.8)
            axes.axvline(border - 0.5, color="#ffffff", linewidth=0.8)
        axes.set_axis_off()
        return self._finish(figure, label)

    def _finish(self, figure: Figure, label: str, rows: Mapping[int, Array] | None = None) -> Html:
        self._count += 1
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        return Html(_embed(out.getvalue(), f"p{self._count}", label, rows or {}))


def settings() -> contextlib.AbstractContextManager[None]:
    """Matplotlib's defaults, not the user's matplotlibrc, so that equal runs give equal pages; with our changes."""
    import matplotlib as mpl

    kept = [name for name in mpl.rcParamsDefault if not name.startswith(("backend", "date"))]
    return mpl.rc_context({name: mpl.rcParamsDefault[name] for name in kept} | _SETTINGS)


def _axes(width: float, height: float, **properties: Any) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.add_subplot(facecolor="none", **properties)
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

    def points(found: re.Match[str]) -> str:
        """Points of a category: their group has its class and their row numbers; single points have no style."""
        numbers, drawn = " ".join(map(str, rows[int(found[1])])), re.sub(r' style="[^"]*"', "", found[2])
        return f'<g class="points k{found[1]}" data-rows="{numbers}">{drawn}</g></g>'

    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"font: [^;\"]*;|font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"|\sversion="[^"]*"', "", svg)
    svg = re.sub(r'<g id="points-(\d+)">(.*?)</g>\s*</g>', points, svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    svg = re.sub(r'\sid="([^"]*)"', lambda found: f' id="{prefix}{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip()
