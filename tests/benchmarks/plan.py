"""`layerbeam plan` compared with real runs of four corpora, and its time for 10,000 files.

Needs Debian's package bible-kjv. Each corpus is planned and run in turn, each time in a new process; the medians count.
The Bible and the long tail use MiniLM, the others the small encoder with random weights.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from command import layerbeam
from corpus import read_bible

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
FILES = 10_000
OBJECTS = 3_000
SMALL = ROOT / "tests" / "data" / "hf_uncased"
MAX_ERROR = {"tokens": 0.15, "bytes": 0.15, "seconds": 0.25}
TOKENS = {"level": "token", "layers": [-1]}


def bible(folder: Path) -> dict[str, Any]:
    (folder / "bible.txt").write_text("".join(f"{verse}\n" for verse in read_bible()))
    return settings(["bible.txt"], {"level": "text", "layers": [-1]})


def long_tail(folder: Path) -> dict[str, Any]:
    """Objects of 3 to about 5,000 tokens, truncated to 128."""
    rng = random.Random(0)
    words = " ".join(read_bible()).split()
    with open(folder / "long.jsonl", "w") as file:
        for _ in range(OBJECTS):
            length = min(max(int(rng.lognormvariate(3.6, 1.5)), 1), 4_300)
            start = rng.randrange(len(words) - length)
            file.write(json.dumps({"text": " ".join(words[start : start + length])}) + "\n")
    return settings(["long.jsonl"], TOKENS, format="jsonl")


def adversarial(folder: Path) -> dict[str, Any]:
    from adversarial_corpus import configuration, write_corpus

    return configuration(write_corpus(folder), "out")


def large(folder: Path) -> dict[str, Any]:
    """More text than plan reads: random verses of the Bible in files from 6 kB to 6 MB, some of them .gz."""
    rng = random.Random(0)
    verses = read_bible()
    for number in range(60):
        lines = (rng.choice(verses) + "\n" for _ in range(int(50 * 1000 ** (number / 59))))
        opened = gzip.open if number % 6 == 0 else open
        with opened(folder / f"{number:02d}.txt{'.gz' if number % 6 == 0 else ''}", "wt") as file:
            file.writelines(lines)
    return settings(["*.txt", "*.txt.gz"], {"level": "text", "layers": [-1]}) | {"encoder": {"handle": str(SMALL)}}


def settings(files: list[str], view: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"input": {"files": files} | more, "views": {"v": view}, "output": {"path": "out"}}


CORPORA = {"the Bible": bible, "JSON Lines, long tail": long_tail, "adversarial": adversarial, "60 files": large}


def timed(folder: Path, *arguments: str) -> tuple[str, float]:
    """(the command's output, seconds)."""
    started = time.perf_counter()
    output = layerbeam(folder, *arguments, statuses=(0, 3))
    return output, time.perf_counter() - started


def one_round(folder: Path, number: int) -> tuple[dict[str, float], dict[str, float], float]:
    """(the plan's numbers, the run's, seconds that planning took)."""
    output = f"out-{number}"
    printed, took = timed(folder, "plan", "c.yaml", "--json", "--output", output)
    plan = json.loads(printed)
    _, seconds = timed(folder, "run", "c.yaml", "--output", output)
    manifest = json.loads((folder / output / "manifest.json").read_text())
    planned = {
        "tokens": plan["estimates"]["tokens"]["value"],
        "bytes": sum(view["bytes"] for view in plan["views"].values()),
        "seconds": plan["time"]["seconds"],
    }
    actual = {
        "tokens": manifest["counts"]["tokens"],
        "bytes": sum(view["bytes"] for view in manifest["views"].values()),
        "seconds": seconds,
    }
    return planned, actual, took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--corpus", action="append", choices=CORPORA, help="only this one; repeatable")
    options = parser.parse_args()
    lines, failed = [], []
    for name in options.corpus or CORPORA:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "c.yaml").write_text(yaml.safe_dump(CORPORA[name](folder)))
            rounds = [one_round(folder, number) for number in range(options.rounds)]
        cells = []
        for statistic, limit in MAX_ERROR.items():
            planned, actual = (statistics.median(one[side][statistic] for one in rounds) for side in (0, 1))
            cells.append(f"{planned:,.0f} | {actual:,.0f} | {planned / actual - 1:+.1%}")
            failed.append(abs(planned / actual - 1) > limit)
            print(name, statistic, [(round(p[statistic]), round(a[statistic])) for p, a, _ in rounds], flush=True)
        took = statistics.median(one[2] for one in rounds)
        lines.append(f"| {name} | {' | '.join(cells)} | {took:.0f} s |")
    heads = [f"{statistic} planned | actual | error" for statistic in MAX_ERROR]
    print(f"| corpus | {' | '.join(heads)} | plan |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        verses = read_bible()
        for number in range(FILES):
            (folder / f"{number:05d}.txt").write_text("\n".join(verses[number % 20_000 : number % 20_000 + 3]))
        (folder / "c.yaml").write_text(yaml.safe_dump(settings(["*.txt"], TOKENS)))
        printed, took = timed(folder, "plan", "c.yaml", "--json")
        plan = json.loads(printed)
        texts, read = plan["estimates"]["texts"], plan["input"]["sample"]["files"]
        estimate = f"{texts['value']:,} +- {texts['margin']:,} texts, {3 * FILES:,} in fact"
        print(f"{FILES:,} files: {took:.1f} s; {read:,} read, {estimate}")
    sys.exit(any(failed))


if __name__ == "__main__":
    main()
