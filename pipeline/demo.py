"""What `make demo` shows at its end: the senses of "bank", layer by layer, from the rows that the run wrote."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from rich import box
from rich.console import Console
from rich.table import Table

from transforms.records import Float32Array

WORD = "bank"
# In these files of the corpus each "bank" has one sense, which is the file's name.
SENSES = ("configs/demo/money.txt", "configs/demo/rivers.txt")
LAYERS = range(7)


def mean_cosines(vectors: Float32Array, senses: list[str]) -> tuple[float, float]:
    """(within, across): the mean cosine of two occurrences of one sense, and of two senses. `vectors`: [n, H]."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    same = np.array(senses)[:, None] == np.array(senses)[None, :]
    pairs = ~np.eye(len(senses), dtype=bool)
    return float(cosines[same & pairs].mean()), float(cosines[~same].mean())


def read_occurrences(output_path: str) -> pa.Table:
    """The rows of the word's tokens."""
    wanted = (pc.field("token") == WORD) & pc.field("file").isin(SENSES)
    return ds.dataset(f"{output_path}/tokens").to_table(filter=wanted)


def layer_vectors(rows: pa.Table, layer: int) -> Float32Array:
    """[n, H] of a column of fixed-size lists."""
    column = rows[f"layer_{layer}"].combine_chunks()
    vectors: Float32Array = column.flatten().to_numpy().reshape(-1, column.type.list_size)
    return vectors


def main(output_path: str) -> None:
    # Beam warns of its optional Google client when it is imported.
    logging.getLogger().setLevel(logging.ERROR)
    from pipeline.summary import print_rows, summarize

    print_rows(summarize(output_path))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for heading in ("layer", "within a sense", "across senses", "difference", ""):
        table.add_column(heading, justify="right" if heading else "left")
    rows = read_occurrences(output_path)
    senses = rows["file"].to_pylist()
    for layer in LAYERS:
        within, across = mean_cosines(layer_vectors(rows, layer), senses)
        bar = "#" * round(60 * max(within - across, 0))
        table.add_row(str(layer), f"{within:.3f}", f"{across:.3f}", f"{within - across:.3f}", bar)
    console = Console(highlight=False)
    console.print(f'"{WORD}" {len(senses)} times, of money or of a river: mean cosine of two occurrences')
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1])
