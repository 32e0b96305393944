"""Fields from the path of the file, in every format."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import read_file

from layerbeam.transforms.input.path_fields import value_of_path


@pytest.mark.parametrize("format_", ["text", "jsonl", "csv", "tsv", "parquet"])
def test_every_format(tmp_path, format_):
    path = tmp_path / "tang" / "a"
    path.parent.mkdir()
    fields = {"period": {"path": "/([^/]+)/a$"}, "none": {"path": "(song)/"}}
    if format_ == "parquet":
        pq.write_table(pa.table({"text": ["a", " ", "b"], "n": [1, 2, 3]}), path)
    else:
        lines = {"text": "a\n \nb\n", "jsonl": '{"text": "a", "n": 1}\n{"text": " ", "n": 2}\n{"text": "b", "n": 3}\n'}
        delimiter = "\t" if format_ == "tsv" else ","
        path.write_text(lines.get(format_, "text,n\na,1\n ,2\nb,3\n".replace(",", delimiter)))
    kept = fields if format_ == "text" else {"n": "int64", **fields}
    (block,) = read_file(path, format=format_, keep_fields=kept)
    own = {} if format_ == "text" else {"n": [1, 3]}
    assert {name: values.to_pylist() for name, values in block.fields.items()} == {
        **own,
        "period": ["tang", "tang"],
        "none": [None, None],
    }


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (r"corpus/([^/]+)/", "tang"),
        (r"^corpus/(?:[^/]+)/(\d+)", "12"),
        (r"(?i)/(TANG)/", "tang"),
        (r"/(?P<name>\w+)\.txt$", None),
        ("tang(x?)/", None),
        (r"(a+)+$", None),
        ("([^/]+)|corpus", "corpus"),
    ],
)
def test_the_first_match(expression, value):
    assert value_of_path(expression, "corpus/tang/12-ü\nb.txt.gz" + "a" * 5000 + "!") == value
