"""The text that the benchmarks read: the King James Bible of Debian's package bible-kjv."""

from __future__ import annotations

import subprocess
import sys


def read_bible() -> list[str]:
    """Its verses, each text once."""
    try:
        printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        sys.exit("the command `bible` is missing: apt-get install bible-kjv")
    verses = [line.split(" ", 1)[1] for line in printed.splitlines() if ":" in line.split(" ", 1)[0]]
    return list(dict.fromkeys(verses))
