"""A stage of a pipeline: a function that each worker process makes once, and its Beam DoFn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam

from layerbeam.transforms.flow.commits import InputFile

SKIPPED = "skipped"


class StageFn(beam.DoFn):
    """Calls in each worker what `start` gives: a function from an element to the stage's results.

    `start`: called once per worker; sent to it by pickling. An `InputFile`, whose problem keeps it from being read,
    goes to the output `skipped`, if there is one.
    """

    def __init__(self, start: Callable[[], Callable[[Any], Iterator[Any]]], *, skips: bool = False) -> None:
        self._start = start
        self._skips = skips

    def setup(self) -> None:
        self._work = self._start()

    def process(self, element: Any) -> Iterator[Any]:
        for item in self._work(element):
            yield beam.pvalue.TaggedOutput(SKIPPED, item) if self._skips and isinstance(item, InputFile) else item
