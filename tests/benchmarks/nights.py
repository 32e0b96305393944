"""Six nights of a small corpus, layerbeam and CocoIndex in turn: seconds, start-up included.

    python tests/benchmarks/nights.py PYTHON FOLDER [--rounds 3]

PYTHON has sentence-transformers, FOLDER has CocoIndex and LanceDB. Two files of 5,000 verses (Debian's package
bible-kjv), MiniLM in float32, one vector per line, 256 tokens at most as in sentence-transformers, all else as by
default. Then a verse in the middle of a file is edited, a verse is added at its top, the file is renamed, a file of 100
lines is added, and nothing changes. Prints medians, their ratios, and the bytes on disk. At the end both have the same
vectors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml
from command import layerbeam_run, run_program
from corpus import read_bible

import layerbeam
from layerbeam import open_encoder

LINES = 5000
TO_PARQUET = """
import sys, lancedb, pyarrow.parquet
rows = lancedb.connect(f"{sys.argv[1]}/lancedb").open_table("lines").to_arrow()
pyarrow.parquet.write_table(rows, f"{sys.argv[1]}/rows.parquet")
"""


def edit_middle(corpus: Path) -> None:
    lines = (corpus / "first.txt").read_text().splitlines()
    lines[len(lines) // 2] += " And this is an edit."
    write(corpus / "first.txt", lines)


def insert_at_top(corpus: Path) -> None:
    write(corpus / "first.txt", ["A new line at the top.", *(corpus / "first.txt").read_text().splitlines()])


def rename(corpus: Path) -> None:
    os.rename(corpus / "first.txt", corpus / "renamed.txt")


def add_file(corpus: Path) -> None:
    write(corpus / "small.txt", read_bible()[2 * LINES : 2 * LINES + 100])


NIGHTS: dict[str, Callable[[Path], None]] = {
    "first night": lambda corpus: None,
    "one line edited": edit_middle,
    "line at the top": insert_at_top,
    "file renamed": rename,
    "small new file": add_file,
    "nothing new": lambda corpus: None,
}


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


class Layerbeam:
    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, ["out"]
        settings = {
            "input": {"files": ["corpus/*.txt"]},
            "encoder": {"handle": "minilm", "compute_dtype": "float32", "max_seq_length": 256},
            "views": {"lines": {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True}},
            "output": {"path": "out"},
        }
        (folder / "c.yaml").write_text(yaml.safe_dump(settings))

    def run(self) -> None:
        layerbeam_run(self.folder, "--prune-missing")

    def vectors(self) -> dict[tuple[str, str], np.ndarray]:
        texts = {path.name: path.read_text().splitlines() for path in (self.folder / "corpus").iterdir()}
        rows = layerbeam.open_run(self.folder / "out").view("lines").to_arrow(["file", "line", "layer_6"])
        names = [Path(file).name for file in rows["file"].to_pylist()]
        found = zip(names, rows["line"].to_pylist(), rows["layer_6"].to_pylist(), strict=True)
        return {(name, texts[name][line]): np.array(vector) for name, line, vector in found}


class CocoIndex:
    def __init__(self, folder: Path, python: str, packages: str) -> None:
        self.folder, self.data = folder, ["lancedb", "state"]
        self.command = [python, str(Path(__file__).with_name("cocoindex_lines.py")), open_encoder("minilm").folder]
        self.variables = {"PYTHONPATH": packages, "COCOINDEX_DISABLE_USAGE_TRACKING": "1"}

    def run(self) -> None:
        run_program([*self.command, str(self.folder)], environment=self.variables)

    def vectors(self) -> dict[tuple[str, str], np.ndarray]:
        run_program([self.command[0], "-c", TO_PARQUET, str(self.folder)], environment=self.variables)
        rows = pq.read_table(self.folder / "rows.parquet")
        found = zip(*(rows[name].to_pylist() for name in ("file", "text", "vector")), strict=True)
        return {(Path(file).name, text): np.array(vector) for file, text, vector in found}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("packages", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    seconds: dict[tuple[str, str], list[float]] = {}
    verses = read_bible()
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as name:
            folders = [Path(name, kind) for kind in ("layerbeam", "cocoindex")]
            for folder in folders:
                (folder / "corpus").mkdir(parents=True)
                write(folder / "corpus/first.txt", verses[:LINES])
                write(folder / "corpus/second.txt", verses[LINES : 2 * LINES])
            both = [Layerbeam(folders[0]), CocoIndex(folders[1], given.python, given.packages)]
            for night, change in NIGHTS.items():
                for one in both:
                    change(one.folder / "corpus")
                    started = time.monotonic()
                    one.run()
                    took = time.monotonic() - started
                    seconds.setdefault((night, type(one).__name__), []).append(took)
                    print(night, type(one).__name__, f"{took:.1f}", file=sys.stderr)
            ours, theirs = (one.vectors() for one in both)
            if ours.keys() != theirs.keys() or len(ours) < 2 * LINES + 100:
                sys.exit(f"{len(ours):,} and {len(theirs):,} lines: not the same")
            worst = max(float(np.abs(ours[key] - theirs[key]).max()) for key in ours)
            if worst > 1e-4:
                sys.exit(f"vectors differ by {worst}")
            sizes = [", ".join(f"{part} {size(one.folder / part) / 1e6:.1f} MB" for part in one.data) for one in both]
    print("\n| seconds |", " | ".join(NIGHTS), "|\n|---|" + "---|" * len(NIGHTS))
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    for kind in ("Layerbeam", "CocoIndex"):
        print(f"| {kind} |", " | ".join(f"{medians[night, kind]:.1f}" for night in NIGHTS), "|")
    ratios = (medians[night, "Layerbeam"] / medians[night, "CocoIndex"] for night in NIGHTS)
    print("| ratio |", " | ".join(f"{ratio:.2f}" for ratio in ratios), "|")
    print(f"\non disk: {'; '.join(sizes)}; largest difference of a vector {worst:.1e}")


if __name__ == "__main__":
    main()
