"""The public face, and the pipelines of docs/custom_pipelines.md: they run, and their vectors are those of `run`."""

from __future__ import annotations

import ast
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from float_bounds import OF_TWO
from pyarrow import feather
from repository import ROOT
from weights import vectors

import layerbeam

OWN_SOURCE, OWN_SINK = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "custom_pipelines.md").read_text(), re.MULTILINE | re.DOTALL
)


def test_an_own_source_and_an_own_sink(workplace, tmp_path, monkeypatch):
    lines = [f"review {number}" for number in range(21)]  # three blocks
    workplace.write("corpus/a.txt", "\n".join(lines))
    views = {"reviews": {"level": "text", "layers": [6], "normalize": True}}
    workplace.configure(views=views, encoder={"handle": "minilm"})
    workplace.drive()
    expected = vectors(workplace.rows("reviews"), "layer_6")
    with sqlite3.connect(tmp_path / "reviews.db") as database:
        database.execute("CREATE TABLE reviews (id INTEGER PRIMARY KEY, review TEXT)")
        database.executemany("INSERT INTO reviews (review) VALUES (?)", [(line,) for line in lines])
    monkeypatch.chdir(tmp_path)
    exec(OWN_SOURCE.replace("000", "0"), {"__name__": "page"})  # 10 reviews in a block
    stored = [np.load(path) for path in sorted(tmp_path.glob("*.npz"))]
    assert [len(block["row"]) for block in stored] == [10, 10, 1]
    assert np.concatenate([block["row"] for block in stored]).tolist() == list(range(len(lines)))
    np.testing.assert_allclose(np.concatenate([block["vector"] for block in stored]), expected, rtol=0, atol=OF_TWO)


def test_an_own_sink(workplace, tmp_path, monkeypatch):
    text = "The river\nbank is steep.\n\nShe went to the bank.\nNo Bank is open.\n\nNothing here.\n"
    workplace.write("corpus/a.txt", text)
    workplace.write("corpus/b.txt", "a bank")
    views = {"words": {"level": "word", "layers": [2, 6], "keep_words": ["bank"]}}
    workplace.configure(views=views, encoder={"handle": "minilm"}, input={"record": "paragraph"})
    workplace.drive()
    monkeypatch.chdir(workplace.folder)
    exec(OWN_SINK, {"__name__": "page"})
    written = [feather.read_table(path) for path in sorted(Path().glob("*.feather"))]
    expected = workplace.rows("words")
    assert sum(table.num_rows for table in written) == expected.num_rows == 4
    for name in expected.column_names:
        column = [value for table in written for value in table[name].to_pylist()]
        assert name == "file" or column == expected[name].to_pylist(), name


def test_a_file_that_does_not_exist(tmp_path):
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | layerbeam.FindFiles(str(tmp_path / "*.txt"))
    with pytest.raises(Exception, match=r"no file matches .*\*\.txt"):
        pipeline.run()


def test_an_encoder_without_the_layer_is_refused_at_once():
    encoder = layerbeam.open_encoder("minilm")
    view = layerbeam.ViewSpec(name="v", level="text", layers=(7,), hidden_size=encoder.hidden_size)
    with pytest.raises(ValueError, match="there is no layer 7; it gives layers 0 to 6"):
        layerbeam.EncodeBlocks(encoder, views=(view,))


def test_exports_are_importable_and_typed():
    tree = ast.parse((ROOT / "layerbeam" / "__init__.py").read_text())
    for_types = next(node for node in tree.body if isinstance(node, ast.If))  # if TYPE_CHECKING
    imported = {alias.name for node in for_types.body for alias in node.names if isinstance(node, ast.ImportFrom)}
    assert imported == set(layerbeam.__all__) - {"__version__"}
    assert all(getattr(layerbeam, name) is not None for name in layerbeam.__all__)
    assert dir(layerbeam) == sorted(layerbeam.__all__)
