"""A run whose rows are given, written without a pipeline and an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
from corpora import UNLIMITED

import layerbeam
from layerbeam.pipeline.config.identity import RunIdentity
from layerbeam.pipeline.dataset.reader import Run
from layerbeam.pipeline.output.catalog import open_catalog
from layerbeam.pipeline.output.finish import RunEnd
from layerbeam.pipeline.output.work import PendingWork, begin_work
from layerbeam.transforms.flow.commits import Commit, FileRange, InputFile, name_of
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.write import write_part
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views.view import ViewSpec


def write_run(path: Path | str, view: ViewSpec, tables: Sequence[pa.Table]) -> Run:
    """A run of one view with these parts, opened."""
    output = Output(str(path), "0123456789abcdef")
    file = InputFile("a.txt", len(tables), 0.0)
    commits = [Commit("a", output.fingerprint, (FileRange(file, 0, 0, 0, 0, "", is_last=True),), {})]
    for number, table in enumerate(tables):
        counts = {"records_read": 1, "embedded": 1}
        own = FileRange(file, number, 1, number, number + 1, "", is_last=number == len(tables) - 1, counts=counts)
        name = name_of([own])
        parts = {view.name: write_part(output, view, name, table)}
        commits[number:] = [Commit(name, output.fingerprint, (own,), parts, attempt=1)]
    known = {"engine": "native", "do_lower_case": True, "casing_from": "a test", "vocabulary_size": 9}
    encoder = {"handle": "e", "num_hidden_layers": 3, "hidden_size": view.hidden_size} | known
    identity = {"input": {"text_field": "text", "pair_field": None}, "views": {}}
    head = RunIdentity(
        schema_version=1, fingerprint=output.fingerprint, identity=identity, encoder=encoder, settings={}, versions={}
    )
    job = SimpleNamespace(output=output, limits=UNLIMITED, records=RecordFormat())
    begin_work(job, 1, PendingWork(files=[file], catalog=open_catalog(output.path)))
    for commit in commits:
        BlockStore(output).put(commit)
    RunEnd(output, (view,), head, 1.0, "text", 1).finish()
    return layerbeam.open_run(path, allow_incomplete=not tables)
