"""Every format from a file system of Beam's, through the streams that its object stores give."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.io.filesystem import CompressionTypes, FileMetadata, FileSystem
from conftest import read_file, texts_of

from transforms.formats import RecordFormat
from transforms.read import read_block
from transforms.records import BlockLimits


class ShelfFileSystem(FileSystem):
    """An object store in this process; Beam finds it as a subclass of FileSystem."""

    stored: dict[str, bytes] = {}  # noqa: RUF012

    @classmethod
    def scheme(cls) -> str:
        return "shelf"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        folder, _, name = path.rpartition("/")
        return folder, name

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        return (self.metadata(path) for path in sorted(self.stored) if path.startswith(dir_or_prefix))

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, len(self.stored[path]), 1_700_000_000.0)

    def exists(self, path: str) -> bool:
        return path in self.stored

    def open(self, path, mime_type="application/octet-stream", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED
        return io.BufferedReader(io.BytesIO(self.stored[path]), buffer_size=64)

    def mkdirs(self, path: str) -> None:
        raise NotImplementedError

    create = copy = rename = delete = size = last_updated = mkdirs


TEXTS = [f"text number {number}" for number in range(200)]


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS}), file, row_group_size=30)
    return file.getvalue()


OBJECTS = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


@pytest.mark.parametrize(
    ("name", "data", "how"),
    [
        ("a.txt", "\n".join(TEXTS).encode(), {}),
        ("a.txt", "\n\n".join(TEXTS).encode(), {"record": "paragraph"}),
        ("a.jsonl", OBJECTS, {"format": "jsonl"}),
        ("a.jsonl.gz", gzip.compress(OBJECTS), {"format": "jsonl"}),
        ("a.parquet", parquet(), {"format": "parquet"}),
    ],
)
def test_texts_of_every_format(monkeypatch, name, data, how):
    monkeypatch.setattr(ShelfFileSystem, "stored", {f"shelf://bucket/{name}": data})
    limits = BlockLimits(200, 1 << 30, 1 << 30, 128)
    blocks = read_file(f"shelf://bucket/{name}", limits, slice_bytes=500, **how)
    assert [text for _, text in texts_of(blocks)] == TEXTS
    assert len(blocks) > 10
    assert read_block(blocks[5].block, RecordFormat(**how)).texts.equals(blocks[5].texts)
