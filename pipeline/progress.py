"""The progress of a run or a check: a bar at a terminal; elsewhere a line after ten seconds, then every half minute.

Beam's metrics come at the end only. So progress comes from the commits of this run, which worker processes also write,
and from the tokens that this process has encoded. The total is the estimate that the run prints at its start.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from layerbeam.pipeline.console import count_noun, duration_text, hides_status, plain_console
from layerbeam.transforms import storage
from layerbeam.transforms.encode.forward import TOKENS_ENCODED
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.layout import COMMITS

POLL_INTERVAL_SECONDS = 0.5
LOG_INTERVAL_SECONDS = 30.0
FIRST_LOG_SECONDS = 10.0
_RATE_SECONDS = 30.0
# Commits of a job are counted at most so often, and listing them takes at most this share of the time.
_JOB_POLL_SECONDS, _LISTING_SHARE = 10.0, 0.05
# Commits that are read for an estimate.
_SAMPLE = 8
# A job that has committed nothing for so long gets a hint.
_SILENT_SECONDS = 300.0


@dataclasses.dataclass
class Progress:
    """What a run has done since it started. `total_tokens`: estimated, with special tokens."""

    output_path: str
    total_tokens: float
    texts: int = 0
    rejected: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self._folder = storage.join(self.output_path, COMMITS)
        self._known = self._list_commits()
        self._committed_tokens = 0
        self._encoded_before = TOKENS_ENCODED.value
        self._history: collections.deque[tuple[float, int]] = collections.deque([(time.monotonic(), 0)])

    def update(self, now: float | None = None) -> None:
        """Read the new commits. `now`: seconds, for tests."""
        for name in sorted(self._list_commits() - self._known):
            counts = _counts_in(storage.join(self._folder, name))
            if counts is None:
                continue  # it is still being written
            self._known.add(name)
            texts = metrics.embedded_texts(counts)
            self.texts += texts
            self.rejected += counts.get(metrics.OF_SENTENCES[metrics.REJECTED], 0) or counts.get(metrics.REJECTED, 0)
            self._committed_tokens += counts.get(metrics.TOKENS, 0) + 2 * texts
        # Equal texts are encoded once, so the commits may be ahead of the encoder.
        self.tokens = max(self.tokens, self._committed_tokens, TOKENS_ENCODED.value - self._encoded_before)
        now = time.monotonic() if now is None else now
        self._history.append((now, self.tokens))
        while len(self._history) > 2 and now - self._history[1][0] >= _RATE_SECONDS:
            self._history.popleft()

    @property
    def fraction(self) -> float:
        """From 0 to 1, also if the estimate was too low."""
        return min(self.tokens / self.total_tokens, 1.0) if self.total_tokens > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """The mean of the last half minute."""
        (first, before), (last, now) = self._history[0], self._history[-1]
        return (now - before) / (last - first) if last > first else 0.0

    @property
    def seconds_left(self) -> float | None:
        """None while the rate is unknown."""
        rate = self.tokens_per_second
        return max(self.total_tokens - self.tokens, 0.0) / rate if rate else None

    def describe(self) -> str:
        """`9,500 tokens/s, 31,102 texts in finished blocks, 3 rejected, 2 min left`."""
        if not self.tokens and not self.rejected:
            return "starting"
        facts = [f"{self.tokens_per_second:,.0f} tokens/s"]
        if self.texts:
            facts.append(f"{count_noun(self.texts, 'text')} in finished blocks")
        if self.rejected:
            facts.append(f"{self.rejected:,} rejected")
        if self.seconds_left is not None:
            facts.append(f"{duration_text(self.seconds_left)} left" if self.fraction < 1 else "nearly done")
        return ", ".join(facts)

    def _list_commits(self) -> set[str]:
        # Listing a store twice a second is too expensive: there only this process's tokens count.
        with contextlib.suppress(OSError):
            return set(filter(_is_commit, os.listdir(self._folder))) if storage.is_local(self._folder) else set()
        return set()


def _is_commit(name: str) -> bool:
    """Whether a file is the commit of one block: at the end of a run there are others, which hold many."""
    return name.endswith(".json")


def _counts_in(path: str) -> dict[str, int] | None:
    """What a commit counts in all of its files; None if it is not whole yet."""
    files = (storage.read_json(path) or {}).get("files")
    return None if files is None else metrics.total(file.get("counts", {}) for file in files)


@dataclasses.dataclass
class JobProgress:
    """What a job on another runner has done, by its commits. Nobody has estimated the whole, so there is no fraction.

    `result`: Beam's, which knows the state. `blocks`: commits in the folder. `texts`: estimated from some of them.
    """

    output_path: str
    result: Any
    state: str = ""
    blocks: int = 0
    texts: int = 0
    fraction: None = None
    _next: float = 0.0
    _began: float = dataclasses.field(default_factory=time.monotonic)

    def update(self) -> None:
        """Count the commits; not often where listing them takes long."""
        began = time.monotonic()
        if began < self._next:
            return
        with contextlib.suppress(Exception):  # the job server may be restarting
            self.state = str(self.result.state).lower()
        folder, sample = storage.join(self.output_path, COMMITS), list[str]()
        blocks = 0
        for blocks, name in enumerate(filter(_is_commit, storage.file_names(folder)), start=1):
            if len(sample) < _SAMPLE:
                sample.append(name)
            elif random.random() * blocks < _SAMPLE:  # noqa: S311
                sample[random.randrange(_SAMPLE)] = name  # noqa: S311
        if blocks >= self.blocks:  # the end of the job deletes them
            counts = (_counts_in(storage.join(folder, name)) or {} for name in sample)
            texts = [metrics.embedded_texts(of_block) for of_block in counts]
            self.blocks, self.texts = blocks, round(blocks * sum(texts) / len(texts)) if texts else 0
        now = time.monotonic()
        self._next = now + max(_JOB_POLL_SECONDS, (now - began) / _LISTING_SHARE)

    def describe(self) -> str:
        """`running, 138 blocks committed, about 2,970 texts`."""
        facts = [self.state] if self.state else []
        facts.append(f"{count_noun(self.blocks, 'block')} committed")
        if self.blocks:
            facts.append(f"about {count_noun(self.texts, 'text')}")
        elif time.monotonic() - self._began > _SILENT_SECONDS:
            facts.append("do the workers start? (docs/runners.md#when-nothing-is-committed)")
        return ", ".join(facts)


@dataclasses.dataclass
class Steps:
    """A number of equal steps, if it is known; whoever does them counts them in `done`."""

    noun: str
    total: int | None
    done: int = 0

    def update(self) -> None:
        """Nothing has to be read."""

    @property
    def fraction(self) -> float | None:
        return None if self.total is None else self.done / self.total if self.total else 0.0

    def describe(self) -> str:
        """`3 of 8 texts`, or `3 texts`."""
        done = count_noun(self.done, self.noun)
        return done if self.total is None else f"{self.done:,} of {count_noun(self.total, self.noun)}"


@contextlib.contextmanager
def show_progress(progress: Progress | JobProgress | Steps, *, stream: TextIO, plain: bool = False) -> Iterator[None]:
    """Show progress while this is entered: a bar if the stream is a terminal and not `plain`, else lines.

    Nothing where status messages are hidden.
    """
    if hides_status():
        yield
        return
    ended = threading.Event()
    bar = None if plain or not stream.isatty() else _make_bar(stream)
    thread = threading.Thread(target=_keep_showing, args=(progress, stream, bar, ended), name="progress", daemon=True)
    with bar or contextlib.nullcontext():
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _keep_showing(progress: Progress | JobProgress | Steps, stream: TextIO, bar: Any, ended: threading.Event) -> None:
    total = None if progress.fraction is None else 1.0
    task = bar.add_task("", total=total, status="") if bar is not None else None
    logged = time.monotonic() - max(LOG_INTERVAL_SECONDS - FIRST_LOG_SECONDS, 0.0)
    while not ended.wait(POLL_INTERVAL_SECONDS):
        with contextlib.suppress(OSError):  # the folder cannot be read now
            progress.update()
        if bar is not None:
            bar.update(task, completed=progress.fraction or 0.0, status=progress.describe())
        elif time.monotonic() - logged >= LOG_INTERVAL_SECONDS:
            logged = time.monotonic()
            with contextlib.suppress(OSError, ValueError):  # the stream's reader may have exited
                share = "" if progress.fraction is None else f"{progress.fraction:.0%}: "
                print(f"{time.strftime('%H:%M:%S')} {share}{progress.describe()}", file=stream, flush=True)


def _make_bar(stream: TextIO) -> Any:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.fields[status]}"))
    return Bar(
        *columns, console=plain_console(file=stream), transient=True, redirect_stdout=False, redirect_stderr=False
    )
