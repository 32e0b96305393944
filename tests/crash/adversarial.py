"""A run over the full adversarial corpus: 20,000 texts, 10,000 tiny files, lines of 10 MB; a few minutes.

The run has its own process (`layerbeam run`). `adversarial_corpus.check_output` checks its output, then the numbers are
printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

from adversarial_corpus import check_output, configuration, snapshot, write_corpus  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--tiny-files", type=int, default=10_000)
    parser.add_argument("--line-bytes", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = {"texts": given.texts, "tiny_files": given.tiny_files, "line_bytes": given.line_bytes}
        corpus = write_corpus(folder, **sizes, seed=given.seed)
        (folder / "c.yaml").write_text(yaml.safe_dump(configuration(corpus, "out")))
        before = snapshot(folder, without=folder / "out")
        started = time.monotonic()
        command = [sys.executable, "-m", "layerbeam", "run", "c.yaml"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        assert done.returncode == 3, f"exit status {done.returncode}\n{done.stderr}"
        assert snapshot(folder, without=folder / "out") == before
        figures = check_output(corpus, folder / "out")
        record = json.loads((folder / "out" / "_runs" / "1.json").read_text())
    print(f"{figures.files:,} files, {len(figures.skipped)} of them skipped, in {seconds:.0f} s", end="; ")
    print(f"peak memory {record['peak_memory_bytes'] / 1e9:.2f} GB")
    print(f"{figures.records:,} records: {figures.embedded:,} embedded, {figures.blank:,} blank", end=", ")
    print(f"{sum(figures.rejected.values()):,} rejected")
    for reason, count in figures.rejected.items():
        print(f"  {count:6,} {reason}")
    for path, reason in figures.skipped.items():
        print(f"  skipped: {path!a}: {reason}")


if __name__ == "__main__":
    main()
