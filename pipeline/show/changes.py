"""What came, went and moved in an output folder, printed: for `show --changes`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from layerbeam.pipeline.console import plain_console
from layerbeam.pipeline.output.changes import Change, Changes

_PRINTED = 20


def print_changes(changes: Changes, folder: str | None = None) -> None:
    """Print how many lines came, went and moved, and which: the first of them. `folder`: of several."""
    lines, shown, left = Counter[str](), list[Change](), 0
    for change in _joined(changes.of()):
        lines[change.kind] += change.num_lines
        if len(shown) < _PRINTED:
            shown.append(change)
        else:
            left += 1
    totals = ", ".join(f"{lines[kind]:,} {kind}" for kind in ("came", "went", "moved") if lines[kind])
    console = plain_console(soft_wrap=True)
    until, since = (str(position).partition("-")[0] for position in (changes.until, changes.since))
    console.print(
        f"{f'{folder}: ' if folder else ''}run {until} since run {since}: "
        f"{f'lines: {totals}' if totals else 'no row changed'}"
    )
    for change in shown:
        console.print(f"{change.kind:6}  {_describe(change)}  ({', '.join(change.views)})")
    if left:
        console.print(f"and {left:,} more: --json prints all")


def print_changes_json(changes: Changes, folder: str | None = None) -> None:
    """Print one JSON object for each change. `folder`: of several."""
    for change in changes.of():
        print(json.dumps(({} if folder is None else {"folder": folder}) | change.to_json()))


def _joined(changes: Iterable[Change]) -> Iterator[Change]:
    """The changes, adjacent ones of a kind as one."""
    last: Change | None = None
    for change in changes:
        if last is not None and _follows(last, change):
            last = last._replace(num_lines=last.num_lines + change.num_lines)
            continue
        if last is not None:
            yield last
        last = change
    if last is not None:
        yield last


def _follows(last: Change, change: Change) -> bool:
    ends = (None if place is None else place._replace(line=place.line + last.num_lines) for place in last[:2])
    return (*ends, last.views) == (change.old, change.new, change.views)


def _describe(change: Change) -> str:
    places = (place for place in (change.old, change.new) if place is not None)
    to = change.num_lines - 1
    return " -> ".join(f"{file}: {line}{f' to {line + to}' if to else ''}" for file, line in places)
