"""Signs of life of a job, from its workers: the transform `KeepAlive`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.output.heartbeat import Holder


@dataclasses.dataclass
class KeepAlive(beam.PTransform):
    """The same elements. A worker process beats as long as it has the stage into which this transform is fused.

    `path`: the file that it writes.
    """

    path: str

    def expand(self, elements: Any) -> Any:
        return elements | beam.ParDo(_KeepAlive(self.path)).with_output_types(elements.element_type)


def keep_alive(elements: Any, stage: str, path: str | None, hints: Mapping[str, str] | None = None) -> Any:
    """The same elements, in a stage whose workers give signs of life; without a path nothing is added.

    `hints`: the resource hints of the stage.
    """
    if path is None:
        return elements
    return elements | f"alive in {stage}" >> KeepAlive(path).with_resource_hints(**(hints or {}))


class _KeepAlive(beam.DoFn):
    def __init__(self, path: str) -> None:
        self._path = path

    def setup(self) -> None:
        self._holder = Holder(self._path)

    def process(self, element: Any) -> Iterator[Any]:
        yield element

    def teardown(self) -> None:
        self._holder.let_go()
