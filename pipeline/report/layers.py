"""Per layer: how values and norms are distributed, and how anisotropic the space is."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerbeam.pipeline.report.html import Html, figure, folded, foreign, join, panels, table, tag
from layerbeam.pipeline.report.rows import RowsOfView
from layerbeam.pipeline.report.section import Asked, Section, layer_name
from layerbeam.pipeline.report.stats import Array, mean_cosine

# Of so many rows every value is looked at; of all sampled rows the norms and cosines.
_ROWS_OF_VALUES = 2000


def layers(asked: Asked) -> Section:
    """A figure for each view with rows."""
    name, title = "layers", "Layers: values, norms, anisotropy"
    views = asked.folder.of_level("token", "word", "text", "record")
    if not views:
        return Section.missing(name, title, "No view has rows with vectors; add one with `layers: all` under `views`.")
    how = tag(
        "p",
        "Anisotropy is the mean cosine of two random rows. At 0 directions are used evenly; near 1 all vectors "
        "lie in a narrow cone, and a cosine of 0.9 between two rows says little by itself (Ethayarajh 2019). Often one "
        "or two dimensions make most of it: the table has the share of the largest (Timkey and van Schijndel 2021).",
    )
    numbers: dict[str, Any] = {}
    return Section(name, title, join([how, *(_of_view(asked, view, numbers) for view in views)]), numbers)


def _of_view(asked: Asked, view: RowsOfView, numbers: dict[str, Any]) -> Html:
    sample = asked.sample(view)
    values: dict[str, Array] = {}
    norms: dict[str, Array] = {}
    figures: dict[str, dict[str, float]] = {}
    for column in view.vectors:
        vectors = sample.vectors(column)
        # Of all rows evenly, so that the last file counts as the first does.
        values[column] = vectors[:: -(-len(vectors) // _ROWS_OF_VALUES)].ravel()
        norms[column] = np.linalg.norm(vectors.astype(np.float64), axis=1)
        cosine, share = mean_cosine(vectors)
        figures[column] = {
            "mean": float(values[column].mean(dtype=np.float64)),
            "std": float(values[column].std(dtype=np.float64)),
            "min": float(values[column].min()),
            "max": float(values[column].max()),
            "mean_norm": float(norms[column].mean()),
            "anisotropy": cosine,
            "largest_dimension": share,
        }
    asked.baseline[view.name] = {column: of_layer["anisotropy"] for column, of_layer in figures.items()}
    numbers[view.name] = {"rows": len(sample), "layers": figures}
    plots = asked.plots
    anisotropy = np.array(list(asked.baseline[view.name].values()))
    names = view.vectors
    shapes = plots.distributions(values, y="value", label=f"Values of {len(names)} layers")
    lengths = plots.distributions(norms, y="length of a vector", label=f"Norms of {len(names)} layers")
    spoken = ", ".join(f"{layer_name(name)} {value:.2f}" for name, value in zip(names, anisotropy, strict=True))
    line = plots.lines(names, [(anisotropy, "o")], y="mean cosine", label=f"Anisotropy by layer: {spoken}")
    shown = panels([("Values", shapes), ("Norms", lengths), ("Anisotropy", line)], class_="three")
    head = ["layer", "mean", "std", "min", "max", "mean norm", "anisotropy", "largest dimension"]
    rows = [
        (
            layer_name(column),
            *(f"{of[key]:.3f}" for key in of if key != "largest_dimension"),
            f"{of['largest_dimension']:.0%}",
        )
        for column, of in figures.items()
    ]
    read = (
        f"{sample.said[:1].upper()}{sample.said[1:]}. Each shape is as wide as its values are frequent (the middle "
        "98 %); bar and tick are quartiles and median. " + _in_words(names, anisotropy)
    )
    more = folded("The layers as a table", table(head, rows, caption="Layers in figures", numbers=head[1:]))
    return join([tag("h3", "View ", foreign(view.name), f", one row per {view.level}"), figure(shown, read, more)])


def _in_words(names: list[str], anisotropy: Array) -> str:
    if np.isnan(anisotropy).any():
        return "Anisotropy needs two rows."
    if len(names) == 1:
        return f"Two random rows have a cosine of {anisotropy[0]:.2f} on average."
    least, most = int(anisotropy.argmin()), int(anisotropy.argmax())
    return (
        f"Here {layer_name(names[least])} uses its space most evenly ({anisotropy[least]:.2f}), "
        f"{layer_name(names[most])} least ({anisotropy[most]:.2f})."
    )
