"""`layerbeam plan` compared with real runs of several corpora, and its time for 10,000 files.

Needs Debian's package bible-kjv. Each corpus is planned and run in turn, each time in a new process; the medians count.
The Bible, the long tail and the windows use MiniLM, the others the small encoder with random weights.
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
from command import layerbeam, run_record
from corpus import read_bible

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
FILES = 10_000
OBJECTS = 3_000
SMALL = {"encoder": {"handle": str(ROOT / "tests" / "data" / "hf_uncased")}}
MAX_ERROR = {"tokens": 0.05, "bytes": 0.10, "seconds": 0.25}
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


def large(folder: Path, view: dict[str, Any] | None = None) -> dict[str, Any]:
    """More text than plan reads: random verses of the Bible in files from 6 kB to 6 MB, some of them .gz."""
    rng = random.Random(0)
    verses = read_bible()
    for number in range(60):
        lines = (rng.choice(verses) + "\n" for _ in range(int(50 * 1000 ** (number / 59))))
        opened = gzip.open if number % 6 == 0 else open
        with opened(folder / f"{number:02d}.txt{'.gz' if number % 6 == 0 else ''}", "wt") as file:
            file.writelines(lines)
    return settings(["*.txt", "*.txt.gz"], view or {"level": "text", "layers": [-1]}) | SMALL


def word_types(folder: Path) -> dict[str, Any]:
    """The same files; there are 12,554 word types, few of which are not in the sample."""
    return large(folder, {"level": "word_type", "layers": [-1]})


def rare_names(folder: Path) -> dict[str, Any]:
    """Verses with names, most of which occur once: the word types grow with the text."""
    rng = random.Random(3)
    verses = read_bible()
    with open(folder / "names.txt", "w") as file:
        for _ in range(250_000):
            name = "".join(chr(ord("a") + int(digit)) for digit in str(int(rng.paretovariate(0.9)) % 500_000))
            file.write(f"{rng.choice(verses)[:120]} {name}\n")
    return settings(["names.txt"], {"level": "word_type", "layers": [-1]}) | SMALL


def kept_words(folder: Path) -> dict[str, Any]:
    """The same files; three quarters of the texts have none of the words."""
    keep = ["lord", "king", "heaven"]
    return large(folder, {"level": "word", "layers": [-1, -2], "keep_words": keep})


def one_compressed(folder: Path) -> dict[str, Any]:
    """Thirty plain files of 1 MB, and a compressed one with a sixth of the text."""
    rng = random.Random(1)
    verses = read_bible()
    for number in range(30):
        (folder / f"{number:02d}.txt").write_text("".join(rng.choice(verses) + "\n" for _ in range(9_000)))
    with gzip.open(folder / "99.txt.gz", "wt") as file:
        file.writelines(rng.choice(verses) + "\n" for _ in range(60_000))
    return settings(["*.txt", "*.txt.gz"], {"level": "text", "layers": [-1]}) | SMALL


def windows(folder: Path) -> dict[str, Any]:
    """Twelve texts of 4,000 tokens, encoded in windows."""
    rng = random.Random(2)
    words = " ".join(read_bible()).split()
    with open(folder / "long.txt", "w") as file:
        for _ in range(12):
            start = rng.randrange(len(words) - 3_000)
            file.write(" ".join(words[start : start + 3_000]) + "\n")
    encoder = {"long_text": "window", "window_overlap": 32}
    return settings(["long.txt"], {"level": "text", "layers": [-1]}) | {"encoder": encoder}


def settings(files: list[str], view: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"input": {"files": files} | more, "views": {"v": view}, "output": {"path": "out"}}


CORPORA = {
    "the Bible": bible,
    "JSON Lines, long tail": long_tail,
    "adversarial": adversarial,
    "60 files": large,
    "word types": word_types,
    "rare names": rare_names,
    "keep_words": kept_words,
    "one .gz": one_compressed,
    "windows": windows,
}


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
    sums = sum(path.stat().st_size for path in (folder / output / "_word_types").rglob("*.parquet"))
    planned = {
        "tokens": plan["estimates"]["tokens"]["value"],
        "bytes": sum(view["bytes"] + view["sums_bytes"] for view in plan["views"].values()),
        "rows": sum(view["rows"] for view in plan["views"].values()),
        "blocks": plan["blocks"],
        "seconds": plan["time"]["seconds"],
    }
    actual = {
        "tokens": manifest["counts"]["tokens"],
        "bytes": sum(view["bytes"] for view in manifest["views"].values()) + sums,
        "rows": sum(view["rows"] for view in manifest["views"].values()),
        "blocks": run_record(folder / output)["counts"]["blocks_written"],
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
        for statistic in rounds[0][0]:
            planned, actual = (statistics.median(one[side][statistic] for one in rounds) for side in (0, 1))
            cells.append(f"{planned:,.0f} | {actual:,.0f} | {planned / actual - 1:+.1%}")
            failed.append(abs(planned / actual - 1) > MAX_ERROR.get(statistic, 1))
            print(name, statistic, [(round(p[statistic]), round(a[statistic])) for p, a, _ in rounds], flush=True)
        took = statistics.median(one[2] for one in rounds)
        lines.append(f"| {name} | {' | '.join(cells)} | {took:.0f} s |")
    heads = [f"{statistic} planned | actual | error" for statistic in rounds[0][0]]
    print(f"| corpus | {' | '.join(heads)} | plan |")
    print("|" + "---|" * (2 + 3 * len(rounds[0][0])))
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
