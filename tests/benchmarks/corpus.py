"""Texts for the benchmarks, from the King James Bible in Debian's package bible-kjv, without duplicates."""

from __future__ import annotations

import subprocess
import sys

import numpy as np


def read_bible() -> list[str]:
    """The distinct verses."""
    try:
        printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        sys.exit("the command `bible` is missing: apt-get install bible-kjv")
    verses = [line.split(" ", 1)[1] for line in printed.splitlines() if ":" in line.split(" ", 1)[0]]
    return list(dict.fromkeys(verses))


def long_tail(verses: list[str], count: int, *, seed: int = 0) -> list[str]:
    """Texts of 3 to about 500 tokens, most of them short: parts of verses, and several verses joined."""
    random = np.random.default_rng(seed)
    words = " ".join(verses).split()
    lengths = np.clip(np.exp(random.normal(3.2, 1.1, 4 * count)), 1, 380).astype(int)
    starts = random.integers(0, len(words) - 400, len(lengths))
    texts = dict.fromkeys(" ".join(words[start : start + n]) for start, n in zip(starts, lengths, strict=True))
    return list(texts)[:count]
