"""The tables of docs/scale.md, calculated by the formulas of that page. Nothing is measured here.

python tests/benchmarks/scale.py [--write]
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/scale.md"
SIZES = {1e9: "1 B tokens", 100e9: "100 B tokens"}
LEVELS = ("token", "text")
# Workers with 8 vCPUs, for each size.
WORKERS = {1e9: 50, 100e9: 1000}
VCPUS = 8

_BIBLE = "King James Bible; `layerbeam plan` gives yours"
_LIST = "list price, us-central1, September 2026, from secondary sources: replace it by yours"
# {name: (value, what it is, where it is from)}
NUMBERS = {
    "text_bytes": (3.88, "bytes of text per token", _BIBLE),
    "text_tokens": (34.5, "tokens per text", _BIBLE),
    "row_bytes": (2850, "bytes on disk of a row with one layer, BERT-base, float32", "`make bench-sizes`, less 7 %"),
    "token_block": (39_300, "tokens per block at token level", "`output.target_part_bytes` of 128 MiB"),
    "text_block": (266_000, "tokens per block at text level", "`input.slice_bytes` of 1 MiB"),
    "core": (974, "tokens/s of a core, BERT-base, float32", "measured on the Bible; `make bench` gives yours"),
    "vcpu": (0.5, "of that core is a vCPU", "assumed: a hyperthread of an older processor"),
    "start": (360, "s until the workers have the image and the encoder", "assumed"),
    "index": (690, "bytes of the index per block", "measured: `make bench-ends`"),
    "price": (0.565, "$ per hour of n2-standard-8 on Dataflow", _LIST),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One float32 layer of BERT-base's size for each token, or each text, of a corpus."""

    tokens: float
    level: str
    numbers: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    @property
    def blocks(self) -> int:
        return math.ceil(self.tokens / self[f"{self.level}_block"])

    @property
    def rows(self) -> float:
        return self.tokens / (1 if self.level == "token" else self["text_tokens"])

    @property
    def disk_bytes(self) -> float:
        return self.rows * self["row_bytes"]

    @property
    def block_seconds(self) -> float:
        """The time of a block on one vCPU."""
        return self.tokens / self.blocks / (self["core"] * self["vcpu"])

    @property
    def hours(self) -> float:
        """Each worker has `VCPUS` blocks at a time; the last blocks end with idle threads."""
        rounds = math.ceil(self.blocks / (WORKERS[self.tokens] * VCPUS))
        return (self["start"] + rounds * self.block_seconds) / 3600


def count(number: float) -> str:
    """25,415 or 2.54 M or 100 B."""
    for unit, name in ((1e9, "B"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,.4g}" if number < 1000 else f"{number:,.0f}"


def size(number: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number / 1e3:.3g} kB"


def span(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


_ROWS: dict[str, Callable[[Job], str]] = {
    "text": lambda job: size(job.tokens * job["text_bytes"]),
    "rows": lambda job: count(job.rows),
    "blocks = parts = commits": lambda job: count(job.blocks),
    "parts on disk": lambda job: size(job.disk_bytes),
    "index": lambda job: size(job.blocks * job["index"]),
    "workers with 8 vCPUs": lambda job: f"{WORKERS[job.tokens]:,}",
    "time": lambda job: span(job.hours * 3600),
    "cost": lambda job: f"${job.hours * WORKERS[job.tokens] * job['price']:,.0f}",
    "lost with a thread": lambda job: span(job.block_seconds),
}


def tables() -> dict[str, str]:
    """{name in the page: table}"""
    values = {name: value for name, (value, _, _) in NUMBERS.items()}
    jobs = [Job(tokens, level, values) for level in LEVELS for tokens in SIZES]
    heads = ["BERT-base, one layer", *(f"{SIZES[job.tokens]}, {job.level} level" for job in jobs)]
    corpora = [heads, *([name, *map(cell, jobs)] for name, cell in _ROWS.items())]
    numbers = [["number", "", "source"], *([count(value), what, source] for value, what, source in NUMBERS.values())]
    return {"corpora": _table(corpora), "numbers": _table(numbers)}


def _table(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def updated(page: str) -> str:
    """The page with new tables between its markers."""
    for name, table in tables().items():
        page = re.sub(rf"(?s)(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", page)
    return page


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(updated(PAGE.read_text()))
    else:
        print("\n\n".join(tables().values()))
