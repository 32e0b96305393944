"""A folder of very many small files: a run, a run with nothing to do, and a run after some files changed.

    python tests/benchmarks/small_files.py [--files 100000]

Each file has about 200 bytes of the Bible (Debian's package bible-kjv); a run writes one mean vector per file (MiniLM,
bfloat16) with two worker processes. Memory is the peak of the submitting program, and of the largest worker.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from command import layerbeam_run
from corpus import read_bible

import layerbeam
from layerbeam.pipeline.output.run_log import last_run

NEW, CHANGED, REMOVED = 100, 10, 10


def write_files(folder: Path, count: int) -> None:
    words = " ".join(read_bible()).split()
    folder.mkdir()
    for number in range(count):
        start = number * 39 % (len(words) - 50)
        (folder / f"{number:07}.txt").write_text(f"{number} " + " ".join(words[start : start + 38]) + "\n")


def run(folder: Path) -> dict[str, Any]:
    """Seconds, peak memory in MB, and what the run did."""
    started = time.monotonic()
    errors, own, of_workers = layerbeam_run(folder, "--processes", "2", "--prune-missing")
    record: Any = last_run(str(folder / "out"))
    return {
        "seconds": round(time.monotonic() - started, 1),
        "submitting_mb": own >> 20,
        "workers_mb": max(of_workers, default=0) >> 20,
        "texts_encoded": 0 if "nothing to do" in errors else record["counts"]["embedded"],
        "parts": len(list(os.scandir(folder / "out/texts"))),
        "files": sum(1 for _ in layerbeam.open_run(folder / "out").inputs()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "corpus", given.files)
        settings = {
            "input": {"files": ["corpus/*.txt"]},
            "encoder": {"compute_dtype": "bfloat16"},
            "views": {"texts": {"level": "text", "layers": [-1], "pooling": "mean"}},
            "output": {"path": "out"},
        }
        (folder / "c.yaml").write_text(yaml.safe_dump(settings))
        print("all new:", json.dumps(run(folder)), flush=True)
        print("nothing new:", json.dumps(run(folder)), flush=True)
        step = given.files // (NEW + CHANGED + REMOVED)
        for number in range(0, NEW * step, step):
            (folder / f"corpus/{number:07}-new.txt").write_text(f"a new file {number}\n")
        for number in range(1, CHANGED * step + 1, step):
            (folder / f"corpus/{number:07}.txt").write_text(f"a changed file {number}\n")
        for number in range(2, REMOVED * step + 2, step):
            (folder / f"corpus/{number:07}.txt").unlink()
        print(f"{NEW} new, {CHANGED} changed, {REMOVED} removed:", json.dumps(run(folder)), flush=True)


if __name__ == "__main__":
    main()
