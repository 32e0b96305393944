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
SIZES = {1e6: "1 M tokens", 1e9: "1 B tokens", 100e9: "100 B tokens"}
LEVELS = ("token", "text")
# Workers with 8 vCPUs, for each size.
CPU_WORKERS = {1e6: 1, 1e9: 50, 100e9: 1000}
L4_WORKERS = {1e6: 1, 1e9: 4, 100e9: 100}
VCPUS = 8

_BIBLE = "King James Bible; `layerbeam plan` gives yours"
_COUNTED = "counted: `python tests/benchmarks/ends.py --gs --commits 3000 10000 --blocks-per-file 1000`"
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
    "l4": (178_000, "tokens/s of an L4, BERT-base, bfloat16", "assumed: a quarter of its peak of 121 TFLOP/s"),
    "upload": (300e6, "bytes/s that one worker writes to gs://", "assumed"),
    "start": (360, "s until the workers have the image and the encoder", "assumed"),
    "group": (10_000, "blocks of a group at the end of a run", "`pipeline/output/groups.py`"),
    "reads": (1, "reads of a commit per block at the end", _COUNTED),
    "part_pages": (0.001, "pages of all parts per block, listed by the last worker", _COUNTED),
    "pages": (0.003, "pages of other listings per block at the end", _COUNTED),
    "batches": (0.01, "batches of deletions per block at the end", _COUNTED),
    "read": (0.05 / 32, "s to read a commit, 32 at once", "assumed: 50 ms for a request"),
    "page": (0.3, "s for a page of a listing", "assumed"),
    "batch": (1 / 8, "s for a batch of deletions, 8 at once", "assumed: 1 s for a request"),
    "index": (690, "bytes of the index per block", "measured"),
    "cpu_price": (0.565, "$ per hour of n2-standard-8 on Dataflow", _LIST),
    "l4_price": (1.237, "$ per hour of g2-standard-8 with an L4", _LIST),
    "storage": (0.02, "$ per GB and month on gs://", "assumed"),
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

    def _encoding_seconds(self, workers: int, worker_rate: float) -> float:
        """Each worker has `VCPUS` blocks at a time; the last blocks end with idle threads."""
        threads = workers * VCPUS
        return math.ceil(self.blocks / threads) * self.tokens / self.blocks / (worker_rate / VCPUS)

    @property
    def cpu_hours(self) -> float:
        seconds = self._encoding_seconds(CPU_WORKERS[self.tokens], self["core"] * self["vcpu"] * VCPUS)
        return (self["start"] + seconds) / 3600

    @property
    def l4_hours(self) -> float:
        rate = min(self["l4"], self["upload"] * self.tokens / self.disk_bytes)
        return (self["start"] + self._encoding_seconds(L4_WORKERS[self.tokens], rate)) / 3600

    @property
    def groups_seconds(self) -> float:
        """The groups of blocks, one on each vCPU."""
        groups = math.ceil(self.blocks / self["group"])
        waves = math.ceil(groups / (CPU_WORKERS[self.tokens] * VCPUS))
        requests = ("reads", "read"), ("pages", "page"), ("batches", "batch")
        return waves * self.blocks / groups * sum(self[count] * self[seconds] for count, seconds in requests)

    @property
    def last_seconds(self) -> float:
        """The last worker lists the parts."""
        return self.blocks * self["part_pages"] * self["page"]


def count(number: float) -> str:
    """25,415 or 2.54 M or 100 B."""
    for unit, name in ((1e9, "B"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,.4g}" if number < 1000 else f"{number:,.0f}"


def size(number: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.0f} B"


def span(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


_ROWS: dict[str, Callable[[Job], str]] = {
    "text": lambda job: size(job.tokens * job["text_bytes"]),
    "rows": lambda job: count(job.rows),
    "blocks = parts = commits": lambda job: count(job.blocks),
    "parts on disk": lambda job: size(job.disk_bytes),
    "storage per month": lambda job: f"${job.disk_bytes / 1e9 * job['storage']:,.2f}",
    "index": lambda job: size(job.blocks * job["index"]),
    "CPU workers": lambda job: f"{CPU_WORKERS[job.tokens]:,}",
    "time": lambda job: span(job.cpu_hours * 3600),
    "cost": lambda job: f"${job.cpu_hours * CPU_WORKERS[job.tokens] * job['cpu_price']:,.2f}",
    "or L4 workers": lambda job: f"{L4_WORKERS[job.tokens]:,}",
    "time with L4": lambda job: span(job.l4_hours * 3600),
    "cost with L4": lambda job: f"${job.l4_hours * L4_WORKERS[job.tokens] * job['l4_price']:,.2f}",
    "lost with a thread": lambda job: span(job.tokens / job.blocks / (job["core"] * job["vcpu"])),
    "end of the run: groups, waiting for gs://": lambda job: span(job.groups_seconds),
    "end of the run: last worker, waiting for gs://": lambda job: span(job.last_seconds),
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
