"""The same lines as one file, many small files, compressed, in few or many row groups: time, parts and bytes.

    python tests/benchmarks/shapes.py [--lines 40000] [--rounds 3] [--modes NAME ...] [--shapes NAME ...] [--write]

Needs Debian's package bible-kjv. Each run writes one mean vector per line (MiniLM, bfloat16). Rounds are interleaved
and medians taken. The time is that of the run: finding and slicing the files, encoding, the end. The start of the
program, with the import of TensorFlow, is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from command import layerbeam, run_record
from corpus import read_bible
from page import write_table

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "engines"))
from cluster import cluster  # noqa: E402

MODES = {"2 threads": ["--workers", "2"], "2 processes": ["--processes", "2"], "worker pool": None}


def as_text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _one_file(folder: Path, lines: list[str]) -> None:
    (folder / "a.txt").write_bytes(as_text(lines))


def _files(count: int | None = None) -> Callable[[Path, list[str]], None]:
    """So many files, or files of two lines."""

    def write(folder: Path, lines: list[str]) -> None:
        size = 2 if count is None else -(-len(lines) // count)
        for number in range(0, len(lines), size):
            (folder / f"{number:07}.txt").write_bytes(as_text(lines[number : number + size]))

    return write


def _gzip(folder: Path, lines: list[str]) -> None:
    (folder / "a.txt.gz").write_bytes(gzip.compress(as_text(lines)))


def _zstd(folder: Path, lines: list[str]) -> None:
    with pa.output_stream(str(folder / "a.txt.zst"), compression="zstd") as file:
        file.write(as_text(lines))


def _parquet(row_groups: int) -> Callable[[Path, list[str]], None]:
    def write(folder: Path, lines: list[str]) -> None:
        pq.write_table(pa.table({"text": lines}), folder / "a.parquet", row_group_size=-(-len(lines) // row_groups))

    return write


def _json_lines(folder: Path, lines: list[str]) -> None:
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))


SHAPES: dict[str, Callable[[Path, list[str]], None]] = {
    "1 file": _one_file,
    "200 files": _files(200),
    "files of 2 lines": _files(),
    "1 file, .gz": _gzip,
    "1 file, .zst": _zstd,
    "Parquet, 1 row group": _parquet(1),
    "Parquet, 100 row groups": _parquet(100),
    "JSON Lines": _json_lines,
}


def run(folder: Path, shape: str, options: list[str]) -> dict[str, Any]:
    """Seconds, parts and bytes of one run."""
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    settings = {
        "input": {"files": [str(folder / shape)]},
        "encoder": {"compute_dtype": "bfloat16"},
        "views": {"texts": {"level": "text", "layers": [-1], "pooling": "mean"}},
        "output": {"path": str(output)},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(settings))
    layerbeam(folder, "run", "c.yaml", *options)
    record = run_record(output)
    parts = [entry for entry in os.scandir(output / "texts") if entry.name.endswith(".parquet")]
    return {
        "seconds": record["seconds"],
        "parts": len(parts),
        "bytes": sum(entry.stat().st_size for entry in parts),
    }


def table(found: dict[tuple[str, str], list[dict[str, Any]]], lines: int, rounds: int) -> list[str]:
    """The medians as a table."""
    shapes, modes = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    medians = {case: statistics.median(one["seconds"] for one in results) for case, results in found.items()}
    rows = []
    for shape in shapes:
        cells = []
        for mode in modes:
            best = min(medians[other, mode] for other in shapes)
            cells.append(f"{medians[shape, mode]:.1f} s ({medians[shape, mode] / best:.2f})")
        first = found[shape, modes[0]][0]
        rows.append(f"| {shape} | {first['parts']:,} | {first['bytes'] / 1e6:.0f} MB | {' | '.join(cells)} |")
    how = "one round" if rounds == 1 else f"medians of {rounds} interleaved rounds"
    return [
        f"{lines:,} lines, one vector each, {how}; in brackets the ratio to the best shape.",
        "",
        f"| shape | parts | output | {' | '.join(modes)} |",
        "|---" * (3 + len(modes)) + "|",
        *rows,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--write", action="store_true", help="write the table to docs/tuning.md")
    given = parser.parse_args()
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lines = list(itertools.islice(itertools.cycle(read_bible()), given.lines))
        for shape in given.shapes:
            (folder / shape).mkdir()
            SHAPES[shape](folder / shape, lines)
        options = {mode: MODES[mode] for mode in given.modes}
        if "worker pool" in options:
            made = stack.enter_context(cluster("pool", folder / "cluster"))
            options["worker pool"] = [*made.options, "--direct_num_workers=2"]
        for _ in range(given.rounds):
            for mode in given.modes:
                for shape in given.shapes:
                    one = run(folder, shape, options[mode])
                    found.setdefault((shape, mode), []).append(one)
                    print(f"{mode:12} {shape:24} {json.dumps(one)}", flush=True)
    written = table(found, given.lines, given.rounds)
    print("\n".join(["", *written]))
    if given.write:
        write_table("shapes", written)


if __name__ == "__main__":
    main()
