"""One run in 1, 2, 4, ... threads and processes, up to the machine's cores: time, speed-up, memory.

python scaling.py [--lines N] [--rounds N]. Needs Debian's package bible-kjv. Start-up is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import yaml
from command import layerbeam_run, run_record
from corpus import read_bible

from layerbeam.transforms.hardware import cores

MODES = {"threads": ["--workers"], "processes": ["--workers", "--processes"]}


def measure(folder: Path, number: int, mode: str, count: int) -> tuple[float, float]:
    """(tokens/s, GB) of one run; the memory is the sum of the peaks of its processes."""
    settings = {
        "input": {"files": ["verses.txt"]},
        "views": {"tokens": {"level": "token", "layers": [-1, -2, -3, -4]}},
        "output": {"path": f"out-{number}-{mode}-{count}"},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(settings))
    options = [argument for option in MODES[mode] for argument in (option, str(count))]
    _, own, of_workers = layerbeam_run(folder, *options)
    record = run_record(folder / settings["output"]["path"])
    seconds = record["seconds"] - record["seconds_to_first_block"]
    return record["counts"]["encoded_tokens"] / seconds, (own + sum(of_workers)) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    counts = [1]
    while 2 * counts[-1] <= cores():
        counts.append(2 * counts[-1])
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "verses.txt").write_text("\n".join(read_bible()[: options.lines]))
        for number in range(options.rounds):
            for mode in MODES:
                for count in counts:
                    found.setdefault((mode, count), []).append(measure(folder, number, mode, count))
                    print(mode, count, json.dumps(found[mode, count][-1]), file=sys.stderr, flush=True)
    medians = {key: [statistics.median(values) for values in zip(*runs, strict=True)] for key, runs in found.items()}
    print("| | tokens/s | speed-up | memory |\n|---|---|---|---|")
    for (mode, count), (rate, memory) in medians.items():
        unit = mode if count > 1 else {"threads": "thread", "processes": "process"}[mode]
        print(f"| {count} {unit} | {rate:,.0f} | {rate / medians['threads', 1][0]:.2f} | {memory:.2f} GB |")


if __name__ == "__main__":
    main()
