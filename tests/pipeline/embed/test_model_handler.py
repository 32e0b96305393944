"""`layerbeam.ModelHandler` in Beam's RunInference."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.ml.inference.base import KeyedModelHandler, ModelMetadata, RunInference
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from float_bounds import OF_TWO
from repository import DATA

import layerbeam
from layerbeam.pipeline.embed.model_handler import ModelHandler

SMALL = str(DATA / "hf_uncased")
VIEWS = {"t": {"level": "text", "layers": [-1]}, "k": {"level": "token", "layers": [0]}}
TEXTS = ["A river bank.", "The bank closed early.", "", "the the the"]


def test_inferences_equal_what_encode_gives():
    expected = layerbeam.encode(TEXTS, encoder=SMALL, views=VIEWS)

    def check(results):
        assert sorted(result.example for result in results) == sorted(TEXTS)
        for result in results:
            number = TEXTS.index(result.example)
            tokens = expected["k"]["line"] == number
            assert result.model_id == SMALL
            assert result.inference["k"]["token"] == expected["k"]["token"][tokens].tolist()
            text, own = expected["t"]["layer_3"][number : number + 1], expected["k"]["layer_0"][tokens]
            np.testing.assert_allclose(result.inference["t"]["layer_3"], text, rtol=0, atol=OF_TWO)
            np.testing.assert_allclose(result.inference["k"]["layer_0"], own, rtol=0, atol=OF_TWO)

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        results = pipeline | beam.Create(TEXTS) | RunInference(ModelHandler(encoder=SMALL, views=VIEWS))
        assert_that(results, check)
    counters = pipeline.result.metrics().query()["counters"]
    counts = {counter.key.metric.name: counter.committed for counter in counters if "layerbeam" in str(counter.key)}
    assert counts["num_inferences"] == len(TEXTS)


def test_a_text_that_cannot_be_encoded_is_a_dead_letter_alone():
    encoder = {"handle": SMALL, "max_seq_length": 16, "long_text": "reject"}
    handler = ModelHandler(encoder=encoder, views=VIEWS)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        results, dead = (
            pipeline | beam.Create([*TEXTS, "river " * 30]) | RunInference(handler).with_exception_handling()
        )
        (failed,) = dead.failed_postprocessing
        reasons = failed | beam.Map(lambda pair: (pair[0].example, str(pair[1][1])))
        expected = ("river " * 30, "TextError('over max_seq_length 16 (32 tokens with special ones)')")
        assert_that(results | beam.Map(lambda result: result.example), equal_to(TEXTS), label="good")
        assert_that(reasons, equal_to([expected]), label="bad")


def test_without_dead_letters_such_a_text_is_an_error():
    encoder = {"handle": SMALL, "max_seq_length": 16, "long_text": "reject"}
    pipeline = beam.Pipeline(FnApiRunner())
    _ = pipeline | beam.Create(["river " * 30]) | RunInference(ModelHandler(encoder=encoder, views=VIEWS))
    with pytest.raises(Exception, match="over max_seq_length 16"):
        pipeline.run()


def test_keyed_examples():
    encoder = {"handle": SMALL, "max_seq_length": 16, "long_text": "reject"}
    handler = KeyedModelHandler(ModelHandler(encoder=encoder, views=VIEWS, rejects="return"))

    def outcome(pair):
        inference = pair[1].inference
        return pair[0], "rejected" if isinstance(inference, layerbeam.TextError) else inference["t"]["layer_3"].shape

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        results = pipeline | beam.Create([("a", TEXTS[0]), ("b", "river " * 30)]) | RunInference(handler)
        assert_that(results | beam.Map(outcome), equal_to([("a", (1, 64)), ("b", "rejected")]))


@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_batch_is_filled_to_a_number_of_tokens(is_keyed):
    """Beam fills a batch to a number of estimated tokens."""
    handler, text = ModelHandler(encoder=SMALL, views={"t": VIEWS["t"]}, rejects="return"), "river " * 2000
    if is_keyed:
        handler = KeyedModelHandler(handler)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        texts = pipeline | beam.Create([("key", text) if is_keyed else text] * 12)
        batches = texts | beam.BatchElements(**handler.batch_elements_kwargs()) | beam.Map(len)
        assert_that(batches, equal_to([5, 5, 2]))  # 3,002 tokens each; 16,384 are a batch


def test_the_model_is_updated_by_a_side_input():
    """A new handle: the cased vocabulary does not have the token that the uncased one has."""
    handler = ModelHandler(encoder=SMALL, views={"k": VIEWS["k"]})
    other = str(DATA / "google_cased")
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        update = pipeline | "model" >> beam.Create([ModelMetadata(other, "cased")])
        results = pipeline | beam.Create(["River"]) | RunInference(handler, model_metadata_pcoll=update)
        found = results | beam.Map(lambda result: (result.model_id, "River" in result.inference["k"]["token"]))
        assert_that(found, equal_to([(other, "River" in (DATA / "google_cased/vocab.txt").read_text().split("\n"))]))


@pytest.mark.slow
def test_one_model_for_all_processes_of_a_machine():
    """The encoder is in a process of its own; two workers send their texts there."""
    handler = ModelHandler(encoder=SMALL, views={"t": VIEWS["t"]}, large_model=True)
    options = PipelineOptions(["--direct_num_workers=2", "--direct_running_mode=multi_processing"])
    expected = layerbeam.encode(TEXTS, encoder=SMALL, views={"t": VIEWS["t"]})["t"]["layer_3"]

    def check(results):
        assert len(results) == len(TEXTS)
        for text, vector in results:
            np.testing.assert_allclose(vector, expected[TEXTS.index(text)], rtol=0, atol=OF_TWO)

    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        results = pipeline | beam.Create(TEXTS) | beam.Reshuffle() | RunInference(handler)
        assert_that(results | beam.Map(lambda r: (r.example, r.inference["t"]["layer_3"][0])), check)


def test_hints_and_device():
    encoder = {"handle": SMALL, "device": "gpu", "resource_hints": {"min_ram": "4GB"}}
    handler = ModelHandler(encoder=encoder, views=VIEWS)
    assert handler.get_resource_hints() == {"min_ram": "4GB"}
    with pytest.raises(Exception, match=r"encoder\.device: gpu, and TensorFlow .* sees none"):
        handler.load_model()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": {}}, "ModelHandler: views: is empty; at least one is needed"),
        ({"views": VIEWS, "rejects": "drop"}, "ModelHandler: rejects is 'drop'; allowed: raise, return"),
        ({"views": VIEWS, "encoder": "nowhere"}, "encoder.handle: nowhere: there is no such folder"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ModelHandler(**settings)


def test_wrong_use():
    handler = ModelHandler(encoder=SMALL, views=VIEWS)
    with pytest.raises(ValueError, match="ModelHandler: takes no inference_args"):
        handler.validate_inference_args({"batch": 3})
    pipeline = beam.Pipeline(FnApiRunner())
    _ = pipeline | beam.Create([7]) | RunInference(handler)
    with pytest.raises(Exception, match="ModelHandler: elements are texts; this one is '7', int"):
        pipeline.run()


def test_an_encoder_that_changed_after_the_pipeline_was_built(tmp_path):
    folder = Path(shutil.copytree(SMALL, tmp_path / "encoder"))
    handler = ModelHandler(encoder=str(folder), views=VIEWS)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("river", "rivet"))
    with pytest.raises(ValueError, match="has changed since the pipeline was built; start it again"):
        handler.load_model()
