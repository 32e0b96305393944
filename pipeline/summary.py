"""A run told in plain figures: the closing summary of `run`, and `show`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipeline.errors import UsageError
from pipeline.estimate import count_noun, size_text
from pipeline.manifest import MANIFEST, SUCCESS, count_rows, load_commits, load_json
from pipeline.runlog import load_runs
from transforms import filesystem, metrics
from transforms.write import REJECTS

# Over this share of [UNK] the vocabulary does not know the language.
_UNKNOWN_SHARE = 0.05
_ROWS = 5
_PLACE = re.compile(r" at (?:byte|character) \d")
_SHOWN = ("line", "start", "end", "token", "text")
_NAMED_VECTORS = 4
_UNFINISHED = {
    "started": "unfinished: at work, or killed",
    "interrupted": "unfinished: interrupted",
    "failed": "unfinished: failed",
}


def summarize(output_path: str) -> dict[str, Any]:
    """What is in an output folder, of a finished run or of one that was cut short. UsageError where there is none."""
    runs = load_runs(output_path)
    if not runs:
        raise UsageError(f"{output_path}: holds no layerbeam run (no _runs folder in it)")
    head = runs[-1]
    manifest = load_json(filesystem.join(output_path, MANIFEST))
    commits = load_commits(output_path)
    counts = metrics.total([commit.counts for commit in commits])
    read = sum(commit.block.end_byte - commit.block.first_byte for commit in commits)
    views = {name: view | count_rows(name, commits) for name, view in head["views"].items()}
    same = manifest is not None and manifest["fingerprint"] == head["fingerprint"]
    if manifest is not None and same and metrics.DOUBLED_IDS in manifest["counts"]:
        counts[metrics.DOUBLED_IDS] = manifest["counts"][metrics.DOUBLED_IDS]
    finished = filesystem.exists(filesystem.join(output_path, SUCCESS))
    return {
        "path": output_path,
        "state": "complete" if finished else _UNFINISHED.get(head["state"], head["state"]),
        "problems": manifest["problems"] if manifest is not None and same else [],
        "fingerprint": head["fingerprint"],
        "encoder": head["encoder"],
        "inputs": head["inputs"] | {"text_bytes_done": read},
        "counts": counts,
        "ids_compared_in": (manifest or {}).get("ids_compared_in", "block") if same else "block",
        "rejects": _reasons(output_path, [c.parts[REJECTS].path for c in commits if REJECTS in c.parts]),
        "views": views,
        "parts": {name: [c.parts[name].path for c in commits if name in c.parts] for name in views},
    }


def _reasons(output_path: str, paths: list[str]) -> dict[str, int]:
    """How often each reason for a reject comes, most frequent first."""
    reasons: Counter[str] = Counter()
    for path in paths:
        for line in filesystem.read_bytes(filesystem.join(output_path, path)).splitlines():
            reasons[_PLACE.split(json.loads(line)["reason"])[0]] += 1
    return dict(reasons.most_common())


def first_rows(output_path: str, paths: list[str]) -> list[dict[str, Any]]:
    """A few rows of a view, vectors cut to their first values."""
    import pyarrow.parquet as pq

    if not paths:
        return []
    with filesystem.open_binary(filesystem.join(output_path, paths[0])) as file:
        batch = next(pq.ParquetFile(file).iter_batches(_ROWS), None)
    return [] if batch is None else batch.to_pylist()


def notes(counts: Mapping[str, int]) -> list[str]:
    """What a reader of the vectors should know of the texts: what was cut, what the vocabulary did not know."""
    lines = []
    truncated, dropped = counts.get(metrics.TRUNCATED_TEXTS, 0), counts.get(metrics.DROPPED_TOKENS, 0)
    if truncated:
        share = dropped / (dropped + counts.get(metrics.TOKENS, 0))
        texts = f"{count_noun(truncated, 'text')} {'was' if truncated == 1 else 'were'}"
        lines.append(f"{texts} longer than max_seq_length: {dropped:,} tokens ({share:.1%}) have no vector")
    tokens, unknown = counts.get(metrics.TOKENS, 0), counts.get(metrics.UNKNOWN_TOKENS, 0)
    if tokens:
        line = f"{unknown / tokens:.2%} of the tokens are [UNK]"
        if unknown / tokens > _UNKNOWN_SHARE:
            line += ": the vocabulary does not know this language or script; take an encoder that was trained on it"
        lines.append(line)
    return lines


def plain_console(**settings: Any) -> Any:
    """The terminal: what comes from a corpus is never read as markup, and a reader who left is an error as usual."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PlainConsole(highlight=False, markup=False, **settings)


def print_summary(summary: Mapping[str, Any]) -> None:
    """To the terminal, or as plain text where there is none."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = plain_console(soft_wrap=True)
    encoder, counts, inputs = summary["encoder"], summary["counts"], summary["inputs"]
    console.print(Text(f"{summary['path']}: {summary['state']}", style="bold"))
    console.print(
        f"encoder   {encoder['handle']}: {encoder['num_hidden_layers']} layers of {encoder['hidden_size']}, "
        f"engine {encoder['engine']}, "
        f"{'lower-casing' if encoder['do_lower_case'] else 'cased'} ({encoder['casing_from']})"
    )
    console.print(f"input     {count_noun(inputs['files'], 'file')}, {size_text(inputs['bytes'])}")
    console.print(
        f"records   {counts.get(metrics.RECORDS, 0):,} read = {counts.get(metrics.EMBEDDED, 0):,} embedded + "
        f"{counts.get(metrics.BLANK, 0):,} blank + {counts.get(metrics.FILTERED, 0):,} filtered + "
        f"{counts.get(metrics.REJECTED, 0):,} rejected"
    )
    if metrics.SENTENCES in counts:
        console.print(
            f"sentences {counts[metrics.SENTENCES]:,} found = {counts[metrics.SENTENCES_EMBEDDED]:,} embedded + "
            f"{counts[metrics.SENTENCES_BLANK]:,} blank + {counts[metrics.SENTENCES_FILTERED]:,} filtered + "
            f"{counts[metrics.SENTENCES_REJECTED]:,} rejected"
        )
    for reason, count in summary["rejects"].items():
        console.print(f"          {count:,} rejected: {reason}")
    doubled = counts.get(metrics.DOUBLED_IDS, 0)
    if doubled:
        within = "" if summary["ids_compared_in"] == "run" else " (compared within blocks only)"
        console.print(f"          {count_noun(doubled, 'record')} with the id of an earlier one{within}")
    for note in notes(counts):
        console.print(f"          {note}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("view", "rows", "size", "parts", "vectors"):
        table.add_column(heading, justify="right" if heading in ("rows", "size", "parts") else "left")
    for name, view in summary["views"].items():
        table.add_row(name, f"{view['rows']:,}", size_text(view["bytes"]), f"{view['parts']:,}", _vectors(view))
    console.print(table)
    for problem in summary["problems"]:
        console.print(f"problem   {problem}")
    if summary["state"] in _UNFINISHED.values():
        left = max(inputs["bytes"] - inputs["text_bytes_done"], 0)
        much = "part of the input" if inputs["compressed"] else f"about {size_text(left)} of the input"
        console.print(f"remains   {much}; run the same command again to go on")


def print_rows(summary: Mapping[str, Any]) -> None:
    """The first rows of each view."""
    console = plain_console()
    for name in summary["views"]:
        _print_rows(console, name, first_rows(summary["path"], summary["parts"][name]))


def _vectors(view: Mapping[str, Any]) -> str:
    """`layer_0 ... layer_6, each 384 x float32`."""
    names = view["vectors"]
    shown = ", ".join(names) if len(names) <= _NAMED_VECTORS else f"{names[0]} ... {names[-1]}"
    return f"{shown}{', each' if len(names) > 1 else ':'} {view['width']} x {view['dtype']}"


def _print_rows(console: Any, name: str, rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"first rows of {name}", title_justify="left")
    vector = next(column for column in rows[0] if isinstance(rows[0][column], list))
    shown = [column for column in _SHOWN if column in rows[0]]
    for column in shown:
        is_text = column in ("token", "text")
        table.add_column(column, no_wrap=True, max_width=32, justify="left" if is_text else "right")
    table.add_column(f"{vector}, 3 of {len(rows[0][vector])}", no_wrap=True)
    for row in rows:
        values = "  ".join(f"{value:+.3f}" for value in row[vector][:3])
        table.add_row(*(str(row[column]) for column in shown), values)
    console.print(table)
