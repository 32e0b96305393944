"""Two workers of one core each compared with one worker of two cores, on each engine that runs on this machine.

python engines.py [--rounds N] [--lines N] [NAME ...]

Needs Debian's package bible-kjv and the engines of `make test-flink`, `test-spark` and `test-prism`. Missing engines
are skipped and named. Rounds are interleaved and medians taken. The rate excludes the start of JVMs, workers and
TensorFlow: parts are ordered by time, and the lines from the first fifth to the last tenth are divided by the time
between. The total time is printed next to the rate.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import yaml
from command import layerbeam, run_record
from corpus import read_bible

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "engines"))
from cluster import ClusterError, cluster  # noqa: E402

# Name: the engine of the cluster, the number of workers, extra options.
CASES = {
    "local, 1 process of 2 threads": (None, 1, ["--workers", "2"]),
    "local, 2 processes": (None, 2, ["--processes", "2"]),
    "Flink, 1 TaskManager of 2 slots": ("flink", 1, []),
    "Flink, 2 TaskManagers of 1 slot": ("flink", 2, []),
    "Spark, 1 worker of 2 cores": ("spark", 1, []),
    "Spark, 2 workers of 1 core": ("spark", 2, []),
    "Beam's job service, worker pool": ("pool", 1, []),
    "Prism": ("prism", 1, []),
}


def rate(output: Path) -> float:
    """Lines per second in the middle of a run."""
    parts = sorted((output / "texts").glob("*.parquet"), key=lambda part: part.stat().st_mtime_ns)
    begin, end = len(parts) // 5, len(parts) * 9 // 10
    rows = sum(pq.read_metadata(part).num_rows for part in parts[begin + 1 : end + 1])
    return rows / (parts[end].stat().st_mtime - parts[begin].stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=8000)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CASES)}; default: all")
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        verses = read_bible()
        (folder / "verses.txt").write_text("\n".join(verses[:: len(verses) // given.lines][: given.lines]))
        settings = {
            "input": {"files": [str(folder / "verses.txt")], "slice_bytes": 20_000},
            "encoder": {"handle": "minilm"},
            "views": {"texts": {"level": "text", "layers": [-1]}},
            "output": {"path": "out"},
        }
        (folder / "c.yaml").write_text(yaml.safe_dump(settings))
        runs = {}
        for number, name in enumerate(given.names or CASES):
            engine, workers, options = CASES[name]
            try:
                if engine is not None:
                    made = stack.enter_context(cluster(engine, folder / f"cluster-{number}", workers=workers))
                    options = made.options
                runs[name] = options
            except ClusterError as error:
                print(f"skipped: {error}", flush=True)
        for round_ in range(given.rounds):
            for name, options in runs.items():
                output = folder / f"{name}-{round_}"
                layerbeam(folder, "run", "c.yaml", "--output", str(output), *options)
                seconds = run_record(output)["seconds"]
                found.setdefault(name, []).append((rate(output), seconds))
                print(f"{name:34} {found[name][-1][0]:6.0f} lines/s, {seconds:5.1f} s in all", flush=True)
    print(f"\nMedians of {given.rounds} rounds, {given.lines:,} lines, minilm:")
    for name, results in found.items():
        rates, seconds = zip(*results, strict=True)
        print(
            f"{name:34} {statistics.median(rates):6.0f} lines/s ({min(rates):.0f} to {max(rates):.0f}), "
            f"{statistics.median(seconds):5.1f} s in all"
        )


if __name__ == "__main__":
    main()
