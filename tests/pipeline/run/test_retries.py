"""What is executed again (a retried bundle, another attempt) finds what is committed, and encodes nothing twice."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from corpora import random_lines
from workplace import THREE_VIEWS, Workplace

import layerbeam
from layerbeam.pipeline.run import engines
from layerbeam.pipeline.run.build import build
from layerbeam.transforms import encode, read
from layerbeam.transforms.flow.commits import name_of
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.slice import slices


@pytest.fixture
def encoded(workplace: Workplace, encoded: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The blocks that are encoded, next to an undisturbed run."""
    workplace.finished({"a.txt": "\n".join(random_lines(60))}, views=THREE_VIEWS, input={"slice_bytes": 700})
    (workplace.folder / "out").rename("undisturbed")
    encoded.clear()
    return encoded


def counts(workplace: Workplace, number: int) -> dict[str, int]:
    return json.loads((workplace.folder / f"out/_runs/{number}.json").read_text())["counts"]


def blocks_of(workplace: Workplace) -> int:
    return len(list(layerbeam.open_run(workplace.folder / "undisturbed").blocks()))


def test_every_bundle_executed_twice_encodes_once(workplace, encoded):
    """The last step too: the output is finalized twice."""
    workplace.run("--direct_runner_bundle_repeat=1")
    assert blocks_of(workplace) > 5
    assert len(encoded) == len(set(encoded)) == blocks_of(workplace)
    assert workplace.files() == workplace.files("undisturbed")


@pytest.fixture(params=["gz", "parquet"])
def one_slice(request: pytest.FixtureRequest, workplace: Workplace, encoded: list[tuple[str, int]]) -> None:
    """What only one thread can read, and an undisturbed run of it with one worker."""
    lines = random_lines(60)
    (workplace.folder / "corpus/a.txt").unlink()
    shutil.rmtree("undisturbed")
    if request.param == "gz":
        workplace.write("corpus/a.txt.gz", gzip.compress("\n".join(lines).encode()))
    else:
        pq.write_table(pa.table({"text": lines}), workplace.folder / "corpus/a.parquet", row_group_size=1000)
    workplace.drive("--output", "undisturbed")
    encoded.clear()


def test_workers_share_what_each_of_them_reads_alone(workplace, encoded, one_slice, monkeypatch):
    threads = set()
    real = encode.encode_block

    def encode_block(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return real(*args)

    monkeypatch.setattr(encode, "encode_block", encode_block)
    workplace.run("--workers", "3")
    assert len(threads) > 1
    assert len(encoded) == len(set(encoded)) == blocks_of(workplace) > 5
    assert workplace.files() == workplace.files("undisturbed")


def test_unsplittable_file_on_remote_runner_is_encoded_once(workplace, encoded, one_slice, monkeypatch):
    """Also if every bundle is executed twice: the second time each reader finds its blocks committed."""
    readers = []
    real = read.read_blocks

    def read_blocks(slice_: Any, *args: Any, **settings: Any) -> Any:
        readers.append(slice_.reader)
        return real(slice_, *args, **settings)

    def build_remote(*args: Any, num_readers: int, spread: bool, **settings: Any) -> Any:
        return build(*args, **settings)

    monkeypatch.setattr(slices, "_BLOCKS_OF_READER", 4)
    monkeypatch.setattr(read, "read_blocks", read_blocks)
    monkeypatch.setattr(engines, "build", build_remote)
    workplace.run("--direct_runner_bundle_repeat=1")
    assert len(set(readers)) > 1
    assert len(encoded) == len(set(encoded)) == blocks_of(workplace) > 5
    assert workplace.files() == workplace.files("undisturbed")


def test_a_pipeline_of_the_transforms_finds_what_another_has_committed(workplace, hf_uncased):
    path = workplace.write("corpus/a.txt", "\n".join(random_lines(60)))
    encoder = layerbeam.open_encoder(hf_uncased)
    views = (layerbeam.ViewSpec(name="v", level="text", layers=(1,), hidden_size=encoder.hidden_size),)
    output = layerbeam.Output(str(workplace.folder / "out"), fingerprint="f")
    limits = layerbeam.BlockLimits(700, 1 << 30, 1 << 30, 128)

    def committed_by(done: str) -> list[str]:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            slices, _ = pipeline | layerbeam.FindFiles(str(path)) | layerbeam.SliceFiles(limits)
            blocks, _ = slices | beam.Reshuffle() | layerbeam.ReadBlocks(limits, output=output)
            tokens = blocks | layerbeam.TokenizeBlocks(encoder, views=views)
            vectors = tokens | layerbeam.EncodeBlocks(encoder, views=views)
            commits = vectors | layerbeam.WriteBlocks(output, encoder, views=views)
            _ = commits | beam.Map(lambda commit: commit.name) | beam.io.WriteToText(done)
        return sorted(line for part in workplace.folder.glob(f"{done}*") for line in part.read_text().splitlines())

    names = committed_by("first")
    files = workplace.files()
    assert [f"_commits/{name}.json" for name in names] == [name for name in files if name.startswith("_commits/")]
    assert len(names) > 5
    assert committed_by("second") == []
    assert workplace.files() == files


def test_a_bundle_that_dies_in_the_middle_is_resumed(workplace, encoded, monkeypatch):
    """The third block's worker dies after all its parts, before its commit: that block is encoded twice, no other."""
    raised = []

    real = BlockStore.put

    def put(self: Any, commit: Any) -> Any:
        if len(encoded) == 3 and not raised:
            raised.append(commit.name)
            raise OSError("the worker dies")
        return real(self, commit)

    monkeypatch.setattr(BlockStore, "put", put)
    workplace.run("--workers", "1", status=1)
    committed = len(list((workplace.folder / "out/_commits").iterdir()))
    assert (committed, len(encoded)) == (2, 3)
    workplace.run()
    assert len(encoded) == blocks_of(workplace) + 1
    assert len(set(encoded)) == blocks_of(workplace)
    assert workplace.files() == workplace.files("undisturbed")


@pytest.mark.parametrize("attempt", [2, 7])
def test_blocks_committed_while_the_run_is_active_are_found(workplace, encoded, monkeypatch, attempt):
    """As by a bundle that was retried elsewhere: `find` did not know them."""
    shutil.copytree("undisturbed", "out")
    commits = [json.loads(line) for line in (workplace.folder / "out/parts.jsonl").read_text().splitlines()]
    for name in ("_SUCCESS", "parts.jsonl", "manifest.json"):
        (workplace.folder / "out" / name).unlink()
    given = iter(commits[:3])

    real = BlockStore.find

    def find(self: Any, content_index: Any, files: Any) -> Any:
        if next(given, None) is not None:
            mine = next(commit for commit in commits if commit["name"] == name_of(files))
            workplace.write(f"out/_commits/{mine['name']}.json", json.dumps(mine | {"attempt": attempt}))
        return real(self, content_index, files)

    monkeypatch.setattr(BlockStore, "find", find)
    done = workplace.drive()
    assert len(encoded) == blocks_of(workplace) - 3
    name = "blocks_found_own_attempt" if attempt == 2 else "blocks_found_other_attempt"
    assert {key: value for key, value in counts(workplace, 2).items() if key.startswith("blocks_found")} == {name: 3}
    by = "this run" if attempt == 2 else "another run"
    assert f"not encoded again: 3 blocks that {by} had written already\n" in done.out
    assert "attempt" not in (workplace.folder / "out/parts.jsonl").read_text()
    assert workplace.files() == workplace.files("undisturbed")
