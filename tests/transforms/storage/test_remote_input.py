"""Every format from a file system of Beam's, through the streams that its object stores give."""

from __future__ import annotations

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import read_file, texts_of

from layerbeam.transforms.read.block import read_block
from layerbeam.transforms.settings import BlockLimits, RecordFormat

TEXTS = [f"text number {number}" for number in range(200)]


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS}), file, row_group_size=30)
    return file.getvalue()


OBJECTS = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


@pytest.mark.parametrize(
    ("name", "data", "record_format"),
    [
        ("a.txt", "\n".join(TEXTS).encode(), {}),
        ("a.txt", "\n\n".join(TEXTS).encode(), {"record": "paragraph"}),
        ("a.jsonl", OBJECTS, {"format": "jsonl"}),
        ("a.jsonl.gz", gzip.compress(OBJECTS, mtime=0), {"format": "jsonl"}),
        ("a.parquet", parquet(), {"format": "parquet"}),
    ],
)
def test_texts_of_every_format(memory, name, data, record_format):
    memory.stored[f"memory://bucket/{name}"] = (1_700_000_000.0, data)
    limits = BlockLimits(200, 1 << 30, 1 << 30, 128)
    blocks = read_file(f"memory://bucket/{name}", limits, slice_bytes=500, **record_format)
    assert [text for _, text in texts_of(blocks)] == TEXTS
    assert len(blocks) > 10
    assert read_block(blocks[5].files, RecordFormat(**record_format)).texts.equals(blocks[5].texts)
