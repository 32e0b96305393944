"""Exact search over a million vectors of 384 values in Parquet, reading included: `View.nearest`, NumPy and FAISS.

    python tests/benchmarks/search.py [--rows 1000000] [--part-rows 16384] [--queries 1 100] [--rounds 3]

NumPy loads all vectors (`View.to_numpy`), multiplies and partitions; FAISS adds each batch of `View.iter_batches` to an
IndexFlatIP. Each search has a process of its own, and the searches take turns. Seconds are from the opened run to the
result, without the imports, medians; in brackets those of the processor, which other programs change less. Memory is
the peak of the process. Random unit vectors, ten nearest by dot product, by the number types of files. A run writes
parts of 16,384 tokens at most, and of some 500 texts. The files come from the page cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from command import peak_of, run_json

WIDTH, NEAREST = 384, 10
BATCH_ROWS = 1 << 14
SEARCHES = ("layerbeam", "NumPy", "FAISS")


def write(folder: Path, dtype: str, num_rows: int, part_rows: int) -> None:
    """A run with so many rows of random unit vectors."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
    import pyarrow as pa
    from written_run import write_run

    from layerbeam.transforms.views.columns import schema
    from layerbeam.transforms.views.number_types import NUMBER_TYPES
    from layerbeam.transforms.views.view import ViewSpec

    view = ViewSpec(name="texts", level="text", layers=(6,), hidden_size=WIDTH, dtype=dtype)
    number_type = NUMBER_TYPES[dtype]

    def table(first: int) -> pa.Table:
        count = min(part_rows, num_rows - first)
        stored = number_type.store("layer_6", number_type.round(unit_vectors(first, count)))
        lines = np.arange(first, first + count)
        columns = {"file": ["a.txt"] * count, "line": lines, "text": [f"text {line}" for line in lines.tolist()]}
        arrays = [
            pa.array(np.zeros(count, np.int64), field.type)
            if field.name not in stored | columns
            else stored.get(field.name, None if field.name in stored else pa.array(columns.get(field.name), field.type))
            for field in schema(view)
        ]
        return pa.Table.from_arrays(arrays, schema=schema(view))

    write_run(folder, view, [table(first) for first in range(0, num_rows, part_rows)])
    os.sync()


def unit_vectors(seed: int, count: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def search(name: str, folder: str, num_queries: int) -> dict[str, Any]:
    """Seconds, those of the processor, peak bytes, and a hash of the rows found."""
    import layerbeam

    view = layerbeam.open_run(folder)["texts"]
    queries = unit_vectors(1 << 40, num_queries)
    if name == "FAISS":
        import faiss
    assert view.paths  # the index is read
    started, used = time.perf_counter(), time.process_time()
    if name == "layerbeam":
        rows = view.nearest(queries, NEAREST, metric="dot")["line"].to_numpy().reshape(num_queries, -1)
    elif name == "NumPy":
        scores = queries @ view.to_numpy("layer_6").astype(np.float32, copy=False).T
        best = np.argpartition(scores, -NEAREST, axis=1)[:, -NEAREST:]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
        rows = np.take_along_axis(best, order, axis=1)
    else:
        index = faiss.IndexFlatIP(WIDTH)
        for batch in view.iter_batches(["layer_6"], batch_rows=BATCH_ROWS):
            vectors = batch["layer_6"].flatten().to_numpy().reshape(len(batch), WIDTH)
            index.add(vectors.astype(np.float32, copy=False))
        rows = index.search(queries, NEAREST)[1]
    seconds, used = time.perf_counter() - started, time.process_time() - used
    peak = peak_of(os.getpid())
    found = hashlib.sha256(np.sort(rows, axis=1).astype(np.int64).tobytes()).hexdigest()
    return {"seconds": seconds, "used": used, "peak": peak, "found": found}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--part-rows", type=int, default=1 << 14)
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16", "int8"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--search", nargs=3)
    given = parser.parse_args()
    if given.search:
        name, folder, num_queries = given.search
        print(json.dumps(search(name, folder, int(num_queries))))
        return
    print(f"{given.rows:,} rows in parts of {given.part_rows:,}\n")
    print(f"| files | queries | {' | '.join(SEARCHES)} | layerbeam / FAISS |\n|---|---|---|---|---|---|", flush=True)
    for dtype in given.dtypes:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), dtype, given.rows, given.part_rows)
            run_json(sys.executable, __file__, "--search", SEARCHES[0], folder, "1")
            for num_queries in given.queries:
                command = [sys.executable, __file__, "--search"]
                rounds = [
                    {name: run_json(*command, name, folder, str(num_queries)) for name in SEARCHES}
                    for _ in range(given.rounds)
                ]
                if len({of_one["found"] for of_round in rounds for of_one in of_round.values()}) > 1:
                    print("The searches find other rows.")
                cells = []
                for name in SEARCHES:
                    seconds, used, peak = (
                        statistics.median(one[name][value] for one in rounds) for value in ("seconds", "used", "peak")
                    )
                    cells.append(f"{seconds:.2f} s ({used:.2f} s), {peak / 1e9:.2f} GB")
                ratios = [
                    statistics.median(one["layerbeam"][value] / one["FAISS"][value] for one in rounds)
                    for value in ("seconds", "used")
                ]
                cells.append(f"{ratios[0]:.2f} ({ratios[1]:.2f})")
                print(f"| {dtype} | {num_queries} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
