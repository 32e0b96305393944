"""`layerbeam.Embeddings` in Beam's MLTransform."""

from __future__ import annotations

import re

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.ml.rag import types
from apache_beam.ml.rag.embeddings import base as rag
from apache_beam.ml.transforms.base import MLTransform
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from float_bounds import OF_TWO
from repository import DATA

import layerbeam
from layerbeam.pipeline.embed.embeddings import Embeddings

SMALL = str(DATA / "hf_uncased")
TEXTS = ["A river bank.", "The bank closed early.", ""]


def test_a_column_becomes_a_vector_also_in_a_second_pipeline(tmp_path):
    expected = layerbeam.encode(TEXTS, encoder=SMALL)

    def check(rows):
        assert sorted(row["number"] for row in rows) == [0, 1, 2]
        for row in rows:
            np.testing.assert_allclose(row["body"], expected[row["number"]], rtol=0, atol=OF_TWO)

    embed = MLTransform(write_artifact_location=str(tmp_path)).with_transform(Embeddings(["body"], encoder=SMALL))
    for transform in (embed, MLTransform(read_artifact_location=str(tmp_path))):
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            rows = [{"number": number, "body": text} for number, text in enumerate(TEXTS)]
            assert_that(pipeline | beam.Create(rows) | transform, check)
        assert [path.name for path in tmp_path.iterdir()] == ["attributes.json"]


def test_several_columns_and_a_view(tmp_path):
    view = {"level": "text", "layers": [0, -1], "combine": "concat", "pooling": "cls"}
    expected = layerbeam.encode(TEXTS, encoder=SMALL, views={"v": view})["v"]["embedding"]

    def check(rows):
        (row,) = rows
        np.testing.assert_allclose([row["a"], row["b"]], expected[:2], rtol=0, atol=OF_TWO)

    embed = MLTransform(write_artifact_location=str(tmp_path))
    embed = embed.with_transform(Embeddings(["a", "b"], encoder=SMALL, view=view))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        assert_that(pipeline | beam.Create([{"a": TEXTS[0], "b": TEXTS[1]}]) | embed, check)


def test_items_for_beams_vector_sinks(tmp_path):
    if not hasattr(rag, "create_text_adapter"):
        pytest.skip("since Beam 2.72")
    items = [types.EmbeddableItem(content=types.Content(text=text), id=str(n)) for n, text in enumerate(TEXTS[:2])]
    expected = layerbeam.encode(TEXTS[:2], encoder=SMALL)

    def check(found):
        for item in found:
            np.testing.assert_allclose(item.dense_embedding, expected[int(item.id)], rtol=0, atol=OF_TWO)

    adapted = Embeddings(type_adapter=rag.create_text_adapter(), encoder=SMALL)
    embed = MLTransform(write_artifact_location=str(tmp_path)).with_transform(adapted)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        assert_that(pipeline | beam.Create(items) | embed, check)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": ["a"], "view": {"level": "token", "layers": [0]}}, "Embeddings: view gives level token, layer_0;"),
        ({"columns": ["a"], "view": {"level": "text", "layers": [0, 1]}}, "level text, layer_0, layer_1; it must have"),
        (
            {"columns": ["a"], "view": {"level": "text", "layers": [0], "pooling": "none"}},
            "view gives level text, pooling none, layer_0; it must have level text and one vector: choose a pooling",
        ),
        ({"columns": ["a"], "encoder": "nowhere"}, "encoder.handle: nowhere: there is no such folder"),
        ({}, "Either columns or type_adapter must be specified"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Embeddings(**({"encoder": SMALL} | settings))
