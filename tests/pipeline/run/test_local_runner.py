from __future__ import annotations

import time
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from layerbeam.pipeline.run.engines import local_runner


class _Slow:
    """An element that takes a while to serialize."""

    def __init__(self, number: int) -> None:
        self.number = number


class _SlowCoder(beam.coders.Coder):
    def encode(self, value: _Slow) -> bytes:
        time.sleep(0.03)
        return b"%04d" % value.number

    def decode(self, encoded: bytes) -> _Slow:
        return _Slow(int(encoded))

    def is_deterministic(self) -> bool:
        return True


@pytest.mark.parametrize("arguments", [[], ["--direct_running_mode=multi_threading"]])
def test_elements_of_slow_bundle_are_not_split(arguments):
    """By default Beam sends buffered data every second from another thread, even while an element is being written."""
    beam.coders.registry.register_coder(_Slow, _SlowCoder)
    local = local_runner(arguments, workers=2)

    def keyed(number: int) -> Any:
        return number % 2, _Slow(number)

    with beam.Pipeline(runner=local.runner, options=local.options) as pipeline:
        numbers = (
            pipeline
            | beam.Create(range(100))
            | beam.Map(keyed).with_output_types(tuple[int, _Slow])
            | beam.GroupByKey()
            | beam.FlatMap(lambda group: [slow.number for slow in group[1]])
        )
        assert_that(numbers, equal_to(list(range(100))))
