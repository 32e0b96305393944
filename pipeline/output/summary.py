"""A run told in plain figures: the closing summary of `run`, and `show`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerbeam.pipeline.cli.console import count_noun, plain_console, size_text
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import load_commits
from layerbeam.pipeline.output.manifest import count_rows, load_manifest, shape_text, vectors_text, view_schema
from layerbeam.pipeline.output.run_log import load_runs
from layerbeam.pipeline.run.speed import PERFORMANCE, performance_lines
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.layout import REJECTS, SUCCESS
from layerbeam.transforms.parts import read_rejects, read_tables
from layerbeam.transforms.tokenize.row_index import EMPTY_WORDS, KEPT_WORDS, LOST_WORDS

# Over this share of [UNK] the vocabulary does not know the language.
_UNKNOWN_SHARE = 0.05
_ROWS = 5
_SHOWN = ("line", "start", "end", "token", "word", "count", "text", "num_texts")
_NAMED_FORMS = 10
_UNITS = {metrics.RECORDS: ("records", "read"), metrics.SENTENCES: ("sentences", "found")}
_OF_START = ("run", "state", "runner", "job", "workers", "peak_memory_bytes", *PERFORMANCE)
_UNFINISHED = {
    "started": "unfinished: at work, or killed",
    "interrupted": "unfinished: interrupted",
    "failed": "unfinished: failed",
    "submitted": "unfinished: submitted, and not at its end yet",
}


def summarize(output_path: str) -> dict[str, Any]:
    """What is in an output folder, of a finished run or of one that was cut short. UsageError where there is none."""
    return summarize_start(output_path, last_start(output_path), load_commits(output_path))


def last_start(output_path: str) -> Mapping[str, Any]:
    """The record of the last start in an output folder. UsageError where there is none."""
    runs = load_runs(output_path)
    if not runs:
        raise UsageError(f"{output_path}: holds no layerbeam run (no _runs folder in it)")
    return runs[-1]


def summarize_start(output_path: str, head: Mapping[str, Any], commits: Sequence[Commit]) -> dict[str, Any]:
    """What is in an output folder whose last start and commits are loaded already."""
    manifest = load_manifest(output_path)
    counts = metrics.total([commit.counts for commit in commits])
    read = sum(commit.block.end_byte - commit.block.first_byte for commit in commits)
    parts = {name: [commit.parts[name] for commit in commits if name in commit.parts] for name in head["views"]}
    views = {name: view | count_rows(parts[name]) for name, view in head["views"].items()}
    for name, view in views.items():
        if view["level"] == "word_type":  # its rows are made at the end
            of_run: Mapping[str, Any] = manifest["views"].get(name, {}) if manifest else {}
            views[name] = view | {figure: of_run.get(figure, 0) for figure in ("rows", "bytes", "parts", "path")}
    same = manifest is not None and manifest["fingerprint"] == head["fingerprint"]
    if manifest is not None and same and metrics.DUPLICATE_IDS in manifest["counts"]:
        counts[metrics.DUPLICATE_IDS] = manifest["counts"][metrics.DUPLICATE_IDS]
    finished = storage.exists(storage.join(output_path, SUCCESS))
    return {
        "path": output_path,
        "state": "complete" if finished else _UNFINISHED.get(head["state"], head["state"]),
        "problems": manifest["problems"] if manifest is not None and same else [],
        "fingerprint": head["fingerprint"],
        "encoder": head["encoder"],
        "inputs": head["inputs"] | {"text_bytes_done": read},
        "counts": counts,
        "ids_compared_in": manifest.get("ids_compared_in", "block") if manifest and same else "block",
        "rejects": _reasons(output_path, [c.parts[REJECTS].path for c in commits if REJECTS in c.parts]),
        "views": views,
        "last_start": {name: head[name] for name in _OF_START if name in head},
        "words": _words(counts, head["identity"]["views"]),
        "parts": {name: _part_paths(view, parts[name]) for name, view in views.items()},
    }


def _part_paths(view: Mapping[str, Any], parts: Iterable[Part]) -> list[str]:
    """The files that hold a view's rows."""
    if view["level"] == "word_type":
        return [view["path"]] if view["path"] else []
    return [part.path for part in parts]


def _words(counts: Mapping[str, int], views: Mapping[str, Any]) -> dict[str, Any]:
    """Of each view of words or forms: words lost, words of which nothing is left, how often each form of keep_words."""
    words = {}
    for name, view in views.items():
        of_view: dict[str, Any] = {
            "lost": counts.get(f"{LOST_WORDS}:{name}", 0),
            "empty": counts.get(f"{EMPTY_WORDS}:{name}", 0),
        }
        if view["keep_words"]:
            of_view["kept"] = {form: counts.get(f"{KEPT_WORDS}:{name}:{form}", 0) for form in view["keep_words"]}
        if view["level"] in ("word", "word_type") or view["keep_words"]:
            words[name] = of_view
    return words


def _word_notes(words: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, of_view in words.items():
        if of_view["lost"]:
            lines.append(f"{name}: {count_noun(of_view['lost'], 'word')} lost to max_seq_length")
        if of_view["empty"]:
            lines.append(f"{name}: {count_noun(of_view['empty'], 'word')} of which nothing is left after cleaning")
        never = [form for form, count in of_view.get("kept", {}).items() if not count]
        if never:
            more = f" and {len(never) - _NAMED_FORMS:,} more" if len(never) > _NAMED_FORMS else ""
            lines.append(f"{name}: 0 of {', '.join(never[:_NAMED_FORMS])}{more} (keep_words that never come)")
    return lines


def _reasons(output_path: str, paths: list[str]) -> dict[str, int]:
    """How often each reason for a reject comes, most frequent first."""
    reasons: Counter[str] = Counter()
    for path in paths:
        for reject in read_rejects(storage.join(output_path, path)):
            reasons[reject.kind if reject else "(damaged record)"] += 1
    return dict(reasons.most_common())


def first_rows(output_path: str, view: Mapping[str, Any], paths: list[str]) -> list[dict[str, Any]]:
    """A few rows of a view, as the summary describes it."""
    if not paths:
        return []
    tables = read_tables(storage.join(output_path, paths[0]), view_schema(view))
    table = next(tables, None)
    return [] if table is None else table.slice(0, _ROWS).to_pylist()


def encoder_text(encoder: Mapping[str, Any]) -> str:
    """`12 layers of 768, engine native, lower-casing (tokenizer_config.json)`."""
    casing = "lower-casing" if encoder["do_lower_case"] else "cased"
    return f"{shape_text(encoder)}, engine {encoder['engine']}, {casing} ({encoder['casing_from']})"


def balances(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """(records or sentences, what became of them)."""
    lines = []
    for read, (unit, how) in _UNITS.items():
        if read in counts or read == metrics.RECORDS:
            ends = zip(metrics.BALANCES[read], ("embedded", "blank", "filtered", "rejected"), strict=True)
            ended = " + ".join(f"{counts.get(name, 0):,} {end}" for name, end in ends)
            lines.append((unit, f"{counts.get(read, 0):,} {how} = {ended}"))
    return lines


def notes(summary: Mapping[str, Any]) -> list[str]:
    """What a reader of the vectors should know: ids that come again, what was cut, what the vocabulary did not know."""
    lines, counts = [], summary["counts"]
    doubled = counts.get(metrics.DUPLICATE_IDS, 0)
    if doubled:
        within = "" if summary["ids_compared_in"] == "run" else " (compared within blocks only)"
        lines.append(f"{count_noun(doubled, 'record')} with the id of an earlier one{within}")
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
    return lines + _word_notes(summary["words"])


def next_steps(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where to look next: (file or command, what it gives)."""
    path = summary["path"]
    steps = []
    if summary["state"] == "incomplete":
        steps.append(("the same command again", "once the problems are mended: it does only what is left"))
    if summary["rejects"]:
        steps.append((storage.join(path, REJECTS), "each rejected record: file, line, reason and bytes"))
    steps.append((f"layerbeam report {shlex.quote(path)}", "a page: lengths, layers, neighbours, words (--word W)"))
    if summary["state"] == "complete":
        steps.append((f"layerbeam verify {shlex.quote(path)}", "rows of it against the plain computation"))
        steps.append((f"layerbeam.open_run({path!r})", "the rows in Python, as Arrow, NumPy or tf.data"))
    return steps


def print_summary(summary: Mapping[str, Any]) -> None:
    """To the terminal, or as plain text where there is none."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = plain_console(soft_wrap=True)
    encoder, inputs = summary["encoder"], summary["inputs"]
    console.print(Text(f"{summary['path']}: {summary['state']}", style="bold"))
    console.print(f"encoder   {encoder['handle']}: {encoder_text(encoder)}")
    console.print(f"input     {count_noun(inputs['files'], 'file')}, {size_text(inputs['bytes'])}")
    for heading, line in balances(summary["counts"]):
        console.print(f"{heading:10}{line}")
    for reason, count in summary["rejects"].items():
        console.print(f"          {count:,} rejected: {reason}")
    for note in notes(summary):
        console.print(f"          {note}")
    for heading, line in zip(("speed", "", ""), performance_lines(summary["last_start"]), strict=False):
        console.print(f"{heading:10}{line}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("view", "rows", "size", "parts", "vectors"):
        table.add_column(heading, justify="right" if heading in ("rows", "size", "parts") else "left")
    for name, view in summary["views"].items():
        table.add_row(name, f"{view['rows']:,}", size_text(view["bytes"]), f"{view['parts']:,}", vectors_text(view))
    console.print(table)
    for problem in summary["problems"]:
        console.print(f"problem   {problem}".replace("\n", "\\n"))
    if summary["state"] in _UNFINISHED.values():
        left = max(inputs["bytes"] - inputs["text_bytes_done"], 0)
        much = "part of the input" if inputs["compressed"] else f"about {size_text(left)} of the input"
        console.print(f"remains   {much}; run the same command again to go on")


def print_rows(summary: Mapping[str, Any]) -> None:
    """The first rows of each view."""
    console = plain_console()
    for name in summary["views"]:
        _print_rows(console, name, first_rows(summary["path"], summary["views"][name], summary["parts"][name]))


def print_next(summary: Mapping[str, Any]) -> None:
    """To the terminal: where to look next."""
    console = plain_console(soft_wrap=True)
    steps = next_steps(summary)
    width = max(len(what) for what, _ in steps)
    for number, (what, why) in enumerate(steps):
        console.print(f"{'' if number else 'next':10}{what:{width}}  {why}")


def _print_rows(console: Any, name: str, rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"first rows of {name}", title_justify="left")
    vector = next(column for column in rows[0] if isinstance(rows[0][column], list))
    shown = [column for column in _SHOWN if column in rows[0]]
    for column in shown:
        is_text = column in ("token", "word", "text")
        table.add_column(column, no_wrap=True, max_width=32, justify="left" if is_text else "right")
    table.add_column(f"{vector}, 3 of {len(rows[0][vector])}", no_wrap=True)
    for row in rows:
        values = "  ".join(f"{value:+.3f}" for value in row[vector][:3])
        table.add_row(*(str(row[column]) for column in shown), values)
    console.print(table)
