"""`layerbeam.EmbedText` in other pipelines, in batch and in streaming windows."""

from __future__ import annotations

import re
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct import clock, direct_runner
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that
from apache_beam.transforms import trigger, window
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints.decorators import TypeCheckError
from apache_beam.utils.timestamp import Duration
from corpora import random_lines
from float_bounds import OF_TWO
from repository import DATA
from weights import vectors

import layerbeam
from layerbeam.pipeline.embed import embed, embed_text
from layerbeam.pipeline.embed.embed_text import EmbedText
from layerbeam.transforms.encoders.network import Network

SMALL = str(DATA / "hf_uncased")
TEXT = {"t": {"level": "text", "layers": [-1]}}
POISON = "the river bank of the river bank of the river"
POISON_TOKENS = 12
VIEWS = {
    "tokens": {"level": "token", "layers": [-1, 0]},
    "words": {"level": "word", "layers": [2], "keep_words": ["the"]},
    "text": {"level": "text", "layers": [-1], "normalize": True},
    "pooled": {"level": "text", "pooling": "pooler"},
    "lists": {"level": "text", "layers": [-1], "pooling": "none"},
}


def test_the_vectors_equal_those_of_a_run(workplace):
    lines = [line for line in random_lines(60) if line]
    workplace.finished("\n".join(lines), views=VIEWS)
    rows = {name: workplace.rows(name) for name in VIEWS if name != "lists"}
    columns = {"tokens": ["layer_3", "layer_0"], "words": ["layer_2"], "text": ["layer_3"], "pooled": ["pooled_output"]}
    expected = {(view, name): vectors(rows[view], name) for view in rows for name in columns[view]}
    number = {name: np.array(table["line"].to_pylist()) for name, table in rows.items()}

    def check(given):
        assert sorted(key for key, _ in given) == list(range(len(lines)))
        for key, views in given:
            for (view, name), values in expected.items():
                np.testing.assert_allclose(views[view][name], values[number[view] == key], rtol=0, atol=OF_TWO)
            np.testing.assert_array_equal(views["lists"]["layer_3"], views["tokens"]["layer_3"])
            assert views["text"]["text"] == views["lists"]["text"] == [lines[key]]
            assert views["tokens"]["token"][0] == "[CLS]"
            assert set(views["words"]["word"]) <= {"the"}

    transform = EmbedText(encoder=SMALL, views=VIEWS)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        embedded = pipeline | beam.Create(list(enumerate(lines))) | transform
        assert_that(embedded, check)


def streaming_pipeline():
    options = PipelineOptions([])
    options.view_as(StandardOptions).streaming = True
    return beam.Pipeline(runner=BundleBasedDirectRunner(), options=options)


def test_streaming_windows():
    stream = test_stream.TestStream()
    for start in (0, 60):
        stream.advance_watermark_to(start)
        stream.add_elements([TimestampedValue((f"k{start + n}", "a river"), start + n) for n in range(3)])
    stream.advance_watermark_to_infinity()

    def check(counts):
        assert sorted(counts) == [(0, 3), (60, 3)]

    with streaming_pipeline() as pipeline:
        counts = (
            pipeline
            | stream
            | beam.WindowInto(window.FixedWindows(60))
            | EmbedText(encoder=SMALL, views=TEXT)
            | beam.Map(lambda pair: ("all", pair[1]["t"]["layer_3"].shape == (1, 64)))
            | beam.GroupByKey()
            | beam.Map(lambda pair, w=beam.DoFn.WindowParam: (int(w.start), sum(pair[1])))
        )
        assert_that(counts, check)


@pytest.fixture
def batches(monkeypatch):
    """(processing time, keys) of each batch; the stream's clock counts."""
    clocks, found = [], []

    class Clock(clock.TestClock):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            clocks.append(self)

    def record(self, waiting):
        found.append((clocks[-1].time(), [key for (key, _), *_ in waiting]))
        yield from embed_batch(self, waiting)

    embed_batch = embed._Embedding._embed
    monkeypatch.setattr(direct_runner, "TestClock", Clock)
    monkeypatch.setattr(embed, "now", lambda: clocks[-1].time())
    monkeypatch.setattr(embed._Embedding, "_embed", record)
    monkeypatch.setattr(embed_text, "tokens_at_once", lambda job: 100)
    return found


def test_streaming_batches_across_bundles(batches):
    """A trickle of one text per second, a burst of 30 texts of 11 estimated tokens, and late texts."""
    stream = test_stream.TestStream().advance_watermark_to(0)
    for number in range(6):
        stream.add_elements([TimestampedValue((f"slow{number}", "a river"), number)]).advance_processing_time(1)
    burst = [TimestampedValue((f"burst{number}", "a river bank" * 3), 6) for number in range(30)]
    stream.add_elements(burst).advance_processing_time(5)
    stream.add_elements([TimestampedValue(("poison", None), 7), TimestampedValue(("next to it", "a river"), 7)])
    stream.advance_processing_time(3).advance_watermark_to(60)
    stream.add_elements([TimestampedValue(("late", "late text"), 3)]).advance_watermark_to_infinity()

    expected = [(f"slow{number}", number, 0) for number in range(6)]
    expected += [(f"burst{number}", 6, 0) for number in range(30)] + [("next to it", 7, 0), ("late", 3, 0)]

    def check_good(found):
        assert sorted(found) == sorted(expected)

    def check_bad(found):
        assert found == [("poison", 7, 0)]

    def place(element, timestamp=beam.DoFn.TimestampParam, window=beam.DoFn.WindowParam):
        return element[0], int(timestamp), int(window.start)

    windows = beam.WindowInto(
        window.FixedWindows(60),
        allowed_lateness=Duration(600),
        trigger=trigger.AfterWatermark(late=trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
    )
    embed_texts = EmbedText(encoder=SMALL, views=TEXT, max_delay_seconds=3).with_exception_handling()
    with streaming_pipeline() as pipeline:
        good, bad = pipeline | stream | windows | embed_texts
        assert_that(good | "good places" >> beam.Map(place), check_good, label="good")
        assert_that(bad | "bad places" >> beam.Map(place), check_bad, label="bad")
    assert batches == [
        (3, ["slow0", "slow1", "slow2"]),
        (6, ["slow3", "slow4", "slow5"]),
        *((6, [f"burst{number}" for number in range(first, first + 10)]) for first in (0, 10, 20)),
        (11 + 3, ["poison", "next to it"]),
        (14, ["late"]),
    ]


@pytest.mark.parametrize("max_delay", [None, 3])
def test_panes_are_kept(batches, max_delay):
    stream = test_stream.TestStream().advance_watermark_to(0)
    for number in range(3):
        stream.add_elements([TimestampedValue(("k", f"text {number}"), number)]).advance_processing_time(1)
    each = beam.WindowInto(
        window.FixedWindows(60),
        trigger=trigger.Repeatedly(trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
    )

    def check(found):
        assert sorted(found) == [("text 0", 0), ("text 1", 1), ("text 2", 2)]

    with streaming_pipeline() as pipeline:
        panes = pipeline | stream.advance_watermark_to_infinity() | each | beam.GroupByKey()
        pairs = panes | beam.FlatMapTuple(lambda key, texts: [(key, text) for text in texts])
        embedded = pairs | EmbedText(encoder=SMALL, views=TEXT, max_delay_seconds=max_delay)
        place = beam.Map(lambda pair, pane=beam.DoFn.PaneInfoParam: (pair[1]["t"]["text"][0], pane.index))
        assert_that(embedded | place, check)


def test_batches_of_a_bundle(batches):
    """Without a delay, texts of different bundles do not wait for each other."""
    stream = test_stream.TestStream().advance_watermark_to(0)
    for number in range(3):
        stream.add_elements([TimestampedValue((number, "a river"), number)]).advance_processing_time(1)
    stream.add_elements([TimestampedValue((number, "a river bank" * 3), 9) for number in range(12)])
    with streaming_pipeline() as pipeline:
        _ = pipeline | stream.advance_watermark_to_infinity() | EmbedText(encoder=SMALL, views=TEXT)
    assert [keys for _, keys in batches] == [[0], [1], [2], [*range(10)], [10, 11]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": {}}, "views: is empty; at least one is needed"),
        ({"views": [{"level": "text"}]}, "EmbedText: views: should be a valid dictionary; given: [{'level': 'text'}]"),
        ({"views": {"t": {"level": "text", "layers": [9]}}}, "there is no layer 9: the encoder has 6 "),
        ({"views": {"t": {"level": "word_type", "layers": [1]}}}, "word_type is for runs over files only"),
        (
            {"views": {"t": {"level": "text", "layers": [1], "dtype": "int8"}}},
            "views.t.dtype: is int8, a form of stored",
        ),
        ({"encoder": "nowhere", "views": VIEWS}, "encoder.handle: nowhere: there is no such folder"),
        ({"views": VIEWS, "max_delay_seconds": 0}, "max_delay_seconds is 0; it must be positive, or None"),
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
    texts = beam.Pipeline(FnApiRunner()) | beam.Create([element])
    with pytest.raises(TypeCheckError, match=r"at EmbedText: expected Tuple\[Any, "):
        _ = texts | EmbedText(views=TEXT)


def test_elements_that_are_not_pairs_and_have_no_type():
    pipeline = beam.Pipeline(FnApiRunner())
    _ = pipeline | beam.Create([(1, 7)]).with_output_types(Any) | EmbedText(encoder=SMALL, views=TEXT)
    with pytest.raises(Exception, match=r"EmbedText: elements are \(key, text\), text a string; this one is"):
        pipeline.run()


@pytest.mark.parametrize("max_delay", [None, 60])
def test_texts_without_vectors_go_to_the_second_output(max_delay):
    texts = {"good": "a river", "null": None, "empty": "", "long": "river " * 30}
    encoder = {"handle": SMALL, "max_seq_length": 16, "long_text": "reject"}

    def check_good(pairs):
        assert sorted((key, len(vectors["t"]["layer_3"])) for key, vectors in pairs) == [("empty", 1), ("good", 1)]

    def check_bad(found):
        assert sorted(found) == [
            ("long", texts["long"], "over max_seq_length 16 (32 tokens with special ones)"),
            ("null", None, "the text is null"),
        ]

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        good, bad = (
            pipeline
            | beam.Create(list(texts.items()))
            | EmbedText(encoder=encoder, views=TEXT, max_delay_seconds=max_delay).with_exception_handling()
        )
        good, bad = good | "shuffle good" >> beam.Reshuffle(), bad | "shuffle bad" >> beam.Reshuffle()
        assert_that(good, check_good, label="good")
        assert_that(bad, check_bad, label="bad")
    metrics = pipeline.result.metrics().query()
    counts = {counter.key.metric.name: counter.committed for counter in metrics["counters"]}
    assert (counts["embedded"], counts["rejected"]) == (2, 2)
    (batches,) = (d.committed for d in metrics["distributions"] if d.key.metric.name == "batch_texts")
    assert batches.sum == 4


def test_without_a_second_output_such_a_text_is_an_error():
    pipeline = beam.Pipeline(FnApiRunner())
    _ = pipeline | beam.Create([("k1", None)]) | EmbedText(encoder=SMALL, views=TEXT)
    with pytest.raises(Exception, match="EmbedText: the text of key 'k1' has no vectors: the text is null"):
        pipeline.run()


def test_text_that_fails_the_encoder_is_rejected_alone(monkeypatch):
    encode = Network.__call__

    def fail_on_poison(self, token_ids, lengths, segment_ids):
        layers, pooled = encode(self, token_ids, lengths, segment_ids)
        layers = {layer: np.array(values) for layer, values in layers.items()}
        first = np.cumsum(lengths) - lengths
        layers[3][first[lengths == POISON_TOKENS]] = np.nan
        return layers, pooled

    monkeypatch.setattr(Network, "__call__", fail_on_poison)
    texts = [(number, POISON if number == 7 else "a river bank") for number in range(20)]

    def check_good(pairs):
        assert sorted(key for key, _ in pairs) == [number for number in range(20) if number != 7]
        assert all(np.isfinite(vectors["t"]["layer_3"]).all() for _, vectors in pairs)

    def check_bad(found):
        assert found == [(7, POISON, "the encoder gives NaN or infinite values")]

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        good, bad = pipeline | beam.Create(texts) | EmbedText(encoder=SMALL, views=TEXT).with_exception_handling()
        assert_that(good, check_good, label="good")
        assert_that(bad, check_bad, label="bad")


def test_device_and_hints_of_the_encoder_are_used():
    transform = EmbedText(encoder={"handle": SMALL, "device": "gpu"}, views=TEXT)
    pipeline = beam.Pipeline(FnApiRunner())
    _ = pipeline | beam.Create([("k", "a")]) | transform
    with pytest.raises(Exception, match=r"encoder\.device: gpu, and TensorFlow .* sees none"):
        pipeline.run()
    hinted = EmbedText(encoder={"handle": SMALL, "resource_hints": {"min_ram": "4GB"}}, views=TEXT)
    pipeline = beam.Pipeline(FnApiRunner())
    _ = pipeline | beam.Create([("k", "a")]) | hinted
    environments = pipeline.to_runner_api().components.environments.values()
    assert [e.resource_hints["beam:resources:min_ram_bytes:v1"] for e in environments if e.resource_hints] == [
        b"4000000000"
    ]


def test_types_and_display_data():
    embedded, rejected = (
        beam.Pipeline(FnApiRunner())
        | beam.Create([(1, "a")])
        | EmbedText(encoder=SMALL, views=TEXT, max_delay_seconds=2).with_exception_handling()
    )
    assert str(embedded.element_type) == "Tuple[<class 'int'>, Dict[<class 'str'>, Dict[<class 'str'>, Any]]]"
    assert str(rejected.element_type) == "Tuple[<class 'int'>, Union[<class 'NoneType'>, <class 'str'>], <class 'str'>]"
    shown = EmbedText(encoder=SMALL, views=TEXT, max_delay_seconds=2).display_data()
    assert shown == {"encoder": SMALL, "device": "auto", "views": "t", "max_delay_seconds": 2}
