"""`layerbeam.EmbedText` in other pipelines, in batch and in streaming windows."""

from __future__ import annotations

import re

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that
from apache_beam.transforms import window
from corpora import random_lines
from repository import DATA
from weights import vectors

import layerbeam
from layerbeam.pipeline.ptransform import EmbedText

VIEWS = {
    "tokens": {"level": "token", "layers": [-1, 0]},
    "words": {"level": "word", "layers": [2], "keep_words": ["the"]},
    "text": {"level": "text", "layers": [-1], "normalize": True},
    "pooled": {"level": "text", "pooling": "pooler"},
}


def test_the_vectors_equal_those_of_a_run(workplace):
    lines = [line for line in random_lines(300) if line]
    workplace.write("corpus/a.txt", "\n".join(lines))
    workplace.configure(views=VIEWS)
    workplace.run()
    rows = {name: workplace.rows(name) for name in VIEWS}
    columns = {"tokens": ["layer_3", "layer_0"], "words": ["layer_2"], "text": ["layer_3"], "pooled": ["pooled_output"]}
    expected = {(view, name): vectors(rows[view], name) for view in VIEWS for name in columns[view]}
    number = {name: np.array(table["line"].to_pylist()) for name, table in rows.items()}

    def check(given):
        assert sorted(key for key, _ in given) == list(range(len(lines)))
        for key, views in given:
            for (view, name), values in expected.items():
                np.testing.assert_allclose(views[view][name], values[number[view] == key], rtol=0, atol=1e-5)
            assert views["text"]["text"] == [lines[key]]
            assert views["tokens"]["token"][0] == "[CLS]"
            assert set(views["words"]["word"]) <= {"the"}

    transform = EmbedText(encoder=str(DATA / "hf_uncased"), views=VIEWS)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        embedded = pipeline | beam.Create(list(enumerate(lines))) | transform
        assert_that(embedded, check)


def test_streaming_windows():
    options = PipelineOptions([])
    options.view_as(StandardOptions).streaming = True
    stream = test_stream.TestStream()
    for start in (0, 60):
        stream.advance_watermark_to(start)
        stream.add_elements([window.TimestampedValue((f"k{start + n}", "a river"), start + n) for n in range(3)])
    stream.advance_watermark_to_infinity()

    def check(counts):
        assert sorted(counts) == [(0, 3), (60, 3)]

    transform = EmbedText(encoder=str(DATA / "hf_uncased"), views={"text": {"level": "text", "layers": [-1]}})
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        counts = (
            pipeline
            | stream
            | beam.WindowInto(window.FixedWindows(60))
            | transform
            | beam.Map(lambda pair: ("all", pair[1]["text"]["layer_3"].shape == (1, 64)))
            | beam.GroupByKey()
            | beam.Map(lambda pair, w=beam.DoFn.WindowParam: (int(w.start), sum(pair[1])))
        )
        assert_that(counts, check)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": {}}, "views: is empty; at least one is needed"),
        ({"views": [{"level": "text"}]}, "EmbedText: views: should be a valid dictionary; given: [{'level': 'text'}]"),
        (
            {"views": {"t": {"level": "text", "layers": [9]}}},
            "there is no layer 9: the encoder has 6 ",
        ),
        (
            {"views": {"t": {"level": "word_type", "layers": [1]}}},
            "word_type is for runs over files only",
        ),
        ({"encoder": "nowhere", "views": VIEWS}, "encoder.handle: nowhere: there is no such folder"),
        ({"encoder": {"long_text": "reject"}, "views": VIEWS}, "reject is for runs over files; filter texts before"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        EmbedText(**settings)


def test_it_is_in_the_public_face():
    assert layerbeam.EmbedText is EmbedText
    with pytest.raises(AttributeError, match="has no attribute 'EmbedTexts'"):
        _ = layerbeam.EmbedTexts


@pytest.mark.parametrize("element", [(1, 7), "ab", ("k", "a", "b")])
def test_elements_that_are_not_pairs(element):
    transform = EmbedText(encoder=str(DATA / "hf_uncased"), views={"t": {"level": "text", "layers": [1]}})
    pipeline = beam.Pipeline(FnApiRunner())
    _ = pipeline | beam.Create([element]) | transform
    with pytest.raises(Exception, match=r"EmbedText: elements are \(key, text\), text a string; this one is"):
        pipeline.run()
