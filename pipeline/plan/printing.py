"""`layerbeam plan` as text, at a terminal or in a file."""

from __future__ import annotations

from typing import Any

from layerbeam.pipeline.console import count_noun, duration_text, plain_console, size_text
from layerbeam.pipeline.dataset.summary import input_text
from layerbeam.pipeline.dataset.view import shape_text
from layerbeam.pipeline.forecast.estimate import Statistic, changed_text, count_text
from layerbeam.pipeline.plan.plan import Duration, InputSummary, Lengths, Plan

_MAX_NAMED = 5
_BAR_WIDTH = 40


def print_plan(plan: Plan) -> None:
    """Print to standard output."""
    from rich.text import Text

    console = plain_console(soft_wrap=True)
    console.print(Text(f"{plan.path}: what a run will do", style="bold"))
    console.print_section("encoder", [f"{plan.encoder['handle']}: {shape_text(plan.encoder)}"])
    console.print_section("input", _input_lines(plan.input))
    if plan.kept["texts"]:
        texts, tokens = count_noun(plan.kept["texts"], "text"), count_noun(plan.kept["tokens"], "token")
        console.print_section("kept", [f"{texts} ({tokens})"])
    if plan.changed:
        console.print_section("copied", [changed_text(plan.changed)])
    console.print_section("texts", _text_lines(plan))
    console.print_section("rejects", _reject_lines(plan))
    _print_lengths(console, plan.lengths)
    truncations = [(f"{t.max_seq_length:,}", _percent(t.longer), _percent(t.tokens_lost)) for t in plan.max_seq_lengths]
    console.print_table(("max_seq_length", f"longer {plan.lengths.of}s", "tokens beyond it"), truncations, left=())
    views = [
        (name, about(Statistic(view.rows, view.margin)), size_text(view.vector_bytes), size_text(view.bytes))
        for name, view in plan.views.items()
    ]
    console.print_table(("view", "rows", "vectors", "files"), views, left=("view",))
    stay = [name for name in plan.views if name not in plan.new_views]
    if stay:
        console.print_section("added", [f"{', '.join(plan.new_views)}; the files of {', '.join(stay)} stay"])
    console.print_section("disk", [_disk_line(plan)])
    if plan.memory is not None:
        console.print_section("memory", [plan.memory.text])
    console.print_section("time", _time_lines(plan.time))
    console.print_section("Dataflow", _dataflow_lines(plan))
    console.print_section("problem", plan.problems)
    for hint in plan.hints:
        console.print_section("note", [hint])


def about(estimated: Statistic, noun: str = "") -> str:
    """
    >>> about(Statistic(12_345, 0), "text"), about(Statistic(1, 0), "text")
    ('12,345 texts', '1 text')
    >>> about(Statistic(2_000_000, 25_000)), about(Statistic(3, 4))
    ('about 2 M +- 1.2%', 'about 3 +- 4')
    """
    value, margin = estimated.value, estimated.margin
    text = f"{value:,}"
    if margin:
        text = (
            f"about {count_text(value)} +- {f'{100 * margin / value:.2g}%' if margin < value else count_text(margin)}"
        )
    return f"{text} {noun}{'' if value == 1 else 's'}" if noun else text


def _input_lines(given: InputSummary) -> list[str]:
    sample = given.sample
    lines = [input_text({"files": given.files, "bytes": given.bytes})]
    if given.files_to_do < given.files or given.bytes_to_do < given.bytes:
        lines[0] += f"; left to do: {input_text({'files': given.files_to_do, 'bytes': given.bytes_to_do})}"
    if sample.is_whole:
        lines.append("all of it was read: texts, tokens, rows and blocks are counted; bytes and time are estimates")
    else:
        slices, files = count_noun(sample.places, "slice"), count_noun(sample.files, "file")
        lines.append(f"from {slices} of {files}, {size_text(sample.text_bytes)}; +- is two standard errors over them")
    if sample.beginnings_only:
        lines.append("compressed and CSV files were read at the start only; +- does not cover what changes later")
    return lines


def _text_lines(plan: Plan) -> list[str]:
    totals = plan.estimates
    lines = [
        f"{about(totals['texts'])}, of {about(totals['records'], 'record')}",
        f"{about(totals['tokens'], 'token')} with a vector, without special tokens",
    ]
    lines += [f"{about(totals[name], f'{name} record')}" for name in ("blank", "filtered") if totals[name].value]
    if totals["dropped_tokens"].value:
        texts = about(totals["truncated_texts"], "text")
        lines.append(f"{about(totals['dropped_tokens'], 'token')} lost to max_seq_length, of {texts}")
    if plan.duplicates["texts"]:
        blocks = count_noun(int(plan.duplicates["blocks"]), "block")
        lines.append(
            f"{plan.duplicates['texts']:.1%} equal an earlier text of their block and are not encoded again "
            f"(measured on {blocks})"
        )
    return lines


def _reject_lines(plan: Plan) -> list[str]:
    if not plan.rejects_seen:
        return []
    reasons = list(plan.rejects_seen.items())[:_MAX_NAMED]
    return [
        about(plan.estimates["rejected"], "record"),
        *(f"{count_noun(count, 'time')} in the sample: {reason}" for reason, count in reasons),
        *(f"to fix {remedy}" for remedy in plan.remedies),
    ]


def _print_lengths(console: Any, lengths: Lengths) -> None:
    if not lengths.bins:
        return
    width = max(min(_BAR_WIDTH, console.width - 34), 8)
    most = max(one["texts"] for one in lengths.bins) or 1
    total = sum(one["texts"] for one in lengths.bins) or 1
    mark = "\u2588" if console.encoding.lower().startswith("utf") else "#"
    console.print(f"\ntokens of a {lengths.of}, with special tokens")
    for one in lengths.bins:
        bar = mark * max(round(one["texts"] / most * width), int(one["texts"] > 0))
        label = f"{one['from']:,}-{one['to']:,}"
        console.print(f"{label:>13} {one['texts'] / total:>6.1%}  {bar}".rstrip())
    console.print(
        f"{'':14}median {lengths.median:,}, 95th percentile {lengths.percentile_95:,}, "
        f"longest in the sample {lengths.longest_seen:,}"
    )


def _percent(fraction: float) -> str:
    return "none" if not fraction else f"{fraction:.1%}" if fraction >= 0.001 else "< 0.1%"


def _disk_line(plan: Plan) -> str:
    new = [plan.views[name] for name in plan.new_views]
    sums, free = sum(view.sums_bytes for view in new), plan.free_bytes
    size = sum(view.bytes for view in new) + sums
    if not plan.blocks:
        return "nothing to write"
    line = f"about {size_text(size)} in {count_noun(plan.blocks, 'block')}, at most one file per block and view"
    if sums:
        line += f"; {size_text(sums)} of it are the sums of word types that later runs add to"
    if free is not None:
        line += f"; {size_text(free)} free" + ("" if size < free else ": TOO LITTLE")
    return line


def _time_lines(duration: Duration) -> list[str]:
    if duration.burst is None:
        return ["nothing to encode"]
    parts = ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in duration.parts.items() if seconds >= 1)
    return [
        f"about {duration_text(duration.seconds)} here, with {count_noun(duration.workers, 'worker')} ({parts})",
        f"measured: {duration.burst['tokens']:,} tokens encoded in {duration.burst['seconds']:.1f} s, "
        f"{duration.tokens_per_second:,} per second; padding {duration.padding:.1%}",
    ]


def _dataflow_lines(plan: Plan) -> list[str]:
    there = plan.dataflow
    if there is None:
        return []
    line = f"about {duration_text(there.hours * 3600)} on {count_noun(there.machines, 'machine')}"
    line += f" of {count_noun(there.vcpus, 'vCPU')}"
    lines = [
        line,
        "a rough guess: a vCPU as fast as a core here (often half as fast), all busy to the end, no start-up",
    ]
    if there.vcpus_at_work < there.machines * there.vcpus:
        vcpus, blocks = count_noun(there.vcpus_at_work, "vCPU"), count_noun(plan.blocks, "block")
        smaller = "input.slice_bytes or output.target_part_bytes"
        lines.append(f"there is work for {vcpus} only: the run has {blocks}; a smaller {smaller} makes more")
    if plan.input.compressed and plan.input.compressed < there.machines * there.vcpus:
        files = count_noun(plan.input.compressed, "compressed file")
        lines.append(f"{files}: as many threads read, and all encode; more and smaller files are read by more")
    lines.append(f"to start with: --num_workers={there.start_with}, which gives each vCPU some tens of blocks")
    return lines
