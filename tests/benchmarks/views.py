"""Five views in one run compared with five runs of one view each: the gain of a shared forward pass.

Needs Debian's package bible-kjv. Each run has its own process; start-up is not counted.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from command import run_settings
from corpus import read_bible

LINES = 1500
ROUNDS = 3
MAX_RATIO = 1.3
VIEWS = {
    "tokens": {"level": "token", "layers": [-1]},
    "words": {"level": "word", "layers": [-1, -2], "combine": "sum"},
    "texts": {"level": "text", "layers": [-2], "pooling": "mean"},
    "firsts": {"level": "text", "layers": [-1], "pooling": "cls"},
    "pooled": {"level": "text", "pooling": "pooler"},
}


def seconds(folder: Path, name: str, views: dict) -> float:
    """Seconds of one run with these views."""
    settings = {
        "input": {"files": ["lines.txt"], "slice_bytes": 100_000},
        "encoder": {"handle": "minilm"},
        "views": views,
        "output": {"path": name},
    }
    return run_settings(folder, settings)["seconds"]


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in (*VIEWS, "all five")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lines.txt").write_text("\n".join(read_bible()[:LINES]))
        for round_ in range(ROUNDS):
            for view, settings in VIEWS.items():
                times[view].append(seconds(folder, f"{view}-{round_}", {view: settings}))
            times["all five"].append(seconds(folder, f"all-{round_}", VIEWS))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:10} {median:6.1f} s")
    longest = max(median for name, median in medians.items() if name != "all five")
    ratio = medians["all five"] / longest
    share = medians["all five"] / sum(medians[view] for view in VIEWS)
    print(f"all five in one run: {ratio:.2f} times the longest run of one, {share:.2f} of five such runs")
    sys.exit(ratio > MAX_RATIO)


if __name__ == "__main__":
    main()
