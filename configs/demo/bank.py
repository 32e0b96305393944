"""What `make demo` shows at its end: the senses of "bank", layer by layer, from the rows that the run wrote."""

from __future__ import annotations

import itertools
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table

from layerbeam.pipeline.report.stats import mean_within_across, unit

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.reader import Run
    from layerbeam.pipeline.report.word_search import WordSearch

WORD = "bank"
# The senses of "bank" in each file of the corpus: one everywhere, or one after the other.
SENSES = {"money": ["money"], "rivers": ["river"], "seasons": ["money", "river"]}


def find_occurrences(run: Run) -> tuple[WordSearch, npt.NDArray[np.str_]]:
    """(the occurrences that `layerbeam report --word` finds, the sense of each)."""
    from layerbeam.pipeline.report.context import ReportContext, sample_views
    from layerbeam.pipeline.report.word_search import find_word

    views = [view for view in sample_views(run, 1, 0) if view.name == "tokens"]
    found = find_word(ReportContext(run, views, [WORD], [], None, 1, 0, False), WORD)
    if found is None:
        raise ValueError("the run has no view `tokens`")
    senses = {file: itertools.cycle(names) for file, names in SENSES.items()}
    return found, np.array([next(senses[Path(one.place["file"]).stem]) for one in found.occurrences])


def main(output_path: str) -> None:
    # Beam warns of its optional Google client when it is imported.
    logging.getLogger().setLevel(logging.ERROR)
    from layerbeam.pipeline.dataset.reader import open_run
    from layerbeam.pipeline.dataset.summary import summarize
    from layerbeam.pipeline.show.summary import print_rows

    print_rows(summarize(output_path))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for heading in ("layer", "within a sense", "across senses", "difference", ""):
        table.add_column(heading, justify="right" if heading else "left")
    found, senses = find_occurrences(open_run(output_path))
    for column in found.view.vectors:
        vectors = unit(found.vectors(column))
        within, across = mean_within_across(vectors @ vectors.T, senses)
        bar = "#" * round(60 * max(within - across, 0))
        table.add_row(column.removeprefix("layer_"), f"{within:.3f}", f"{across:.3f}", f"{within - across:.3f}", bar)
    console = Console(highlight=False)
    console.print(f'"{WORD}" {found.count} times, of money or of a river: mean cosine of two occurrences')
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1])
