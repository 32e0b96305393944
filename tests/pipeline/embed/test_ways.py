"""One corpus through all ways to embed in a Beam pipeline and through `layerbeam run`: the same vectors."""

from __future__ import annotations

import apache_beam as beam
import numpy as np
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from corpora import random_lines
from embed_ways import VIEW, all_ways
from float_bounds import OF_TWO
from repository import DATA
from weights import vectors


def test_all_ways_give_the_vectors_of_a_run(workplace, tmp_path):
    lines = [line for line in random_lines(60) if line.strip()]
    workplace.finished("\n".join(lines), views={"v": VIEW})
    expected = vectors(workplace.rows("v"), "layer_3")

    def check(name):
        def compare(found):
            numbers, given = zip(*sorted(found), strict=True)
            assert numbers == tuple(range(len(lines)))
            difference = float(np.abs(np.array(given) - expected).max())
            print(f"{name}: at most {difference:.1e} off the run's vectors; allowed {OF_TWO}")
            assert difference <= OF_TWO, name

        return compare

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        pairs = pipeline | beam.Create(list(enumerate(lines))) | beam.Reshuffle()
        for name, found in all_ways(pairs, str(DATA / "hf_uncased"), str(tmp_path)).items():
            assert_that(found, check(name), label=f"check {name}")
