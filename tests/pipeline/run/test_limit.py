"""`input.limit`: the first records, whatever the format and the number of workers."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

VIEWS = {"t": {"level": "text", "layers": [2], "pooling": "mean"}}
TEXTS = [f"text number {n}" for n in range(60)]


def content(form: str, texts: list[str]) -> bytes:
    if form == "jsonl":
        return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    if form == "csv":
        return ("text,n\n" + "".join(f'"{text}","1\n2"\n' for text in texts)).encode()
    if form == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": texts}), sink, row_group_size=7)
        return sink.getvalue().to_pybytes()
    data = ("\n\n" if form == "paragraph" else "\n").join(texts).encode()
    return gzip.compress(data) if form == "gz" else data


@pytest.mark.parametrize("form", ["text", "jsonl", "csv", "parquet", "paragraph", "gz"])
def test_first_records(workplace, form):
    ending = {"paragraph": "txt", "text": "txt", "gz": "txt.gz"}.get(form, form)
    workplace.write(f"corpus/a.{ending}", content(form, TEXTS[:20]))
    workplace.write(f"corpus/b.{ending}", content(form, TEXTS[20:50]))
    workplace.write(f"corpus/c.{ending}", content(form, TEXTS[50:]))
    record = {"record": "paragraph"} if form == "paragraph" else {}
    workplace.configure(input={"slice_bytes": 100} | record, views=VIEWS)
    plan = json.loads(workplace.plan("--limit", "33", "--json").out)
    assert plan["estimates"]["records"]["value"] == 33
    workplace.drive("--limit", "33")
    workplace.assert_equals_fresh("--set", "input.limit=33")
    assert workplace.rows("t")["text"].to_pylist() == TEXTS[:33]
    assert workplace.manifest()["counts"]["records_read"] == 33
    assert "nothing to do" in workplace.drive("--limit", "33").err
    assert workplace.verify().out.endswith("pass\n")


def test_equal_bytes_with_two_workers(workplace):
    files = {"a.txt": content("text", TEXTS[:20]), "b.txt": content("text", TEXTS[20:])}
    workplace.prepare(files, input={"slice_bytes": 100}, views=VIEWS)
    workplace.drive("--limit", "33")
    workplace.run("--limit", "33", "--workers", "2", "--output", "two")
    assert workplace.files("two") == workplace.files()


def test_limit_belongs_to_the_run(workplace):
    workplace.prepare(content("text", TEXTS), views=VIEWS)
    workplace.drive("--limit", "10")
    assert "input.limit: 10 -> 20" in workplace.drive("--limit", "20", status=2).err
    assert "input.limit: 10 -> not set" in workplace.drive(status=2).err
    workplace.drive("--limit", "100", "--output", "all")
    assert workplace.rows("t", "all")["text"].to_pylist() == TEXTS


def test_input_that_grows_moves_the_limit(workplace):
    workplace.write("corpus/a.txt", content("text", TEXTS[:5]) + b"\n")
    workplace.write("corpus/b.txt", content("text", TEXTS[30:]))
    workplace.configure(input={"slice_bytes": 60}, views=VIEWS)
    workplace.drive("--limit", "20")
    workplace.write("corpus/a.txt", content("text", TEXTS[:9]) + b"\n")
    workplace.drive("--limit", "20")
    assert workplace.rows("t")["text"].to_pylist() == TEXTS[:9] + TEXTS[30:41]
    workplace.assert_equals_fresh("--limit", "20")
