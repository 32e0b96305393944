"""Each view's layers: distribution of values and norms, anisotropy."""

from __future__ import annotations

from layerbeam.pipeline.report.context import ReportContext, Section


def layers(context: ReportContext) -> Section:
    """Statistics of every layer of every view with rows."""
    views = context.folder.of_level("token", "word", "text", "record")
    if not views:
        return Section(missing_hint="No view has rows with vectors; add one with `layers: all` under `views`.")
    figures = {
        view.name: {
            "rows": len(context.sample(view)),
            "layers": {column: layer.figures for column, layer in context.layers(view).items()},
        }
        for view in views
    }
    shown = [{"view": view, "sample": context.description(view), "layers": context.layers(view)} for view in views]
    return Section(figures, {"views": shown})
