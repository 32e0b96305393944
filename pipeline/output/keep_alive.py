"""Signs of life of a job, from its workers: the transform `KeepAlive`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.output.attempts import newer_attempt
from layerbeam.pipeline.output.heartbeat import Holder
from layerbeam.pipeline.output.run_log import RunLog
from layerbeam.transforms import layout, storage


@dataclasses.dataclass
class KeepAlive(beam.PTransform):
    """The same elements. A worker process beats as long as it has the stage into which this transform is fused.

    Once the process knows that a newer attempt is active in the folder, the elements end here: the rest is left to
    that one, and the job ends without an error.

    `attempt`: the number of the run.
    """

    output_path: str
    attempt: int

    def expand(self, elements: Any) -> Any:
        return elements | beam.ParDo(_KeepAlive(self)).with_output_types(elements.element_type)


def keep_alive(elements: Any, stage: str, alive: KeepAlive | None, hints: Mapping[str, str] | None = None) -> Any:
    """The same elements, in a stage whose workers write heartbeats; None: in a stage without.

    `hints`: the resource hints of the stage.
    """
    if alive is None:
        return elements
    return elements | f"alive in {stage}" >> dataclasses.replace(alive).with_resource_hints(**(hints or {}))


class _KeepAlive(beam.DoFn):
    def __init__(self, stage: KeepAlive) -> None:
        self._output_path, self._attempt = stage.output_path, stage.attempt

    def setup(self) -> None:
        path = storage.join(self._output_path, layout.alive_path(self._attempt))
        # Not a method of this object, which is to be garbage-collected although the thread of the beats runs.
        self._holder = Holder(path, functools.partial(_is_superseded, self._output_path, self._attempt))

    def process(self, element: Any) -> Iterator[Any]:
        if not self._holder.is_over:
            yield element

    def teardown(self) -> None:
        self._holder.let_go()


def _is_superseded(output_path: str, attempt: int) -> bool:
    if newer_attempt(output_path, attempt) is None:
        return False
    RunLog.end_unattended(output_path, attempt, "superseded")
    return True
