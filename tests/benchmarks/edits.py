"""What edits of a corpus of 100 MB cost: tokens encoded, texts copied, seconds, bytes written.

    python tests/benchmarks/edits.py [--megabytes 100]

One file, the same compressed, and 2,000 files; each edit is a run after the one before. The encoder is very small (one
layer of 16), because the first run encodes all of it; a text has one vector. Lines are 5 to 50 random words.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from command import layerbeam_run
from random_encoder import BASE, make_weights, write_huggingface
from speed import ROOT

from layerbeam import open_encoder
from layerbeam.pipeline.output.run_log import last_run

TINY = dataclasses.replace(BASE, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
FILES = 2000


class Corpus:
    """The files of a corpus, each a list of lines."""

    def __init__(self, folder: Path, files: dict[str, list[str]]) -> None:
        self.folder, self.files = folder, files
        for name in files:
            self.write(name)

    def write(self, name: str) -> None:
        data = "".join(f"{line}\n" for line in self.files[name]).encode()
        (self.folder / name).write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)

    @property
    def largest(self) -> str:
        return max(self.files, key=lambda name: len(self.files[name]))

    def edit(self, change: Callable[[list[str]], None]) -> None:
        """Change the lines of the largest file."""
        name = self.largest
        change(self.files[name])
        self.write(name)

    def rename(self) -> None:
        name = self.largest
        self.files[f"renamed-{name}"] = self.files.pop(name)
        os.rename(self.folder / name, self.folder / f"renamed-{name}")

    def join(self) -> None:
        """The last two files become one."""
        first, second = sorted(self.files)[-2:]
        self.files[first] += self.files.pop(second)
        (self.folder / second).unlink()
        self.write(first)


def replace_middle(lines: list[str]) -> None:
    lines[len(lines) // 2] = "And this verse is another one."


EDITS: dict[str, Callable[[Corpus], None]] = {
    "first run": lambda corpus: None,
    "one verse changed": lambda corpus: corpus.edit(replace_middle),
    "one inserted at the top": lambda corpus: corpus.edit(lambda lines: lines.insert(0, "A new verse at the top.")),
    "one deleted": lambda corpus: corpus.edit(lambda lines: lines.pop(len(lines) // 3)),
    "1,000 appended": lambda corpus: corpus.edit(lambda lines: lines.extend(f"{n} more" for n in range(1000))),
    "a file renamed": Corpus.rename,
    "two files joined": Corpus.join,
}


def run(folder: Path) -> str:
    """What a run did, as cells of a table."""
    output = folder / "out"
    before = {path.name for path in output.glob("texts/*")}
    started = time.monotonic()
    layerbeam_run(folder, "--prune-missing")
    seconds = time.monotonic() - started
    counts: Any = (last_run(str(output)) or {}).get("counts", {})
    written = sum(path.stat().st_size for path in output.glob("texts/*") if path.name not in before)
    numbers = (counts.get(name, 0) for name in ("encoded_tokens", "copied_texts"))
    return " | ".join([*(f"{number:,}" for number in numbers), f"{seconds:.1f} s", f"{written / 1e6:.2f} MB"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    given = parser.parse_args()
    words, drawn = (ROOT / "tests/parity/sentences.txt").read_text().split(), random.Random(0)
    lines, size = list[str](), 0
    while size < given.megabytes * 1_000_000:
        lines.append(" ".join(drawn.choices(words, k=drawn.randrange(5, 50))))
        size += len(lines[-1]) + 1
    step = -(-len(lines) // FILES)
    shapes = {
        "one file": {"large.txt": lines, "other.txt": lines[: step // 2]},
        "one file, .gz": {"large.txt.gz": lines, "other.txt.gz": lines[: step // 2]},
        "2,000 files": {f"{n:04}.txt": lines[n * step : (n + 1) * step] for n in range(FILES)},
    }
    for shape, files in shapes.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for inner in ("corpus", "encoder"):
                (folder / inner).mkdir()
            write_huggingface(folder / "encoder", TINY, make_weights(TINY))
            (folder / "encoder/vocab.txt").write_text("".join(f"{t}\n" for t in open_encoder("minilm").vocabulary))
            settings = {
                "input": {"files": ["corpus/*"]},
                "encoder": {"handle": "encoder"},
                "views": {"texts": {"level": "text", "layers": [-1], "pooling": "mean"}},
                "output": {"path": "out"},
            }
            (folder / "c.yaml").write_text(yaml.safe_dump(settings))
            corpus = Corpus(folder / "corpus", {name: list(lines) for name, lines in files.items()})
            print(f"\n| {shape} | tokens encoded | texts copied | time | written |\n|---|---|---|---|---|")
            for what, edit in EDITS.items():
                edit(corpus)
                print(f"| {what} | {run(folder)} |", flush=True)


if __name__ == "__main__":
    main()
