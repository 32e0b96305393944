"""The end of a job in whose folder a newer attempt has started: it leaves the folder to one that is active, only."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil

import apache_beam as beam
import pytest
from workplace import THREE_VIEWS

import layerbeam
from layerbeam.pipeline.config import load
from layerbeam.pipeline.config.job import resolve
from layerbeam.pipeline.errors import BusyError
from layerbeam.pipeline.output import word_types
from layerbeam.pipeline.output.finish import RunEnd
from layerbeam.pipeline.output.run_log import RunLog, load_runs
from layerbeam.pipeline.run.build import build
from layerbeam.pipeline.run.engines import local_runner

NUMBER = 3


@pytest.fixture
def pipeline(workplace):
    """Runs the job of attempt 3, submitted to an engine long ago, to its end."""
    workplace.prepare("the river\nits bank\n" * 40, views=THREE_VIEWS, input={"slice_bytes": 200, "format": "text"})
    job = resolve(load.load("c.yaml"))

    def run() -> None:
        record(job, NUMBER, "submitted")
        local = local_runner([], workers=1)
        with beam.Pipeline(runner=local.runner, options=local.options) as root:
            build(root, job, num_threads=1, run_number=NUMBER)

    run.job = job
    return run


def record(job, number: int, state: str) -> None:
    RunLog.begin("out", job.run_identity, run=number, views={}, inputs={}, runner="FlinkRunner").submit(job=None)
    path = f"out/_runs/{number}.json"
    with open(path) as file:
        written = json.load(file)
    with open(path, "w") as file:
        json.dump(written | {"state": state}, file)


def states() -> dict[int, str]:
    return {run["run"]: run["state"] for run in load_runs("out")}


def test_it_leaves_the_folder_to_a_newer_attempt_at_work(pipeline, workplace):
    record(pipeline.job, 4, "submitted")
    workplace.write("out/tokens/newer-0123456789abcdef-000000000000-0123456789abcdef.parquet", b"being written")
    pipeline()
    assert states() == {3: "superseded", 4: "submitted"}
    assert not {"_SUCCESS", "manifest.json", "parts.jsonl"} & set(os.listdir("out"))
    assert len(os.listdir("out/_commits")) > 1
    assert (workplace.folder / "out/tokens/newer-0123456789abcdef-000000000000-0123456789abcdef.parquet").exists()
    with pytest.raises(BusyError, match="out: a newer run is active in this folder, and completes it"):
        RunLog("out", {"run": NUMBER}).end_measured(None)
    assert states()[NUMBER] == "superseded"


def test_it_leaves_the_folder_to_one_that_starts_while_tables_are_made(pipeline, monkeypatch):
    def write(*arguments, write=word_types.write_word_types):
        record(pipeline.job, 4, "submitted")
        return write(*arguments)

    monkeypatch.setattr(word_types, "write_word_types", write)
    pipeline()
    assert states() == {3: "superseded", 4: "submitted"}
    assert not {"_SUCCESS", "manifest.json"} & set(os.listdir("out"))
    assert len(os.listdir("out/_commits")) > 1


@pytest.mark.parametrize("sees_the_newer_one", [False, True])
def test_tables_of_an_earlier_attempt_that_come_late_replace_none(pipeline, monkeypatch, sees_the_newer_one):
    """A job that was cancelled, and goes on when the next attempt has made its tables and not ended yet."""

    def finish(end, *arguments, finish=RunEnd.finish_compacted):
        shutil.copy(f"out/_runs/{NUMBER}.sums.jsonl", "out/_runs/2.sums.jsonl")
        late = dataclasses.replace(end, run_number=2).tables
        (index,) = [number for number, view in enumerate(end.views) if view.aggregates]
        with open("out/_runs/2.sums.jsonl") as file:
            _, sample = late.sample(index, [f"out/{json.loads(line)[1]}" for line in file])
        names = [late.make(*range_) for range_ in late.cut(index, word_types.merge_samples([sample]))]
        assert names == ["word_types-types-00000"]
        return finish(end, *arguments)

    monkeypatch.setattr(RunEnd, "finish_compacted", finish)
    if not sees_the_newer_one:
        monkeypatch.setattr(word_types, "newer_attempt", lambda *_: None)
    pipeline()
    assert states() == {NUMBER: "done"}
    tables = layerbeam.open_run("out")["types"]
    assert (len(tables.parts), len(tables)) == (1, 4)


@pytest.mark.parametrize("state", ["cancelled", "failed", "lost", "interrupted"])
def test_it_completes_the_folder_if_the_newer_attempt_has_ended_without_result(pipeline, workplace, state):
    record(pipeline.job, 4, state)
    pipeline()
    assert states() == {3: "done", 4: state}
    workplace.verify(status=0)
