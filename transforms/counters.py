"""Beam metrics: counts, times and the time of day, under the names of `metrics`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, cast

import apache_beam as beam

from layerbeam.transforms.metrics import NAMESPACE

Item = TypeVar("Item")
_END = object()


def count(name: str, amount: int) -> None:
    """Add to a Beam counter. Call it inside a bundle only: Beam loses what `setup` counts."""
    beam.metrics.Metrics.counter(NAMESPACE, name).inc(amount)


def count_all(counts: Mapping[str, int]) -> None:
    """Add these amounts to Beam counters."""
    for name, amount in counts.items():
        count(name, amount)


def count_changes(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Add to Beam counters what a stage changed in the counts of a block."""
    count_all({name: amount - before.get(name, 0) for name, amount in after.items()})


def note_time(name: str) -> None:
    """Add the time of day to a Beam distribution, in milliseconds."""
    beam.metrics.Metrics.distribution(NAMESPACE, name).update(round(time.time() * 1000))


def count_time(name: str, seconds: float) -> None:
    """Add a duration to a Beam counter of microseconds."""
    count(name, round(seconds * 1e6))


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """Add the duration of the `with` block to a Beam counter of microseconds."""
    started = time.perf_counter()
    yield
    count_time(name, time.perf_counter() - started)


def timed_items(name: str, items: Iterable[Item]) -> Iterator[Item]:
    """Passes the items on; adds the time to produce them, not the time between, to a counter."""
    iterator = iter(items)
    while True:
        started = time.perf_counter()
        item = next(iterator, _END)
        count_time(name, time.perf_counter() - started)
        if item is _END:
            return
        yield cast(Item, item)
