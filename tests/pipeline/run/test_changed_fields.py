"""Records whose text stays and whose other fields change: vectors are copied, with the new fields."""

from __future__ import annotations

import csv
import io
import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines

VIEWS: dict[str, Any] = {
    "tokens": {"level": "token", "layers": [-1, 0], "truncate_dim": 4},
    "texts": {"level": "text", "layers": [2], "format": "jsonl", "truncate_dim": 4},
    "words": {"level": "word", "layers": [2], "format": "tfrecord", "truncate_dim": 4},
    "lists": {"level": "text", "layers": [1], "pooling": "none", "truncate_dim": 4},
    "records": {"level": "record", "layers": [3]},
    "types": {"level": "word_type", "layers": [1], "truncate_dim": 4},
}
FIELDS = {"id_field": "key", "keep_fields": {"label": "string", "n": "int64"}}


def records(texts: list[str], seed: int) -> list[dict[str, Any]]:
    """Keys, labels of any length and numbers, all others with another seed."""
    drawn = random.Random(seed)
    labels = ["", "a", "a label", "ein längeres Schild, genau", None]
    return [
        {"key": f"{seed}-{number}", "label": drawn.choice(labels), "text": text, "n": drawn.randrange(10**6), "x": seed}
        for number, text in enumerate(texts)
    ]


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=40)
    return file.getvalue()


FORMATS = {"jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet}
TEXTS = random_lines(100, longest=12)


def corpus(format_: str, texts: list[str], seed: int) -> dict[str, bytes]:
    """A large file and small ones."""
    packed = {f"small/{number:02}.{format_}": FORMATS[format_](records([texts[number]], seed)) for number in range(20)}
    return {f"large.{format_}": FORMATS[format_](records(texts, seed)), **packed}


def write(workplace, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        workplace.write(f"corpus/{name}", data)


@pytest.fixture(params=FORMATS)
def finished(request, workplace, encoded):
    files = corpus(request.param, TEXTS, seed=1)
    workplace.finished(files, views=VIEWS, input={"files": "corpus/**/*.*", "slice_bytes": 500, **FIELDS})
    encoded.clear()
    return workplace, request.param


def test_other_fields_in_every_record(finished, encoded):
    workplace, format_ = finished
    write(workplace, corpus(format_, TEXTS, seed=2))
    planned = json.loads(workplace.plan("--json").out)
    assert (planned["kept"]["texts"], planned["changed"]) == (0, 21)
    workplace.drive()
    assert encoded == []
    ids = workplace.rows("records")["id"].to_pylist()
    assert set(ids) == {f"2-{number}" for number in range(100) if TEXTS[number]}
    workplace.assert_equals_fresh()
    workplace.verify()


def test_one_text_among_other_fields_in_every_record(finished, encoded):
    workplace, format_ = finished
    texts = [*TEXTS]
    texts[60] = "the river bank"
    write(workplace, corpus(format_, texts, seed=2))
    workplace.drive()
    assert 0 < sum(count for _, count in encoded) < 50
    workplace.assert_equals_fresh()


def test_sums_by_a_field_are_made_anew(workplace, encoded):
    files = corpus("jsonl", TEXTS, seed=1)
    views = {"types": VIEWS["types"] | {"group_by": ["label"]}}
    workplace.finished(files, views=views, input={"files": "corpus/**/*.*", "slice_bytes": 500, **FIELDS})
    encoded.clear()
    write(workplace, corpus("jsonl", TEXTS, seed=2))
    workplace.drive()
    assert sum(count for _, count in encoded) == sum(map(bool, TEXTS)) + sum(map(bool, TEXTS[:20]))
    workplace.assert_equals_fresh()


def test_another_pair_is_another_text(workplace, encoded):
    def data(second: str) -> bytes:
        return as_jsonl([{"text": "the bank", "other": f"{second} {number}"} for number in range(3)])

    workplace.finished({"a.jsonl": data("river")}, views={"t": VIEWS["records"]}, input={"pair_field": "other"})
    encoded.clear()
    workplace.write("corpus/a.jsonl", data("money"))
    workplace.drive()
    assert [count for _, count in encoded] == [3]
    workplace.assert_equals_fresh()
