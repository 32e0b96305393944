"""docs/scale.md: what a run of any size needs, from scale_measured.json and the assumptions of scale_model.py.

python scale.py [--write]
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scale_model import (
    ASSUMED,
    CPU_WORKERS,
    ENCODERS,
    L4_WORKERS,
    LEVELS,
    TOKENS,
    Job,
    assumed,
)

HERE = Path(__file__).resolve().parent
MEASURED = HERE / "scale_measured.json"
PAGE = HERE.parents[1] / "docs/scale.md"
BEGIN, END = "<!-- scale: written by make scale -->", "<!-- end of scale -->"
BASE = "BERT-base size"
# The GroupByKeys of pipeline/build.py, by Beam's names.
SHUFFLES = {
    "Reshuffle of ranges": "slice/spread ranges/ReshufflePerKey/GroupByKey",
    "ranges of one file": "slice/of one file",
    "Reshuffle of slices": "read/spread slices/ReshufflePerKey/GroupByKey",
    "commits, one key": "all together",
}


def count(number: float) -> str:
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,.0f}"


def size(number: float) -> str:
    for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.0f} B"


def span(seconds: float) -> str:
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def money(dollars: float) -> str:
    return f"${dollars:,.0f}" if dollars >= 10 else f"${dollars:.2f}"


def bold_if(text: str, condition: bool) -> str:
    return f"**{text}**" if condition else text


def row(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def header(*cells: str) -> list[str]:
    return [row(*cells), f"|{'---|' * len(cells)}"]


def by_size(measured: dict[str, Any], first: str) -> tuple[list[Job], list[str]]:
    """Jobs of both levels and all sizes, and the header of a table with one column for each job."""
    jobs = [Job(measured, BASE, level, tokens) for level in LEVELS for tokens in TOKENS]
    return jobs, header(first, *(f"{count(job.tokens)} tokens, {job.level} level" for job in jobs))


def flow_table(measured: dict[str, Any]) -> list[str]:
    jobs, lines = by_size(measured, f"{BASE}, one layer")

    def add(name: str, cells: Iterable[str]) -> None:
        lines.append(row(name, *cells))

    add("text", (size(job.text_bytes) for job in jobs))
    add("rows", (count(job.rows) for job in jobs))
    add("**blocks** = parts = commits", (f"**{count(job.blocks)}**" for job in jobs))
    add("tokens per block", (count(job.tokens / job.blocks) for job in jobs))
    for edge in jobs[0].edges:
        add(f"elements, {edge}", (count(job.edges[edge]) for job in jobs))
    for name, shuffle in SHUFFLES.items():
        add(f"bytes, {name}", (size(job.shuffled[shuffle]) for job in jobs))
    add("shuffled bytes, relative to the text", (f"{sum(job.shuffled.values()) / job.text_bytes:.2%}" for job in jobs))
    add("**parts on disk**", (f"**{size(job.part_bytes)}**" for job in jobs))
    add("bytes in a part", (size(job.part_bytes / job.blocks) for job in jobs))
    add("storage per month", (money(job.part_bytes / 1e9 * assumed("storage price")) for job in jobs))
    return lines


def hours_table(measured: dict[str, Any]) -> list[str]:
    lines = header(
        *("encoder, level", "tokens", "CPU workers", "encoders loaded", "hours", "cost", "lost with a worker, at most"),
        *("L4 workers", "hours", "cost", "bottleneck"),
    )
    for encoder in ENCODERS:
        for level in LEVELS:
            for tokens in TOKENS:
                job = Job(measured, encoder, level, tokens)
                limits = job.l4_limits()
                slowest = min(limits, key=lambda name: limits[name])
                threads = assumed("cpu vcpus")
                cpu = [
                    f"{CPU_WORKERS[tokens]:,}",
                    f"{CPU_WORKERS[tokens] * threads:,.0f}",
                    span(job.cpu_seconds),
                    money(job.dollars("cpu")),
                    f"{min(threads, job.blocks):.0f} blocks, {span(job.block_seconds)} each",
                ]
                l4 = [f"{L4_WORKERS[tokens]:,}", span(job.l4_seconds), money(job.dollars("l4"))]
                lines.append(
                    row(
                        f"{encoder}, {level}", count(tokens), *cpu, *l4, f"{slowest}, {count(limits[slowest])} tokens/s"
                    )
                )
    return lines


_ENDS = (
    "When this was measured, one worker did both and held all commits. Now the work is spread over groups of files. "
    "The figures were not measured again."
)


def ends_table(measured: dict[str, Any]) -> list[str]:
    jobs, lines = by_size(measured, "one element, one thread, one worker")
    room = assumed("cpu memory") * 1e9 - assumed("cpu vcpus") * measured["load"][f"{BASE}, float32"]["memory_bytes"]

    def add(name: str, cells: Iterable[str]) -> None:
        lines.append(row(name, *cells))

    def memory(needed: float) -> str:
        return size(needed) if needed <= room else f"**{size(needed)}: does not fit**"

    add("commits", (count(job.blocks) for job in jobs))
    for stage in ("finish", "find"):
        name = f"`{stage}`" if stage == "finish" else "`find` of a resumed run"
        add(f"{name}: memory", (memory(job.end_memory(stage)) for job in jobs))
        add(f"{name}: computing", (span(job.end_computing(stage)) for job in jobs))
        waits = [job.end_requests(stage) for job in jobs]
        add(f"{name}: waiting for gs://", (bold_if(span(wait), wait > 3600) for wait in waits))
    add("parts.jsonl", (size(job.listing_bytes) for job in jobs))
    return lines


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120, subsequent_indent="  " if text.startswith("*") else "", break_on_hyphens=False)


def limits_lines(measured: dict[str, Any]) -> list[str]:
    """The limits that follow from the numbers, in words."""
    middle = Job(measured, BASE, "token", TOKENS[1])
    words = measured["word_types"]
    sums = words["part_bytes"] / words["blocks"]
    limits = [
        "* **Each group of about 10,000 slices is compared and finished on its own**, by any worker. Commits stay on "
        "the disk; 16 bytes of each block cross a shuffle. On the local runner with 2 processes the end of a run of "
        "2,000 blocks took up to 793 MB in a process, and of 100,000 blocks 807 MB (`python tests/benchmarks/ends.py` "
        "measures it). Larger runs were not measured. The index of a run of several groups is in shards, which readers "
        "open when they need them.",
        "* **One worker finalizes the run**: it lists the folders, deletes what no group lists and the commits, and "
        "writes the manifest. Its time grows with the number of parts. The list of input files is one element.",
        f"* **A `word_type` view keeps the sums of all blocks**, {size(sums)} each: {size(sums * middle.blocks)} for "
        "1 B tokens, a hundred times as much for 100 B. At the end the workers share ranges of words. For each range "
        "of some 5,000 words a worker holds 64 MiB and opens the sums of every block. For 100 B tokens use level "
        "`word` and aggregate the rows elsewhere.",
        "* Remote runners number the ranges of a huge file in stretches of 1,024. One worker finishes the file, commit "
        "by commit. Files of 100 MB to 1 GB are best.",
    ]
    return [line for text in limits for line in wrapped(text)]


def measured_lines(measured: dict[str, Any]) -> list[str]:
    machine, flow, small = measured["machine"], measured["flow"][f"{BASE}, token"], measured["small"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    shuffled_per_commit = flow["shuffled_bytes"]["all together"] / flow["elements"]["reports"]
    shuffled = sum(small["shuffled_bytes"].values()) / small["files"]
    lines = wrapped(
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, {size(machine['memory_bytes'])}, Python "
        f"{machine['python']}, {versions}; `{machine['command']}`; medians of {machine['rounds']} interleaved rounds. "
        f"The machine was shared (load average {machine['load_average']:.1f}), so all rates are per second of "
        "processor time, not of wall-clock time."
    )
    lines += [
        "",
        *wrapped(
            f"Counted on the King James Bible: {flow['texts']:,} lines, {size(flow['text_bytes'])}, "
            f"{flow['encoded_tokens']:,} tokens (including [CLS] and [SEP]), so "
            f"{flow['text_bytes'] / flow['encoded_tokens']:.2f} bytes of text per token, "
            f"{flow['encoded_tokens'] / flow['texts']:.1f} tokens and {flow['text_bytes'] / flow['texts']:.0f} bytes "
            f"per line. A commit is {flow['commit_bytes']:.0f} bytes of JSON and {shuffled_per_commit:.0f} in the "
            f"shuffle. The demo's {small['files']} files of {size(small['text_bytes'] / small['files'])} shuffle "
            f"{size(shuffled)} each: files much smaller than a slice cost more than their text."
        ),
        "",
        *header(
            "",
            "tokens/s per core, token level",
            "text level",
            "time to load",
            "memory per process",
            "weights",
        ),
    ]
    for encoder in ENCODERS:
        for dtype in ("float32", "bfloat16"):
            load = measured["load"][f"{encoder}, {dtype}"]
            found = [measured["speed"][f"{encoder}, {dtype}, {level}"] for level in LEVELS]
            rates = [f"{one['encoded_tokens'] / one['processor_seconds']:,.0f}" for one in found]
            seconds = load["import_seconds"] + load["load_seconds"]
            sizes = size(load["memory_bytes"]), size(load["weight_bytes"])
            lines.append(row(f"{encoder}, {dtype}", *rates, f"{seconds:.1f} s", *sizes))
    lines += ["", *header("one row, float32, one layer", "bytes of the vector", "bytes on disk")]
    for encoder in ENCODERS:
        for level in LEVELS:
            view = measured["speed"][f"{encoder}, float32, {level}"]["views"]["v"]
            lines.append(row(f"{encoder}, {level} level", view["width"] * 4, f"{view['bytes'] / view['rows']:,.0f}"))
    lines += ["", *header("synthetic commits", "computing", "memory")]
    for name, found in measured["ends"].items():
        stage, number = name.split(", ")
        lines.append(row(f"`{stage}`, {int(number):,}", f"{found['seconds']:.1f} s", size(found["memory_bytes"])))
    return lines


def assumed_lines() -> list[str]:
    lines = header("assumption", "value", "reason")
    for name, one in ASSUMED.items():
        number = "" if one.value is None else count(one.value) if one.value >= 1e6 else f"{one.value:g}"
        value = f"{number} {one.unit}".strip()
        lines.append(row(name, value, one.why))
    return lines


def tables(measured: dict[str, Any]) -> list[str]:
    """All lines between the page's markers."""
    sections = {
        "What flows": flow_table(measured),
        "Hours and dollars": hours_table(measured),
        "The two ends of a run": [*wrapped(_ENDS), "", *ends_table(measured)],
        "Limits": limits_lines(measured),
        "Measurements": measured_lines(measured),
        "Assumptions": assumed_lines(),
    }
    return [line for title, lines in sections.items() for line in (f"## {title}", "", *lines, "")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="write docs/scale.md")
    options = parser.parse_args()
    lines = tables(json.loads(MEASURED.read_text()))
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text("\n".join([before + BEGIN, *lines, END + rest.split(END)[1]]))
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
