"""Peak memory of a run over the Bible and over ten copies of it: does memory grow with the corpus?

Needs Debian's package bible-kjv. Each run has its own process (`layerbeam run`) and records its peak in `_runs`. Every
line of the ten copies is different, so that there are no duplicate texts.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from command import run_settings
from corpus import read_bible

COPIES = 10
MAX_RATIO = 1.10


def measure(folder: Path, name: str, texts: list[str]) -> tuple[int, float]:
    """(peak bytes, seconds) of a run over these texts in one file."""
    (folder / f"{name}.txt").write_text("\n".join(texts))
    settings = {
        "input": {"files": [f"{name}.txt"]},
        "encoder": {"handle": "minilm"},
        # Layer 1 needs one of six Transformer blocks, which saves time; memory does not depend on their number.
        "views": {"sentences": {"level": "text", "layers": [0, 1]}},
        "output": {"path": name},
    }
    record = run_settings(folder, settings)
    return record["peak_memory_bytes"], record["seconds"]


def main() -> None:
    verses = read_bible()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        once, seconds = measure(folder, "once", verses)
        print(f"{len(verses):,} lines: peak {once / 1e6:,.0f} MB, {seconds:.0f} s")
        many = [f"{verse} ({copy})" for copy in range(COPIES) for verse in verses]
        ten, seconds = measure(folder, "ten", many)
        print(f"{len(many):,} lines: peak {ten / 1e6:,.0f} MB, {seconds:.0f} s; {ten / once:.3f} times as much")
    sys.exit(ten > MAX_RATIO * once)


if __name__ == "__main__":
    main()
