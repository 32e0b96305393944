"""Mixed batches to train on: `View.batches`, Hugging Face datasets, and a mixing buffer over arrays as in SAELens.

    python tests/benchmarks/training.py [--rows 500000] [--part-rows 16384] [--rounds 3]

One epoch in batches of 4,096 vectors of 384 values in float32, which are summed. `datasets` streams the Parquet files
of the view, with a shuffle buffer as large as that of `View.batches`, in NumPy's format. The mixing buffer reads the
shards of `View.export("safetensors")` in a random order, mixes one buffer of rows and gives half of it before it reads
on. Each loop has a process of its own, and the loops take turns. Rows per second, those per second of the processor in
brackets; memory is the peak of the process; medians. The files come from the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from command import peak_of, run_json
from search import WIDTH, write

BATCH_ROWS, BUFFER_ROWS = 4096, 1 << 16
LOOPS = ("layerbeam", "datasets", "mixing buffer")


def batches(name: str, folder: Path) -> Iterator[np.ndarray]:
    import layerbeam

    if name == "layerbeam":
        view = layerbeam.open_run(str(folder / "out"))["texts"]
        for batch in view.batches(BATCH_ROWS, buffer_rows=BUFFER_ROWS):
            yield batch["layer_6"]
    elif name == "datasets":
        import datasets

        files = sorted(map(str, (folder / "out" / "texts").glob("*.parquet")))
        rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, columns=["layer_6"])
        for batch in rows.shuffle(seed=0, buffer_size=BUFFER_ROWS).with_format("numpy").iter(BATCH_ROWS):
            yield batch["layer_6"]
    else:
        yield from mixed(sorted((folder / "arrays").glob("*.safetensors")))


def mixed(shards: list[Path]) -> Iterator[np.ndarray]:
    from safetensors.numpy import load_file

    random = np.random.default_rng(0)
    held = np.empty((0, WIDTH), np.float32)
    for number in random.permutation(len(shards)):
        held = np.concatenate([held, load_file(shards[number])["layer_6"]])
        if len(held) >= BUFFER_ROWS:
            held = held[random.permutation(len(held))]
            half = len(held) // 2 // BATCH_ROWS * BATCH_ROWS
            yield from (held[first : first + BATCH_ROWS] for first in range(0, half, BATCH_ROWS))
            held = held[half:]
    held = held[random.permutation(len(held))]
    yield from (held[first : first + BATCH_ROWS] for first in range(0, len(held), BATCH_ROWS))


def train(name: str, folder: Path) -> dict[str, float]:
    started, used = time.perf_counter(), time.process_time()
    count, total = 0, 0.0
    for batch in batches(name, folder):
        values = np.asarray(batch)
        count += len(values)
        total += float(values.sum(dtype=np.float64))
    seconds, used = time.perf_counter() - started, time.process_time() - used
    return {
        "rows": count,
        "sum": total,
        "rate": count / seconds,
        "cpu_rate": count / used,
        "peak": peak_of(os.getpid()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--part-rows", type=int, default=1 << 14)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", nargs=2)
    given = parser.parse_args()
    if given.loop:
        print(json.dumps(train(given.loop[0], Path(given.loop[1]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        import layerbeam

        write(Path(folder, "out"), "float32", given.rows, given.part_rows)
        view = layerbeam.open_run(f"{folder}/out")["texts"]
        view.export(f"{folder}/arrays", format="safetensors", shards=len(view.parts))
        command = [sys.executable, __file__, "--loop"]
        run_json(*command, LOOPS[0], folder)
        rounds = [{name: run_json(*command, name, folder) for name in LOOPS} for _ in range(given.rounds)]
    sums = [one["sum"] for of_round in rounds for one in of_round.values()]
    assert all(one["rows"] == given.rows for of_round in rounds for one in of_round.values())
    assert max(sums) - min(sums) < 1e-3 * given.rows**0.5
    print(f"{given.rows:,} rows in parts of {given.part_rows:,}\n\n| loop | rows/s | memory |\n|---|---|---|")
    for name in LOOPS:
        rate, cpu_rate, peak = (
            statistics.median(one[name][of] for one in rounds) for of in ("rate", "cpu_rate", "peak")
        )
        print(f"| {name} | {rate:,.0f} ({cpu_rate:,.0f}) | {peak / 1e9:.2f} GB |")


if __name__ == "__main__":
    main()
