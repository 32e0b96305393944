"""How far a local run is: a bar at a terminal, a line every half minute elsewhere.

Told by two sources, as Beam's metrics come at the end only: the commits of this start, which also worker processes
write, and the tokens that this process has encoded meanwhile. The total is the estimate that the run announces.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from layerbeam.pipeline.cli.console import count_noun, duration_text, plain_console
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.layout import COMMITS

_POLL_INTERVAL_SECONDS = 0.5
_LOG_INTERVAL_SECONDS = 30.0
_RATE_SECONDS = 30.0  # the rate is of the last half minute


@dataclasses.dataclass
class Progress:
    """What is done of a run since it started. `total_tokens`: [CLS] and [SEP] included, as estimated."""

    output_path: str
    total_tokens: float
    texts: int = 0
    rejected: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self._folder = storage.join(self.output_path, COMMITS)
        self._known = self._commits()
        self._committed = 0
        self._before = metrics.encoded_here()
        self._seen: collections.deque[tuple[float, int]] = collections.deque([(time.monotonic(), 0)])

    def look(self, now: float | None = None) -> None:
        """Find out how far it is. `now`: seconds, for tests."""
        for name in sorted(self._commits() - self._known):
            counts = self._counts(name)
            if counts is None:
                continue  # it is being written: the next look
            self._known.add(name)
            texts = metrics.embedded_texts(counts)
            self.texts += texts
            self.rejected += counts.get(metrics.SENTENCES_REJECTED, 0) or counts.get(metrics.REJECTED, 0)
            self._committed += counts.get(metrics.TOKENS, 0) + 2 * texts
        # Equal texts are encoded once, so the commits may be ahead of what was encoded.
        self.tokens = max(self.tokens, self._committed, metrics.encoded_here() - self._before)
        now = time.monotonic() if now is None else now
        self._seen.append((now, self.tokens))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()

    @property
    def share(self) -> float:
        """From 0 to 1; an estimate that was too low is never passed."""
        return min(self.tokens / self.total_tokens, 1.0) if self.total_tokens > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of the last half minute."""
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        return (now - before) / (last - first) if last > first else 0.0

    @property
    def seconds_left(self) -> float | None:
        """None while nothing is known."""
        rate = self.tokens_per_second
        return max(self.total_tokens - self.tokens, 0.0) / rate if rate else None

    def _commits(self) -> set[str]:
        # A store is not listed twice a second: there only this process's own work is seen.
        if not storage.is_local(self._folder):
            return set()
        with contextlib.suppress(OSError):
            return set(os.listdir(self._folder))
        return set()

    def _counts(self, name: str) -> dict[str, int] | None:
        try:
            with open(os.path.join(self._folder, name), "rb") as file:
                counts: dict[str, int] = json.load(file)["counts"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return counts


@contextlib.contextmanager
def shown(progress: Progress, *, stream: TextIO | None = None, plain: bool = False) -> Iterator[None]:
    """Show it while this is entered: as a bar where the stream is a terminal, unless `plain`; else as lines."""
    stream = sys.stderr if stream is None else stream
    ended = threading.Event()
    bar = None if plain or not stream.isatty() else _bar(stream)
    thread = threading.Thread(target=_keep_showing, args=(progress, stream, bar, ended), name="progress", daemon=True)
    with bar or contextlib.nullcontext():
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _keep_showing(progress: Progress, stream: TextIO, bar: Any, ended: threading.Event) -> None:
    task = bar.add_task("", total=1.0, said="") if bar is not None else None
    said = time.monotonic()
    while not ended.wait(_POLL_INTERVAL_SECONDS):
        progress.look()
        if bar is not None:
            bar.update(task, completed=progress.share, said=describe(progress))
        elif time.monotonic() - said >= _LOG_INTERVAL_SECONDS:
            said = time.monotonic()
            with contextlib.suppress(OSError, ValueError):  # whoever reads it may have gone
                print(f"{progress.share:.0%}: {describe(progress)}", file=stream, flush=True)


def _bar(stream: TextIO) -> Any:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.fields[said]}"))
    return Bar(
        *columns, console=plain_console(file=stream), transient=True, redirect_stdout=False, redirect_stderr=False
    )


def describe(progress: Progress) -> str:
    """`31,102 texts, 9,500 tokens/s, 3 rejected, 2 min left`: what is known of it."""
    said = [count_noun(progress.texts, "text"), f"{progress.tokens_per_second:,.0f} tokens/s"]
    if progress.rejected:
        said.append(f"{progress.rejected:,} rejected")
    left = progress.seconds_left
    if left is not None:
        said.append(f"{duration_text(left)} left" if progress.share < 1 else "nearly done")
    return ", ".join(said)
