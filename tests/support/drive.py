"""A run in one thread, without a pipeline: the functions of the product's stages, called one after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from apache_beam.metrics.execution import MetricResult, MetricsContainer
from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.run import engines
from layerbeam.pipeline.run.build import make_stages
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.views.view import needed_layers, needs_pooler


def drive(job: Job, run_number: int, load_encoder: Callable[[], Any] | None = None) -> Any:
    """Do what the work list of an attempt says; returns metrics as Beam's result does."""
    stages = make_stages(job, run_number=run_number, num_threads=1)
    if load_encoder is not None:
        stages = dataclasses.replace(stages, encode=dataclasses.replace(stages.encode, encoder=load_encoder))
    problems: list[InputFile] = []

    def usable(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            if isinstance(item, InputFile):
                problems.append(item)
            else:
                yield item

    with _counting() as result:
        find, slice_, read, tokenize, encode, write, finish = (
            getattr(stages, field.name).start() for field in dataclasses.fields(stages)
        )
        for file in find():
            for piece in usable(slice_(file)):
                for texts in usable(read(piece)):
                    for tokens in tokenize(texts):
                        for vectors in encode(tokens):
                            list(usable(write(vectors)))
        list(finish(problems))
    return result


@dataclasses.dataclass(frozen=True)
class Driver(engines.LocalRunner):
    """Stands for the local runner of `layerbeam run`. `arithmetic`: instead of forward passes."""

    arithmetic: bool = False

    def load(self, job: Job) -> None:
        job.load_tensorflow(1)

    def execute(self, job: Job, run_number: int, *, spread: bool) -> Any:
        return drive(job, run_number, (lambda: Arithmetic(job)) if self.arithmetic else None)


@contextlib.contextmanager
def driving(*, arithmetic: bool = False) -> Iterator[None]:
    """Within the block, `layerbeam run` drives."""

    def choose(arguments: list[str], *_: Any, **__: Any) -> Driver:
        local = engines.local_runner(arguments)
        return Driver(local.options, local.runner, 1, arithmetic=arithmetic)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "choose_runner", choose)
        yield


class Arithmetic:
    """An encoder without TensorFlow: the vector of a token is a function of its id, place, segment and layer."""

    dense_modules: dict[Any, Any] = {}  # noqa: RUF012 - as in Encoder

    def __init__(self, job: Job) -> None:
        self.pad_id = job.encoder.special.pad
        self._layers = needed_layers(job.views)
        self._has_pooler = needs_pooler(job.views)
        self._columns = np.arange(1, job.encoder.hidden_size + 1, dtype=np.float32)

    def __call__(self, token_ids: Any, lengths: Any, segment_ids: Any) -> Any:
        places = np.arange(token_ids.shape[1])
        values = ((token_ids * 31 + places * 7 + segment_ids) % 1009).astype(np.float32)
        real = values[places < lengths[:, None]]
        layers = {layer: (real[:, None] + layer) / self._columns for layer in self._layers}
        return layers, (values[:, :1] - 1) / self._columns if self._has_pooler else None


@contextlib.contextmanager
def _counting() -> Iterator[Any]:
    """Beam's metrics of this thread, as its results give them; complete at the end."""
    container = MetricsContainer("drive")
    sampler = statesampler.StateSampler("drive", CounterFactory())
    before = statesampler.get_current_tracker()
    found: dict[str, list[MetricResult]] = {}
    statesampler.set_current_tracker(sampler)
    try:
        with sampler.scoped_state("drive", "process", metrics_container=container):
            yield types.SimpleNamespace(metrics=lambda: types.SimpleNamespace(query=lambda: found))
    finally:
        statesampler.set_current_tracker(before)
    values = container.get_cumulative()
    for kind in ("counters", "distributions"):
        found[kind] = [MetricResult(key, value, value) for key, value in getattr(values, kind).items()]
