"""Runs with paths on gs://, through Google's own client, against a server on a loopback address."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from repository import DATA
from vector_tables import a_view, in_parts, random_vectors
from workplace import SMALL_BLOCKS
from written_run import write_run

import layerbeam
from layerbeam.transforms import storage

google_cloud = pytest.importorskip("google_cloud", reason="the extra gcp is not installed: make test-dataflow")


@pytest.fixture
def lines(workplace, google) -> list[str]:
    """A corpus of two files, local and under gs://in, that gives several blocks; one line is invalid."""
    lines = random_lines(120)
    files = {"a.txt": "\n".join(lines[:80]).encode() + b"\n\xff\n", "b.txt": "\n".join(lines[80:]).encode()}
    for name, data in files.items():
        workplace.write(f"corpus/{name}", data)
        google.put(f"gs://in/corpus/{name}", data)
    workplace.configure(**SMALL_BLOCKS)
    return lines


def without_run_records(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Without the records of single runs, which contain times."""
    return {name: data for name, data in tree.items() if not name.startswith("_runs/")}


def test_run_on_gs_writes_files_of_local_run(workplace, google, lines):
    workplace.run()
    local = {name: (workplace.folder / "out" / name).read_bytes() for name in workplace.files()}
    assert len([name for name in local if name.startswith("tokens/")]) == 13
    assert len([name for name in local if name.startswith("rejects/")]) == 1

    workplace.run("--output", "gs://out/vectors")
    assert without_run_records(google.tree("gs://out/vectors")) == local

    # The rows contain the input's path, so runs over different paths compare the rows.
    google.upload(DATA / "hf_uncased", "gs://in/encoder")
    on_gs = ["--input", "gs://in/corpus/*", "--output", "gs://out/v", "--set", "encoder.handle=gs://in/encoder"]
    workplace.run(*on_gs)
    stored = google.tree("gs://out/v")
    manifest, local_manifest = json.loads(stored["manifest.json"]), workplace.manifest()
    assert (manifest["fingerprint"], manifest["counts"]) == (local_manifest["fingerprint"], local_manifest["counts"])
    here = workplace.rows()
    parts = [pq.read_table(io.BytesIO(data)) for name, data in stored.items() if name.startswith("tokens/")]
    there = pa.concat_tables(parts).sort_by([(name, "ascending") for name in ("file", "line", "token_index")])
    assert there["file"].unique().to_pylist() == ["gs://in/corpus/a.txt", "gs://in/corpus/b.txt"]
    assert there.drop_columns("file").equals(here.drop_columns("file"))
    assert there.num_rows > 1000


def test_search_of_200_parts_on_gs(tmp_path, google):
    view, vectors = a_view(), random_vectors(4, 600)
    write_run(tmp_path / "out", view, in_parts(view, vectors, [3] * 200))
    google.upload(tmp_path / "out", "gs://out/v")
    read = layerbeam.open_run("gs://out/v")["texts"]
    found = read.nearest(vectors[[7, 333]], 5, layer=2, metric="dot", columns=["line"])
    scores = vectors[[7, 333]] @ vectors.T
    assert len(read.parts) == 200
    assert found["line"].to_pylist() == np.argsort(-scores, axis=1)[:, :5].ravel().tolist()


def test_next_run_completes_interrupted_run(workplace, google, lines):
    workplace.run("--output", "gs://out/v")
    before = google.tree("gs://out/v")
    again = workplace.run("--output", "gs://out/v")
    assert "nothing to do" in again.err
    lost, *others = sorted(name for name in before if name.startswith("tokens/"))
    of_others = {name: google.buckets["out"][f"v/{name}"].generation for name in others}
    del google.buckets["out"][f"v/{lost}"]
    workplace.run("--output", "gs://out/v")
    assert without_run_records(google.tree("gs://out/v")) == without_run_records(before)
    assert {name: google.buckets["out"][f"v/{name}"].generation for name in others} == of_others


def test_a_file_rewritten_in_the_same_second_is_read_again(workplace, google, s3):
    def put(label: bytes, other: bytes) -> None:
        google.put("gs://in/a.txt", label)
        google.buckets["in"]["a.txt"] = dataclasses.replace(google.buckets["in"]["a.txt"], updated=1_700_000_000.0)
        s3.objects["b.txt"] = (other, 1_700_000_000.0)

    arguments = ["--input", "gs://in/a.txt", "--input", "s3://out/b.txt", *s3.options]
    workplace.configure(views={"lines": {"level": "text", "layers": [-1]}})
    put(b"label 0\n", b"label 2\n")
    workplace.run(*arguments)
    assert "nothing to do" in workplace.run(*arguments).err
    put(b"label 1\n", b"label 3\n")
    workplace.run(*arguments)
    assert workplace.rows("lines")["text"].to_pylist() == ["label 1", "label 3"]
    assert "nothing to do" in workplace.run(*arguments).err
    versions = ["2", "6b57ae94da854850daee0a787a805ec5"]  # the second write, and the MD5 of the bytes
    assert [entry["version"] for entry in layerbeam.open_run("out").inputs()] == versions
    workplace.verify("--checksums", *s3.options)


def test_second_run_in_same_folder_is_refused(workplace, google, lines):
    elsewhere = {"run": 1, "state": "started", "owner": {"host": "another machine", "pid": 1, "token": "x"}}
    google.put("gs://out/v/_runs/1.json", json.dumps(elsewhere).encode())
    done = workplace.run("--output", "gs://out/v", status=4)
    assert done.err.startswith("layerbeam: gs://out/v: another run is active in this folder, on another machine")


def test_missing_or_forbidden_path_raises_os_error(google):
    google.put("gs://in/a", b"abc")
    google.buckets["closed"] = {}
    google.denied.add("closed")
    with pytest.raises(FileNotFoundError, match="No such object: in/b"):
        storage.read_bytes("gs://in/b")
    with pytest.raises(FileNotFoundError, match="The specified bucket does not exist"):
        storage.read_bytes("gs://nowhere/b")

    def create(path: str) -> bool:
        return storage.create_if_absent(path, b"")

    for refused in (storage.read_bytes, storage.exists, create, storage.list_folder):
        with pytest.raises(PermissionError, match="does not have storage access to closed"):
            refused("gs://closed/b")
    with pytest.raises(PermissionError), storage.write_atomically("gs://closed/b") as file:
        file.write(b"abc")
    assert storage.stat_file("gs://closed/b").problem.startswith(f"{google_cloud.ACCOUNT} does not have storage access")
    assert storage.find_files(["gs://in/c*"]) == []


def test_file_deleted_while_reading_raises_os_error(google):
    google.put("gs://in/a", b"abc" * 1000)
    with storage.open_binary("gs://in/a") as file:
        del google.buckets["in"]["a"]
        with pytest.raises(FileNotFoundError, match="No such object: in/a"):
            file.read()
