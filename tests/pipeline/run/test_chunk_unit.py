"""`unit: chunk` through the whole pipeline: rows, formats, plans, equal bytes, settings that do not fit."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from float_bounds import OF_TWO
from weights import vectors

VIEWS = {
    "chunks": {"level": "text", "layers": [2]},
    "documents": {"level": "record", "layers": [2]},
    "words": {"level": "word", "layers": [1]},
}
CHUNK = {"tokens": 12, "overlap": 4, "boundaries": "word"}
DOCUMENT = "the bank is on the river and the river is by the bank. a well is in the well"


def texts_of(workplace, output="out"):
    columns = ["line", "sentence", "start", "end", "text"]
    return [tuple(row.values()) for row in workplace.rows("chunks", output).select(columns).to_pylist()]


def test_rows(workplace):
    workplace.prepare(f"{DOCUMENT}\n\nthe well\n", input={"unit": "chunk", "chunk": CHUNK}, views=VIEWS)
    done = workplace.drive()
    assert texts_of(workplace) == [
        (0, 0, 0, 41, "the bank is on the river and the river is"),
        (0, 1, 25, 61, "and the river is by the bank. a well"),
        (0, 2, 49, 76, "bank. a well is in the well"),
        (2, 0, 0, 8, "the well"),
    ]
    assert "records   3 read = 2 embedded + 1 blank + 0 filtered + 0 rejected\n" in done.out
    assert "chunks    4 found = 4 embedded + 0 blank + 0 filtered + 0 rejected\n" in done.out
    assert workplace.rows("documents")["num_texts"].to_pylist() == [3, 1]
    words = workplace.rows("words").select(["sentence", "start", "word"]).to_pylist()
    assert [row for row in words if row["word"] == "bank"] == [
        {"sentence": sentence, "start": start, "word": "bank"} for sentence, start in ((0, 4), (1, 49), (2, 49))
    ]
    assert workplace.verify().out.endswith("\npass\n")
    # A chunk's vector is that of its text alone.
    workplace.write("one_by_one/a.txt", "\n".join(text for *_, text in texts_of(workplace)))
    workplace.configure(input={"files": ["one_by_one/*"]}, views={"chunks": VIEWS["chunks"]})
    workplace.drive("--output", "alone")
    of_both = (vectors(workplace.rows("chunks", output), "layer_2") for output in ("out", "alone"))
    np.testing.assert_allclose(*of_both, atol=OF_TWO)


def as_csv(records: list[str]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows([["text"], *([record] for record in records)])
    return file.getvalue()


def as_parquet(records: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": records}), file)
    return file.getvalue()


FORMATS = {
    "lines": ("txt", lambda records: "\n".join(records), {}),
    "paragraphs": ("txt", lambda records: "\n\n".join(records), {"record": "paragraph"}),
    "JSON Lines": ("jsonl", lambda records: "\n".join(json.dumps({"text": record}) for record in records), {}),
    "CSV": ("csv", as_csv, {}),
    "Parquet": ("parquet", as_parquet, {}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(workplace, name):
    lines = random_lines(42)
    records = [" ".join(lines[number : number + 6]) for number in range(0, 42, 6)]
    ending, write, more = FORMATS[name]
    how = {"unit": "chunk", "chunk": CHUNK, "slice_bytes": 600} | more
    workplace.prepare({f"a.{ending}": write(records)}, input=how, views=VIEWS)
    workplace.drive()
    places = sorted({line for line, *_ in texts_of(workplace)})
    assert len(places) == len(records)
    for place, record in zip(places, records, strict=True):
        own = [row for row in texts_of(workplace) if row[0] == place]
        assert [record[start:end] for _, _, start, end, _ in own] == [text for *_, text in own]
        assert (own[0][2], own[-1][3]) == (0, len(record.rstrip()))
    assert workplace.rows("chunks")["num_tokens"].to_numpy().max() <= 10
    planned = json.loads(workplace.plan("--json", "--output", "planned").out)
    assert planned["views"]["chunks"]["rows"] == workplace.rows("chunks").num_rows
    assert planned["views"]["words"]["rows"] == workplace.rows("words").num_rows
    assert workplace.verify("--sample", "40").out.endswith("\npass\n")


def test_equal_bytes_with_two_workers(workplace):
    how = {"unit": "chunk", "chunk": CHUNK, "slice_bytes": 600}
    workplace.finished("\n".join(random_lines(60)), input=how, views=VIEWS)
    workplace.run("--workers", "2", "--output", "two")
    assert workplace.files("two") == workplace.files()


def test_a_whole_file_with_sentences(workplace):
    text = (
        "The bank is on the river.\nA river is by the bank. The well\nis in the river of the bank and the well. A well."
    )
    how = {"record": "file", "unit": "chunk", "chunk": {"tokens": 17, "overlap": 5}}
    workplace.prepare(text, input=how, views=VIEWS)
    workplace.drive()
    rows = texts_of(workplace)
    assert [text[start:end] for _, _, start, end, _ in rows] == [text for *_, text in rows]
    assert rows[0][4] == "The bank is on the river.\nA river is by the bank."
    assert rows[-1][4].endswith("A well.")


def test_settings_that_do_not_fit(workplace):
    workplace.prepare(DOCUMENT, input={"unit": "chunk"}, encoder={"max_seq_length": 64}, views=VIEWS)
    refused = workplace.drive(status=2).err
    assert "input.chunk.tokens: is 256; a text has at most encoder.max_seq_length = 64 tokens: lower it, or" in refused
    cases = {
        "input.unit=record": "input.chunk: is for unit: chunk; set that, or remove it",
        "input.chunk.overlap=7": "input.chunk.overlap: is 7; at most half of chunk.tokens = 12",
        "input.chunk.tokens=2": "input.chunk.tokens: should be greater than or equal to 8; given: 2",
        "input.chunk.boundary=word": "input.chunk.boundary: unknown setting; did you mean `boundaries`?",
        "input.language=de": "input.language: is for sentences and chunks that end at them; set unit, or remove it",
        "input.pair_separator=' ||| '": "input.pair_separator: a pair is one text; remove it, or set unit: record",
    }
    workplace.configure(input={"unit": "chunk", "chunk": CHUNK}, views=VIEWS)
    for setting, message in cases.items():
        assert message in workplace.drive("--set", setting, status=2).err


def test_an_own_splitter_that_fails(workplace, monkeypatch):
    workplace.write("my_chunk_sentences.py", "def split(text): raise ValueError('no')\n")
    monkeypatch.syspath_prepend(str(workplace.folder))
    how = {"unit": "chunk", "chunk": CHUNK | {"boundaries": "sentence"}, "sentences": "my_chunk_sentences:split"}
    workplace.prepare(DOCUMENT, input=how, views=VIEWS)
    refused = workplace.drive(status=1).err
    assert "input.sentences: my_chunk_sentences:split failed for 'the bank" in refused
    assert "ValueError: no" in refused
