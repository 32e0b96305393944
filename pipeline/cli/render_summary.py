"""The summary of a run, printed: for `show`, and at the end of `run`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from layerbeam.pipeline.cli.console import count_noun, plain_console, size_text
from layerbeam.pipeline.output.manifest import vectors_text
from layerbeam.pipeline.output.summary import RunSummary, balances, encoder_text, notes
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.layout import REJECTS

_SHOWN = ("line", "start", "end", "token", "word", "count", "text", "num_texts")


def print_summary(summary: RunSummary) -> None:
    """Print what was read, what was written and how fast."""
    console = plain_console(soft_wrap=True)
    encoder, inputs = summary.encoder, summary.inputs
    console.print(Text(f"{summary.path}: {summary.state}", style="bold"))
    console.print(f"encoder   {encoder['handle']}: {encoder_text(encoder)}")
    console.print(f"input     {count_noun(inputs['files'], 'file')}, {size_text(inputs['bytes'])}")
    for heading, line in balances(summary.counts):
        console.print(f"{heading:10}{line}")
    for reason, count in summary.rejects.items():
        console.print(f"          {count:,} rejected: {reason}")
    for note in notes(summary):
        console.print(f"          {note}")
    for number, line in enumerate(_speed(summary.last_start)):
        console.print(f"{'' if number else 'speed':10}{line}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("view", "rows", "size", "parts", "vectors"):
        table.add_column(heading, justify="right" if heading in ("rows", "size", "parts") else "left")
    for name, view in summary.views.items():
        table.add_row(name, f"{view['rows']:,}", size_text(view["bytes"]), f"{view['parts']:,}", vectors_text(view))
    console.print(table)
    for problem in summary.problems:
        console.print(f"problem   {problem}".replace("\n", "\\n"))
    if summary.is_unfinished:
        left = max(inputs["bytes"] - inputs["text_bytes_done"], 0)
        remains = "part of the input" if inputs["compressed"] else f"about {size_text(left)} of the input"
        console.print(f"remains   {remains}; run the same command again to resume")


def _speed(attempt: Mapping[str, Any]) -> list[str]:
    """How fast the last attempt was, from its record in `_runs`; no lines if it encoded nothing."""
    tokens = attempt.get("counts", {}).get(metrics.ENCODED_TOKENS, 0)
    if not tokens:
        return []
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in attempt["stage_shares"].items() if share >= 0.005)
    if attempt["workers"] is None:  # it ran elsewhere, and the memory measured is this machine's
        where, memory = f"on {attempt['runner']}", ""
    else:
        where = f"with {count_noun(attempt['workers'], 'worker')}"
        memory = f"; peak memory {size_text(attempt['peak_memory_bytes'])}"
    lines = [
        f"{tokens:,} tokens in {attempt['seconds']:.1f} s, {attempt['tokens_per_second']:,.0f} a second, "
        f"{where}; padding {attempt['padding_share']:.1%}{memory}",
        f"first block after {attempt['seconds_to_first_block']:.1f} s; busy with: {shares}",
    ]
    halved = attempt["counts"].get(metrics.HALVED_BATCHES, 0)
    if halved:
        batches = count_noun(halved, "batch", "batches")
        lines.append(f"{batches} did not fit in memory and had to be halved; a lower encoder.batch_tokens avoids that")
    return lines


def print_next(summary: RunSummary) -> None:
    """Print where to look next."""
    console = plain_console(soft_wrap=True)
    steps = _next_steps(summary)
    width = max(len(step) for step, _ in steps)
    for number, (step, purpose) in enumerate(steps):
        console.print(f"{'' if number else 'next':10}{step:{width}}  {purpose}")


def _next_steps(summary: RunSummary) -> list[tuple[str, str]]:
    """(file or command, its purpose)."""
    path = summary.path
    steps = []
    if summary.state == "incomplete":
        steps.append(("the same command again", "once the problems are fixed: it does only what is left"))
    if summary.rejects:
        steps.append((storage.join(path, REJECTS), "each rejected record: file, line, reason and bytes"))
    steps.append((f"layerbeam report {shlex.quote(path)}", "a page: lengths, layers, neighbours, words (--word W)"))
    if summary.state == "complete":
        verify = f"layerbeam verify {shlex.quote(path)}"
        steps.append((verify, "check a sample of rows against an independent NumPy implementation"))
        steps.append((f"layerbeam.open_run({path!r})", "the rows in Python, as Arrow, NumPy or tf.data"))
    return steps


def print_rows(summary: RunSummary) -> None:
    """Print the first rows of each view that has rows."""
    console = plain_console()
    for name in summary.views:
        rows = summary.first_rows(name)
        if rows:
            console.print(_row_table(name, rows))


def _row_table(view: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"first rows of {view}", title_justify="left")
    vector = next(column for column, value in rows[0].items() if isinstance(value, list))
    shown = [column for column in _SHOWN if column in rows[0]]
    for column in shown:
        is_text = column in ("token", "word", "text")
        table.add_column(column, no_wrap=True, max_width=32, justify="left" if is_text else "right")
    table.add_column(f"{vector}, 3 of {len(rows[0][vector])}", no_wrap=True)
    for row in rows:
        values = "  ".join(f"{value:+.3f}" for value in row[vector][:3])
        table.add_row(*(str(row[column]) for column in shown), values)
    return table
