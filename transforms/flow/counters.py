"""Beam metrics: counts, times and the time of day, under the names of `metrics`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import apache_beam as beam
import numpy as np

from layerbeam.transforms.flow.metrics import NAMESPACE, STAGES

Item = TypeVar("Item")


def count(name: str, amount: int) -> None:
    """Add to a Beam counter. Call it inside a bundle only: Beam loses what `setup` counts."""
    beam.metrics.Metrics.counter(NAMESPACE, name).inc(amount)


def count_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Add to Beam counters what a stage changed in the counts of a block: arrays, with a number for each file."""
    for name, amounts in after.items():
        count(name, int(np.sum(amounts - before.get(name, 0))))


def note_time(name: str) -> None:
    """Add the time of day to a Beam distribution, in milliseconds."""
    beam.metrics.Metrics.distribution(NAMESPACE, name).update(round(time.time() * 1000))


def count_time(stage: str, seconds: float) -> None:
    """Add a duration to the Beam counter of a stage."""
    count(STAGES[stage], round(seconds * 1e6))


@contextlib.contextmanager
def timed(stage: str) -> Iterator[None]:
    """Add the duration of the `with` block to the Beam counter of a stage."""
    started = time.perf_counter()
    yield
    count_time(stage, time.perf_counter() - started)


def timed_items(stage: str, items: Iterable[Item]) -> Iterator[Item]:
    """Passes the items on, none of which is None; adds the time to produce them, not the time between, to a counter."""
    iterator = iter(items)
    while True:
        with timed(stage):
            item = next(iterator, None)
        if item is None:
            return
        yield item
