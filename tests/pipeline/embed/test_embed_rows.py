"""`layerbeam.EmbedRows`: rows with a schema in, rows with vectors out."""

from __future__ import annotations

import re
from typing import NamedTuple

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from float_bounds import OF_TWO
from repository import DATA

import layerbeam
from layerbeam.pipeline.embed.embed_rows import EmbedRows

SMALL = str(DATA / "hf_uncased")
TEXT = {"vector": {"level": "text", "layers": [-1]}}


# A class with annotations that are strings has fields of any type.
Review = NamedTuple("Review", [("number", int), ("body", str | None)])  # noqa: UP014


beam.coders.registry.register_coder(Review, beam.coders.RowCoder)
REVIEWS = [Review(1, "A river bank."), Review(2, "The bank closed early."), Review(3, "")]


def embed(rows, **settings):
    """What `EmbedRows` gives for these rows, after a shuffle; `check` gets it as a list."""
    pipeline = beam.Pipeline(runner=FnApiRunner())
    created = pipeline | beam.Create(rows).with_output_types(Review)
    return pipeline, created | EmbedRows(column="body", encoder=SMALL, **settings)


def test_text_views_become_lists_of_floats():
    views = TEXT | {"two": {"level": "text", "layers": [0, -1], "pooling": "cls", "dtype": "float16"}}
    expected = layerbeam.encode([review.body for review in REVIEWS], encoder=SMALL, views=views)
    pipeline, rows = embed(REVIEWS, views=views)
    assert [name for name, _ in rows.element_type._fields] == ["number", "body", "vector", "two_layer_0", "two_layer_3"]

    def check(found):
        found = sorted(found, key=lambda row: row.number)
        assert [(row.number, row.body) for row in found] == [tuple(review) for review in REVIEWS]
        for field, (view, column) in {
            "vector": ("vector", "layer_3"),
            "two_layer_0": ("two", "layer_0"),
            "two_layer_3": ("two", "layer_3"),
        }.items():
            vectors = np.array([getattr(row, field) for row in found], np.float32)
            np.testing.assert_allclose(vectors, expected[view][column], rtol=0, atol=OF_TWO)

    assert_that(rows | beam.Reshuffle(), check)
    pipeline.run()


def test_lists_of_vectors_become_lists_of_lists():
    views = {"all": {"level": "text", "layers": [-1], "pooling": "none"}}
    expected = layerbeam.encode([review.body for review in REVIEWS], encoder=SMALL, views=views)["all"]["layer_3"]
    pipeline, rows = embed(REVIEWS, views=views)

    def check(found):
        for row, vectors in zip(sorted(found, key=lambda row: row.number), expected, strict=True):
            np.testing.assert_allclose(np.array(row.all, np.float32), vectors, rtol=0, atol=OF_TWO)

    assert_that(rows | beam.Reshuffle(), check)
    pipeline.run()
    assert [len(vectors) for vectors in expected] == [6, 13, 2]


def test_token_and_word_views_become_lists_of_rows():
    views = {"tokens": {"level": "token", "layers": [-1]}, "words": {"level": "word", "layers": [1]}}
    pipeline, rows = embed(REVIEWS[:1], views=views)

    def check(found):
        (row,) = found
        assert [token.token for token in row.tokens] == ["[CLS]", "a", "river", "bank", ".", "[SEP]"]
        assert [(word.word, word.start, word.end) for word in row.words] == [
            ("A", 0, 1), ("river", 2, 7), ("bank", 8, 12), (".", 12, 13),
        ]  # fmt: skip
        assert {len(token.layer_3) for token in row.tokens} == {len(word.layer_1) for word in row.words} == {64}

    assert_that(rows | beam.Reshuffle(), check)
    pipeline.run()


def test_rows_without_vectors_go_to_the_output_of_errors():
    pipeline, outputs = embed([*REVIEWS, Review(4, None)], views=TEXT, error_handling={"output": "bad"})
    assert set(outputs) == {"good", "bad"}

    def check_good(found):
        assert sorted(row.number for row in found) == [1, 2, 3]

    def check_bad(found):
        assert [(row.element.number, row.msg) for row in found] == [(4, "the text is null")]

    assert_that(outputs["good"] | "shuffle good" >> beam.Reshuffle(), check_good, label="good")
    assert_that(outputs["bad"] | "shuffle bad" >> beam.Reshuffle(), check_bad, label="bad")
    pipeline.run()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": TEXT, "column": "text"}, "EmbedRows: the rows have no field text; they have number, body: set"),
        (
            {"views": TEXT, "column": "number"},
            "EmbedRows: the field number is <class 'numpy.int64'>, not text: set `column`",
        ),
        ({"views": {"body": TEXT["vector"]}}, "EmbedRows: the rows already have body: give the view another name"),
        ({"views": {}}, "EmbedRows: views: is empty; at least one is needed"),
        ({"views": TEXT, "error_handling": {"to": "x"}}, "EmbedRows: error_handling is {'to': 'x'}; it must have `out"),
        ({"views": TEXT, "max_delay_seconds": -1}, "EmbedRows: max_delay_seconds is -1; it must be positive, or None"),
    ],
)
def test_wrong_settings(settings, message):
    rows = beam.Pipeline(FnApiRunner()) | beam.Create(REVIEWS).with_output_types(Review)
    with pytest.raises(ValueError, match=re.escape(message)):
        _ = rows | EmbedRows(**({"column": "body", "encoder": SMALL} | settings))


def test_elements_without_a_schema():
    pairs = beam.Pipeline(FnApiRunner()) | beam.Create([(1, "a")])
    with pytest.raises(ValueError, match=r"EmbedRows: the elements are Tuple\[.*, not rows: give them a schema"):
        _ = pairs | EmbedRows(encoder=SMALL, views=TEXT)
