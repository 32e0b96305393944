"""A plan for a person to read: at the terminal, or as plain text where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.cli.console import count_noun, duration_text, plain_console, size_text
from layerbeam.pipeline.output.manifest import shape_text
from layerbeam.pipeline.plan.estimate import count_text

_NAMED_FILES = 5
_NAMED_REASONS = 5
_BAR = 40


def print_plan(plan: Mapping[str, Any]) -> None:
    """To the terminal."""
    from rich.text import Text

    console = plain_console(soft_wrap=True)
    console.print(Text(f"{plan['path']}: what a run will do", style="bold"))
    for heading, lines in (
        ("encoder", [f"{plan['encoder']['handle']}: {shape_text(plan['encoder'])}"]),
        ("input", _input_lines(plan)),
        ("texts", _text_lines(plan)),
        ("rejects", _reject_lines(plan)),
    ):
        for number, line in enumerate(lines):
            console.print(f"{heading if number == 0 else '':10}{line}")
    _print_lengths(console, plan)
    _print_cuts(console, plan)
    _print_views(console, plan)
    for heading, lines in (("disk", _disk_lines(plan)), ("time", _time_lines(plan)), ("Dataflow", _dataflow(plan))):
        for number, line in enumerate(lines):
            console.print(f"{heading if number == 0 else '':10}{line}")
    for hint in plan["hints"]:
        console.print(f"{'note':10}{hint}")


def _input_lines(plan: Mapping[str, Any]) -> list[str]:
    given = plan["input"]
    sample, left_out = given["sample"], given["left_out"]
    lines = [f"{count_noun(given['files'], 'file')}, {size_text(given['bytes'])}"]
    if given["files_to_do"] < given["files"] or given["bytes_to_do"] < given["bytes"]:
        lines[0] += f"; left to do: {count_noun(given['files_to_do'], 'file')}, {size_text(given['bytes_to_do'])}"
    read = f"{size_text(sample['text_bytes'])} in {count_noun(sample['places'], 'place')}"
    if sample["is_whole"]:
        lines.append("all of it was read: what follows is counted")
    else:
        lines.append(f"read for this: {read} of {count_noun(sample['files'], 'file')}; +- holds in 95 samples of 100")
    if sample["beginnings_only"]:
        lines.append("of compressed files the beginnings only: +- does not know what changes behind them")
    for path, reason in list(left_out.items())[:_NAMED_FILES]:
        lines.append(f"cannot be read: {path}: {reason}")
    if len(left_out) > _NAMED_FILES:
        lines.append(f"and {len(left_out) - _NAMED_FILES:,} more that cannot be read")
    return lines


def about(figure: Mapping[str, int]) -> str:
    """
    >>> about({"value": 12_345, "margin": 0}), about({"value": 2_000_000, "margin": 25_000})
    ('12,345', 'about 2 M +- 1.2%')
    >>> about({"value": 3, "margin": 4})
    'about 3 +- 4'
    """
    value, margin = figure["value"], figure["margin"]
    if not margin:
        return f"{value:,}"
    if margin >= value:
        return f"about {count_text(value)} +- {count_text(margin)}"
    return f"about {count_text(value)} +- {100 * margin / value:.2g}%"


def _text_lines(plan: Mapping[str, Any]) -> list[str]:
    figures = plan["estimates"]
    lines = [
        f"{about(figures['texts'])}, of {about(figures['records'])} records",
        f"{about(figures['tokens'])} tokens with a vector",
    ]
    for name in ("blank", "filtered"):
        if figures[name]["value"]:
            lines.append(f"{about(figures[name])} records {name}")
    if figures["dropped_tokens"]["value"]:
        texts = about(figures["truncated_texts"])
        lines.append(f"{about(figures['dropped_tokens'])} tokens lost to max_seq_length, of {texts} texts")
    duplicates = plan["duplicates"]
    if duplicates["texts"]:
        lines.append(
            f"{duplicates['texts']:.1%} are equal to an earlier one of their block and not encoded again "
            f"(seen in {count_noun(duplicates['blocks'], 'block')})"
        )
    return lines


def _reject_lines(plan: Mapping[str, Any]) -> list[str]:
    if not plan["rejects_seen"]:
        return []
    lines = [f"{about(plan['estimates']['rejected'])} records"]
    for reason, count in list(plan["rejects_seen"].items())[:_NAMED_REASONS]:
        lines.append(f"seen {count_noun(count, 'time')}: {reason}")
    return lines


def _print_lengths(console: Any, plan: Mapping[str, Any]) -> None:
    lengths = plan["lengths"]
    if not lengths["bins"]:
        return
    room = max(min(_BAR, console.width - 34), 8)
    most = max(one["texts"] for one in lengths["bins"]) or 1
    all_texts = sum(one["texts"] for one in lengths["bins"]) or 1
    mark = "\u2588" if console.encoding.lower().startswith("utf") else "#"
    console.print()
    console.print("tokens of a text, [CLS] and [SEP] included")
    for one in lengths["bins"]:
        bar = mark * max(round(one["texts"] / most * room), int(one["texts"] > 0))
        label = f"{one['from']:,}-{one['to']:,}"
        console.print(f"{label:>13} {one['texts'] / all_texts:>6.1%}  {bar}".rstrip())
    console.print(
        f"{'':14}half have up to {lengths['median']:,}, 95% up to {lengths['percentile_95']:,}; "
        f"the longest seen {lengths['longest_seen']:,}"
    )


def _print_cuts(console: Any, plan: Mapping[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    given = plan["max_seq_lengths"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("max_seq_length", "longer texts", "tokens beyond it"):
        table.add_column(heading, justify="right")
    for cut in given:
        table.add_row(f"{cut['max_seq_length']:,}", _share(cut["longer"]), _share(cut["tokens_lost"]))
    console.print(table)


def _share(share: float) -> str:
    return "none" if not share else f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def _print_views(console: Any, plan: Mapping[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("view", "rows", "vectors", "files"):
        table.add_column(heading, justify="left" if heading == "view" else "right")
    for name, view in plan["views"].items():
        rows = about({"value": view["rows"], "margin": view["margin"]})
        table.add_row(name, rows, size_text(view["vector_bytes"]), size_text(view["bytes"]))
    console.print(table)


def _disk_lines(plan: Mapping[str, Any]) -> list[str]:
    size = sum(view["bytes"] for view in plan["views"].values())
    free = plan["free_bytes"]
    line = f"about {size_text(size)} in {count_noun(plan['blocks'], 'block')}, at most one file of each in a view"
    if free is not None:
        line += f"; {size_text(free)} free" + ("" if size < free else ": TOO LITTLE")
    return [line]


def _time_lines(plan: Mapping[str, Any]) -> list[str]:
    given = plan["time"]
    if given["burst"] is None:
        return ["nothing to encode"]
    parts = ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in given["parts"].items() if seconds >= 1)
    return [
        f"about {duration_text(given['seconds'])} here, with {count_noun(given['workers'], 'worker')} ({parts})",
        f"measured: {given['burst']['tokens']:,} tokens in {given['burst']['seconds']:.1f} s, written too: "
        f"{given['tokens_per_second']:,} a second; padding {given['padding']:.1%}",
    ]


def _dataflow(plan: Mapping[str, Any]) -> list[str]:
    given = plan["dataflow"]
    if given is None:
        return []
    line = f"about {duration_text(given['hours'] * 3600)} on {count_noun(given['machines'], 'machine')}"
    line += f" of {count_noun(given['vcpus'], 'vCPU')}"
    if given["cost"] is not None:
        line += f"; {given['cost']:,.2f} at {given['price_per_hour']:g} per machine and hour"
    lines = [line, "a rough guess: a vCPU as fast as a core here (often it is half), all busy to the end, no start-up"]
    if given["vcpus_at_work"] < given["machines"] * given["vcpus"]:
        blocks = count_noun(plan["blocks"], "block")
        lines.append(f"there is work for {count_noun(given['vcpus_at_work'], 'vCPU')} only: the run has {blocks}")
    return lines
