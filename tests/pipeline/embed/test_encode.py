"""`layerbeam.encode`: the vectors of a run, in this process; what it refuses; what it keeps loaded."""

from __future__ import annotations

import io
import re
import shutil
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from corpora import random_lines
from float_bounds import OF_TWO
from repository import DATA

import layerbeam
from layerbeam.pipeline import progress
from layerbeam.pipeline.embed import encode as module

SMALL = str(DATA / "hf_uncased")
VIEWS = {
    "tokens": {"level": "token", "layers": [-1, 0]},
    "words": {"level": "word", "layers": [2], "keep_words": ["the"]},
    "text": {"level": "text", "layers": [-1], "normalize": True, "dtype": "float16"},
}


def test_views_have_the_rows_and_columns_of_a_run(workplace):
    lines = [line for line in random_lines(300) if line.strip()]
    pairs = [None if number % 3 else f"the {number}" for number in range(len(lines))]
    table = pa.table({"text": lines, "second": pa.array(pairs, pa.string())})
    workplace.folder.joinpath("corpus").mkdir()
    pa.parquet.write_table(table, workplace.folder / "corpus" / "a.parquet")
    workplace.configure(views=VIEWS, input={"format": "parquet", "pair_field": "second"})
    workplace.drive()
    arrow = layerbeam.encode(lines, encoder=SMALL, views=VIEWS, pairs=pairs, output="arrow")
    arrays = layerbeam.encode(iter(lines), encoder=SMALL, views=VIEWS, pairs=iter(pairs))
    assert arrow.keys() == arrays.keys() == VIEWS.keys()
    for name, columns in arrays.items():
        expected = layerbeam.open_run("out")[name].to_arrow()
        assert arrow[name].schema.equals(expected.schema)
        assert list(columns) == expected.column_names
        for column in set(columns) - {"file"}:
            if pa.types.is_fixed_size_list(expected.schema.field(column).type):
                vectors = np.stack(expected[column].to_numpy())
                assert columns[column].dtype == vectors.dtype
                np.testing.assert_allclose(columns[column], vectors, rtol=0, atol=1e-3 if name == "text" else OF_TWO)
            else:
                assert columns[column].tolist() == arrow[name][column].to_pylist() == expected[column].to_pylist()
    assert len(arrays["text"]["line"]) == len(lines)
    assert 0 < len(arrays["words"]["line"]) < len(lines)


@pytest.mark.parametrize(
    ("count", "given", "is_shown"), [(4097, None, True), (4097, False, False), (10, None, False), (10, True, True)]
)
def test_progress_of_a_long_list_at_a_terminal(monkeypatch, count, given, is_shown):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    layerbeam.encode(["a bank"] * count, encoder=SMALL, progress=given)
    assert ("0%" in stream.getvalue()) == is_shown
    assert bool(stream.getvalue()) == is_shown


def test_progress_of_a_generator(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)

    def texts():
        while not re.search("[1-9][0-9,]* texts", stream.getvalue()):
            yield "a bank"

    assert len(layerbeam.encode(texts(), encoder=SMALL, progress=True)) > 4096


def test_one_unit_vector_per_text_in_any_kind_of_list():
    texts = ["A river bank.", "", "A bank holiday.", "A river bank."]
    expected = layerbeam.encode(texts, encoder=SMALL)
    assert (expected.shape, expected.dtype) == ((4, 64), np.float32)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(expected[0], expected[3])
    alone = np.concatenate([layerbeam.encode([text], encoder=SMALL) for text in texts])
    np.testing.assert_allclose(alone, expected, rtol=0, atol=OF_TWO)
    given = [
        tuple(texts),
        np.array(texts),
        pd.Series(texts, index=[7, 8, 9, 7]),
        pa.array(texts),
        pa.chunked_array([texts]),
    ]
    for some in [*given, (text for text in texts)]:
        np.testing.assert_allclose(layerbeam.encode(some, encoder=SMALL), expected, rtol=0, atol=OF_TWO)
    several_blocks = layerbeam.encode(texts * 5000, encoder=SMALL)
    np.testing.assert_allclose(several_blocks, np.tile(expected, (5000, 1)), rtol=0, atol=OF_TWO)
    assert layerbeam.encode([], encoder=SMALL).shape == (0, 64)
    none = layerbeam.encode([], encoder=SMALL, views=VIEWS)
    assert (none["tokens"]["layer_0"].shape, none["tokens"]["token"].tolist()) == ((0, 64), [])


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["a", None], TypeError, r"encode: texts\[1\] is None, a NoneType; all must be strings"),
        (pd.Series(["a", float("nan")]), TypeError, r"encode: texts\[1\] is nan, a float; all must be strings"),
        (["a", "b", b"c"], TypeError, r"encode: texts\[2\] is b'c', a bytes; all must be strings"),
        (["a", "b\ud800"], ValueError, r"encode: texts\[1\]: lone surrogate U\+D800 at character 1"),
        ("a bank", TypeError, r"encode: texts is one string; give a list: \['a bank'\]"),
        (
            pd.DataFrame({"a": ["b"]}),
            TypeError,
            "texts is a DataFrame; give a list of strings, or one column of a table",
        ),
        ({"a": 1}, TypeError, "texts is a dict; give a list of strings, or one column of a table"),
        ({"a", "b"}, TypeError, "texts is a set; give a list of strings, or one column of a table"),
        (7, TypeError, "texts is a int; give a list of strings, or one column of a table"),
    ],
)
def test_what_is_no_list_of_texts(texts, error, message):
    with pytest.raises(error, match=message):
        layerbeam.encode(texts, encoder=SMALL)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": {}}, "encode: views: is empty; at least one is needed"),
        ({"views": [{"level": "text"}]}, "encode: views: should be a valid dictionary"),
        (
            {"views": {"t": {"level": "text", "layer": [1]}}},
            "encode: views.t.layer: unknown setting; did you mean `layers`",
        ),
        ({"views": {"t": {"level": "text", "layers": [9]}}}, "views.t.layers: there is no layer 9: the encoder has 3"),
        ({"views": {"t": {"level": "record", "layers": [1]}}}, "views.t.level: record is for runs over files only"),
        ({"encoder": "nowhere"}, "encoder.handle: nowhere: there is no such folder"),
        ({"output": "torch"}, "output is 'torch'; allowed: numpy, arrow"),
        ({"output": "arrow"}, "output arrow is for `views`"),
        ({"pairs": ["a"]}, "there are 1 pairs and more texts; give one for each text, or None"),
        ({"pairs": ["a", "b", "c"]}, r"there are more pairs than texts \(2\)"),
        ({"pairs": ["a", 1]}, r"pairs\[1\] is 1, a int; all must be strings"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        layerbeam.encode(["a", "b"], **{"encoder": SMALL} | settings)


def test_long_texts():
    texts = ["short", "a very long text " * 10, "short too", "another very long text " * 10]
    short = {"handle": SMALL, "max_seq_length": 12}
    with pytest.raises(ValueError, match=r"encode: texts\[1\]: over max_seq_length 12 \(\d+ tokens"):
        layerbeam.encode(texts, encoder=short | {"long_text": "reject"})
    with pytest.warns(UserWarning, match="encode: cut 2 of the texts off after 12 tokens; raise max_seq"):
        layerbeam.encode(texts, encoder=short)
    window = {"long_text": "window", "window_overlap": 2}
    assert layerbeam.encode(texts, encoder=short | window).shape == (4, 64)


def test_a_text_without_finite_vectors(monkeypatch):
    from layerbeam.transforms.encoders.network import Network

    plain = Network.__call__

    def damaged(self, token_ids, lengths, segment_ids):
        layers, pooled = plain(self, token_ids, lengths, segment_ids)
        if lengths.max() > 100:
            layers = {layer: values * np.float32("nan") for layer, values in layers.items()}
        return layers, pooled

    monkeypatch.setattr(Network, "__call__", damaged)
    with pytest.raises(ValueError, match=r"encode: texts\[1\]: the encoder gives NaN or infinite values"):
        layerbeam.encode(["a bank", "a bank " * 60], encoder={"handle": SMALL, "batch_tokens": 1})


def test_the_encoder_stays_loaded_until_its_files_change(tmp_path):
    folder = tmp_path / "encoder"
    shutil.copytree(SMALL, folder)
    before = module._load.cache_info()
    for texts in (["a"], ["b", "c"]):
        layerbeam.encode(texts, encoder=str(folder))
        layerbeam.encode(texts, encoder={"handle": str(folder)}, views=VIEWS)
    after = module._load.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits, after.maxsize) == (2, 2, 4)
    vocabulary = (folder / "vocab.txt").read_text().replace("\nthe\n", "\neht\n")
    (folder / "vocab.txt").write_text(vocabulary)
    words = layerbeam.encode(["the eht"], encoder=str(folder), views={"t": {"level": "token", "layers": [0]}})
    assert "eht" in words["t"]["token"]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            layerbeam.encode(["the"], encoder=str(folder)), layerbeam.encode(["the"], encoder=SMALL), atol=1e-3
        )


def test_several_threads():
    texts = random_lines(40)
    expected = layerbeam.encode(texts, encoder=SMALL)
    found = [None] * 8

    def work(number):
        found[number] = layerbeam.encode(texts, encoder=SMALL)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for vectors in found:
        np.testing.assert_array_equal(vectors, expected)


def test_settings_are_those_of_a_configuration():
    """What stands under `views` in a file can be given as it is."""
    views = yaml.safe_load("v: {level: word, layers: [1, -1], combine: concat}")
    assert layerbeam.encode(["a bank"], encoder=SMALL, views=views)["v"]["embedding"].shape == (2, 128)
