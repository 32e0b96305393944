"""Runs over datasets of Hugging Face's Hub, from a stand-in on a loopback address."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from layerbeam.pipeline.output.inputs import find_inputs
from layerbeam.transforms import storage

VIEWS = {"texts": {"level": "text", "layers": [-1]}}


def parquet(*texts: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": list(texts), "copy": list(texts)}), file)
    return file.getvalue()


def files_read(hub) -> set[str]:
    """The files of which bytes were asked for since the last call."""
    calls, hub.calls[:] = list(hub.calls), []
    return {call.partition("/resolve/")[2].partition("/")[2] for call in calls if "/resolve/" in call}


def lines(workplace) -> Mapping[tuple[str, int], str]:
    rows = workplace.rows("texts").to_pylist()
    return {(row["file"].removeprefix("hf://datasets/org/corpus@"), row["line"]): row["copy"] for row in rows}


def test_a_branch_is_pinned_and_what_has_not_changed_stays(workplace, hub):
    corpus = hub.dataset("org/corpus")
    a, b = parquet("A letter.", "Another letter."), parquet("The third one.")
    first = corpus.commit({"README.md": b"1", "data/a.parquet": a, "data/b.parquet": b})
    given = {"files": "hf://datasets/org/corpus/data/*.parquet", "keep_fields": {"copy": "string"}}
    workplace.configure(input=given, views=VIEWS)
    workplace.drive()
    assert files_read(hub) == {"data/a.parquet", "data/b.parquet"}
    expected = {
        (f"{first}/data/a.parquet", 0): "A letter.",
        (f"{first}/data/a.parquet", 1): "Another letter.",
        (f"{first}/data/b.parquet", 0): "The third one.",
    }
    assert lines(workplace) == expected
    pinned = f"hf://datasets/org/corpus@{first}/data/*.parquet"
    assert workplace.manifest()["settings"]["input"]["files"] == [pinned]
    assert "nothing to do" in workplace.drive().err
    assert files_read(hub) == set()

    second = corpus.commit(
        {"README.md": b"2", "data/a.parquet": a, "data/b.parquet": b, "data/c.parquet": parquet("New.")}
    )
    workplace.drive()
    assert files_read(hub) == {"data/c.parquet"}
    expected[f"{second}/data/c.parquet", 0] = "New."
    assert lines(workplace) == expected

    third = corpus.commit(
        {"data/a.parquet": a, "data/b.parquet": parquet("Changed."), "data/c.parquet": parquet("New.")}
    )
    files_read(hub)
    done = workplace.drive("--set", "input.max_missing=0", status=3)
    assert files_read(hub) == {"data/b.parquet", "data/c.parquet"}  # the last file is looked at for its fields
    assert f"{first}/data/b.parquet: is missing; its rows stay" in done.err + done.out
    workplace.drive("--prune-missing")
    del expected[f"{first}/data/b.parquet", 0]
    expected[f"{third}/data/b.parquet", 0] = "Changed."
    assert lines(workplace) == expected
    workplace.verify()


def test_a_folder_of_a_tag(hub):
    corpus = hub.dataset("org/corpus")
    tag = corpus.commit({"data/a.txt": b"old", "data/b.md": b"not read", "data/more/c.txt": b"deeper"}, branch="v1")
    corpus.commit({"data/a.txt": b"newer"})
    (found,) = find_inputs([storage.pin("hf://datasets/org/corpus@v1/data/")], "out")
    assert (found.path, found.size) == (f"hf://datasets/org/corpus@{tag}/data/a.txt", 3)


def test_what_cannot_be_read_is_a_wrong_setting(workplace, hub):
    hub.dataset("org/corpus").commit({"a.txt": b"text"})
    for path, reason in {
        "hf://datasets/org/none/*": f"there is no {hub.url}/datasets/org/none for this token; check the name",
        "hf://datasets/org/corpus@v9/*": f"{hub.url}/datasets/org/corpus has no branch, tag or commit v9",
        "hf://datasets/org/corpus/*.csv": "no file matches hf://datasets/org/corpus@",
        "hf://org/corpus/*.csv": "is not of the form hf://datasets/org/name@revision/path",
    }.items():
        workplace.configure(input={"files": path}, views=VIEWS)
        done = workplace.drive(status=2)
        assert "input.files: " in done.err
        assert reason in done.err


def test_output_into_the_hub(workplace):
    workplace.prepare("text", views=VIEWS, output={"path": "hf://datasets/org/out"})
    assert "output.path: hf://datasets/org/out: the Hub is not written to by a run" in workplace.drive(status=2).err
