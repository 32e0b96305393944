"""The summary of a run, printed: for `show`, and at the end of `run`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from layerbeam.pipeline.console import command_name, count_noun, plain_console, size_text
from layerbeam.pipeline.dataset.summary import RunSummary
from layerbeam.pipeline.dataset.view import View, vectors_text
from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.layout import REJECTS, WORD_SUMS

_ROWS = 5
# The texts and tokens that an attempt encoded, and those that it copied.
_OF_ATTEMPT = (metrics.WRITTEN_TEXTS, metrics.TOKENS), (metrics.COPIED_TEXTS, metrics.COPIED_TOKENS)
_SHOWN = ("line", "start", "end", "token", "word", "count", "text", "num_texts")


def print_summary(summary: RunSummary, *, speed: bool = True) -> None:
    """Print what was read, what was written and, unless nothing was done, how fast."""
    console = plain_console(soft_wrap=True)
    encoder, inputs = summary.encoder, summary.inputs
    console.print(Text(f"{summary.path}: {summary.state}", style="bold"))
    job = summary.last_start.get("job")
    if summary.is_unfinished and job is not None:
        console.print(f"job       {job} on {summary.last_start.get('runner')}")
    console.print(f"encoder   {encoder['handle']}: {summary.encoder_text}")
    for heading, line in summary.facts:
        console.print(f"{heading:10}{line}")
    rejects = [f"{count:,} rejected: {reason}" for reason, count in summary.rejects.items()]
    remedies = [f"to fix {remedy}" for remedy in summary.remedies]
    console.print_section("", [*rejects, *remedies, *summary.notes])
    if speed:
        _print_work(console, summary)
    console.print_section("speed", _speed(summary.last_start) if speed else [])
    views = [
        (name, f"{view['rows']:,}", size_text(view["bytes"]), f"{view['parts']:,}", vectors_text(view))
        for name, view in summary.views.items()
    ]
    console.print_table(("view", "rows", "size", "parts", "vectors"), views, left=("view", "vectors"))
    for view, size in summary.sums_bytes.items():
        console.print(f"sums      {size_text(size)} of sums for `{view}`, in {WORD_SUMS}: later runs add to them")
    for problem in summary.first_problems:
        console.print(f"problem   {problem}".replace("\n", "\\n"))
    if summary.is_unfinished:
        left = max(inputs["bytes"] - inputs["text_bytes_done"], 0)
        remains = "part of the input" if inputs["compressed"] else f"about {size_text(left)} of the input"
        console.print(f"remains   {remains}; run the same command again to resume")


def _print_work(console: Any, summary: RunSummary) -> None:
    """Print what the last attempt deleted, encoded, copied and kept, unless it encoded everything."""
    pruned = summary.last_start.get("pruned")
    if pruned and pruned["files"]:
        names = ", ".join(pruned["first"]) + (", ..." if pruned["files"] > len(pruned["first"]) else "")
        console.print_section("deleted", [f"the rows of {count_noun(pruned['files'], 'missing file')}: {names}"])
    now, counts = summary.last_start.get("counts", {}), summary.counts
    encoded, copied = ((now.get(texts, 0), now.get(tokens, 0)) for texts, tokens in _OF_ATTEMPT)
    kept = (
        metrics.embedded_texts(counts) - encoded[0] - copied[0],
        counts.get(metrics.TOKENS, 0) - encoded[1] - copied[1],
    )
    if not now or (kept[0] <= 0 and not copied[0]):
        return
    blocks = count_noun(now.get(metrics.BLOCKS_COPIED, 0), "block")
    where = f" in {blocks}, which had other lines, files or fields"
    for heading, (texts, tokens), more in (("encoded", encoded, ""), ("copied", copied, where), ("kept", kept, "")):
        if texts > 0:
            console.print_section(heading, [f"{count_noun(texts, 'text')} ({count_noun(tokens, 'token')}){more}"])


def _speed(attempt: Mapping[str, Any]) -> list[str]:
    """How fast the last attempt was, from its record in `_runs`; no lines if it encoded nothing."""
    tokens = attempt.get("counts", {}).get(metrics.ENCODED_TOKENS, 0)
    if not tokens:
        return []
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in attempt["stage_shares"].items() if share >= 0.005)
    if attempt["workers"] is None:  # it ran elsewhere, and the memory measured is this machine's
        where, memory = f"on {attempt.get('runner')}", ""
    else:
        where = f"with {count_noun(attempt['workers'], 'worker')}"
        memory = f"; peak memory {size_text(attempt['peak_memory_bytes'])}"
    startup = f" after {attempt['startup_seconds']:.1f} s of start-up" if "startup_seconds" in attempt else ""
    lines = [
        f"{count_noun(tokens, 'token')} encoded (with special tokens, and equal texts of a block once) in "
        f"{attempt['seconds']:.1f} s{startup}, {attempt['tokens_per_second']:,.0f} a second, "
        f"{where}; padding {attempt['padding_share']:.1%}{memory}",
        f"first block after {attempt['seconds_to_first_block'] or 0:.1f} s; busy with: {shares}",
    ]
    for name, by in ((metrics.BLOCKS_FOUND_OWN, "this run"), (metrics.BLOCKS_FOUND_OTHER, "another run")):
        found = attempt["counts"].get(name, 0)
        if found:
            lines.append(f"not encoded again: {count_noun(found, 'block')} that {by} had written already")
    halved = attempt["counts"].get(metrics.HALVED_BATCHES, 0)
    if halved:
        batches = count_noun(halved, "batch", "batches")
        lines.append(f"{batches} did not fit in memory and had to be halved; a lower encoder.batch_tokens avoids that")
    return lines


def print_next(summary: RunSummary) -> None:
    """Print where to look next: a file or a command, and its purpose. In a log, only what has to be done."""
    path, command = summary.path, command_name()
    steps = []
    if summary.state == "incomplete":
        if any(problem.endswith("--prune-missing") for problem in summary.problems):
            steps.append(("the same command with --prune-missing", "deletes the rows of the missing files"))
        purpose = "once files are repaired, restored or left out, or settings corrected: it does only what is left"
        steps.append(("the same command again", purpose))
    if summary.rejects:
        steps.append((storage.join(path, REJECTS), "each rejected record: file, line, reason and bytes"))
    if sys.stdout.isatty():
        report = f"{command} report {shlex.quote(path)}"
        steps.append((report, "a page: lengths, layers, neighbours, words (--word W)"))
        if summary.state == "complete":
            verify = f"{command} verify {shlex.quote(path)}"
            steps.append((verify, "check a sample of rows against an independent NumPy implementation"))
            if any(view["format"] == "parquet" for view in summary.views.values()):
                steps.append((f"layerbeam.open_run({path!r})", "the rows in Python, as Arrow, NumPy or tf.data"))
    width = max((len(step) for step, _ in steps), default=0)
    plain_console(soft_wrap=True).print_section("next", (f"{step:{width}}  {purpose}" for step, purpose in steps))


def print_rows(summary: RunSummary) -> None:
    """Print the first rows of each view that has rows; of a list of vectors the first vector."""
    console = plain_console()
    for name in summary.views:
        view = View(summary.path, name, summary.views[name], summary.parts[name])
        rows = view.first_rows(_ROWS).to_pylist()
        if not rows:
            continue
        vector = next(column for column, value in rows[0].items() if isinstance(value, list))
        shown = [column for column in _SHOWN if column in rows[0]]
        first = [(row[vector] or [[]])[0] if view.has_vector_lists else row[vector] for row in rows]
        headings = [*shown, f"{vector}{'[0]' if view.has_vector_lists else ''}, 3 of {view.width}"]
        cells = [
            [*(str(row[column]) for column in shown), "  ".join(f"{value:+.3f}" for value in values[:3])]
            for row, values in zip(rows, first, strict=True)
        ]
        left = ("token", "word", "text", headings[-1])
        console.print_table(headings, cells, left=left, title=f"first rows of {name}", no_wrap=True, max_width=32)
