"""Keeps a LanceDB table of one vector per line with CocoIndex: what tests/benchmarks/nights.py compares with.

    python cocoindex_lines.py MODEL FOLDER

Reads FOLDER/corpus, writes FOLDER/lancedb; CocoIndex's own database is FOLDER/state. As CocoIndex documents it: files
and vectors are memoized, and rows of files that are gone are deleted.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import cocoindex as coco
from cocoindex.connectors import lancedb, localfs
from cocoindex.ops.sentence_transformers import SentenceTransformerEmbedder
from cocoindex.resources.file import FileLike
from cocoindex.resources.id import IdGenerator
from numpy.typing import NDArray

MODEL, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
DATABASE = coco.ContextKey[lancedb.LanceAsyncConnection]("database")
EMBEDDER = coco.ContextKey[SentenceTransformerEmbedder]("embedder")


@dataclass
class Line:
    id: int
    file: str
    text: str
    vector: Annotated[NDArray, EMBEDDER]


@coco.lifespan
async def provide(builder: coco.EnvironmentBuilder) -> AsyncIterator[None]:
    builder.settings.db_path = FOLDER / "state"
    builder.provide(DATABASE, await lancedb.connect_async(str(FOLDER / "lancedb")))
    builder.provide(EMBEDDER, SentenceTransformerEmbedder(MODEL, device="cpu"))
    yield


@coco.fn
async def add_line(line: str, file: str, ids: IdGenerator, table: lancedb.TableTarget[Line]) -> None:
    vector = await coco.use_context(EMBEDDER).embed(line)
    table.declare_row(row=Line(await ids.next_id(line), file, line, vector))


@coco.fn(memo=True)
async def add_file(file: FileLike, table: lancedb.TableTarget[Line]) -> None:
    lines = (await file.read_text()).splitlines()
    await coco.map(add_line, lines, str(file.file_path.path), IdGenerator(), table)


@coco.fn
async def add_files() -> None:
    schema = await lancedb.TableSchema.from_class(Line, primary_key=["id"])
    table = await lancedb.mount_table_target(DATABASE, "lines", schema)
    await coco.mount_each(add_file, localfs.walk_dir(FOLDER / "corpus", recursive=True).items(), table)


coco.App(coco.AppConfig(name="lines"), add_files).update_blocking()
