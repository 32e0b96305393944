"""What `make demo` shows at its end: the senses of "bank", layer by layer, from the rows that the run wrote."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table

from layerbeam.pipeline.report.stats import Array, mean_within_across, unit

if TYPE_CHECKING:
    from layerbeam.pipeline.dataset.view import View

WORD = "bank"
# In these files of the corpus each "bank" has one sense, which is the file's name.
SENSES = ("configs/demo/money.txt", "configs/demo/rivers.txt")
LAYERS = range(7)


def find_occurrences(tokens: View) -> tuple[npt.NDArray[np.bool_], Array]:
    """(which rows are of the word, the sense of each occurrence)."""
    files = tokens.to_numpy("file")
    found = (tokens.to_numpy("token") == WORD) & np.isin(files, SENSES)
    return found, files[found]


def main(output_path: str) -> None:
    # Beam warns of its optional Google client when it is imported.
    logging.getLogger().setLevel(logging.ERROR)
    from layerbeam.pipeline.cli.render_summary import print_rows
    from layerbeam.pipeline.dataset.reader import open_run
    from layerbeam.pipeline.output.summary import summarize

    print_rows(summarize(output_path))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for heading in ("layer", "within a sense", "across senses", "difference", ""):
        table.add_column(heading, justify="right" if heading else "left")
    tokens = open_run(output_path).view("tokens")
    found, senses = find_occurrences(tokens)
    for layer in LAYERS:
        vectors = unit(tokens.to_numpy(f"layer_{layer}")[found])
        within, across = mean_within_across(vectors @ vectors.T, senses)
        bar = "#" * round(60 * max(within - across, 0))
        table.add_row(str(layer), f"{within:.3f}", f"{across:.3f}", f"{within - across:.3f}", bar)
    console = Console(highlight=False)
    console.print(f'"{WORD}" {len(senses)} times, of money or of a river: mean cosine of two occurrences')
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1])
