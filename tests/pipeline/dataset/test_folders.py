"""Several output folders as one run: `open_run([a, b])`, and commands with several folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from corpora import random_lines
from object_store import upload

import layerbeam
from layerbeam.pipeline.dataset.reader import Run

VIEWS = {
    "texts": {"level": "text", "layers": [-1]},
    "words": {"level": "word", "layers": [1, 2], "dtype": "int8"},
    "types": {"level": "word_type", "layers": [1]},
    "records": {"level": "record", "layers": [2], "format": "tfrecord"},
    "lists": {"level": "text", "layers": [2], "pooling": "none", "dtype": "float16"},
}
LINES = [line for line in random_lines(120) if line.strip()]
# The shards depend on the path of a test's folder: of so many files each has some.
CORPUS = {f"{number}.txt": "\n".join(LINES[2 * number :][:2]) for number in range(48)}
SHARDS = 3


@pytest.fixture
def shards(workplace) -> list[str]:
    """The folders of three shards, in `out`, and all files in `whole`."""
    kept = workplace.kept / "folders"
    if not kept.exists():
        workplace.prepare(CORPUS, views=VIEWS, input={"id_field": None})
        workplace.drive("--output", "whole")
        for number in range(1, SHARDS + 1):
            workplace.drive("--shard", f"{number}/{SHARDS}", "--output", f"out/{number}")
        shutil.copytree(workplace.folder, kept)
    shutil.copytree(kept, workplace.folder, dirs_exist_ok=True)
    return [f"out/{number}" for number in range(1, SHARDS + 1)]


def changed(workplace, **sections: Any) -> None:
    settings = yaml.safe_load((workplace.folder / "c.yaml").read_text())
    for section, values in sections.items():
        settings[section] |= values
    (workplace.folder / "c.yaml").write_text(yaml.safe_dump(settings))


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_the_rows_of_all_shards_are_those_of_one_run(shards):
    run, whole = layerbeam.open_run(shards), layerbeam.open_run("whole")
    assert run.manifest["fingerprint"] == whole.manifest["fingerprint"]
    assert run.manifest["counts"] == whole.manifest["counts"]
    for name in ("texts", "words", "lists"):
        table = run[name].to_arrow()
        assert table.schema == run[name].schema
        assert table.column_names == ["folder", *whole[name].schema.names]
        assert len(table) == len(run[name]) == len(whole[name]) > 0
        assert sorted_rows(table.drop_columns("folder")) == sorted_rows(whole[name].to_arrow())
        own = [layerbeam.open_run(folder)[name].to_arrow() for folder in shards]
        assert table.drop_columns("folder") == pa.concat_tables(own)
        folders = [folder for folder, one in zip(shards, own, strict=True) for _ in range(len(one))]
        assert table["folder"].to_pylist() == folders


def test_every_way_to_read_has_the_folder(shards):
    run = layerbeam.open_run(shards)
    view, vectors = run["texts"], run["texts"].to_numpy("layer_3")
    table = view.to_arrow()
    assert np.array_equal(vectors, np.array(table["layer_3"].to_pylist(), np.float32))
    assert pa.Table.from_batches(view.iter_batches(batch_rows=3)) == table
    assert list(view.to_numpy("folder")) == table["folder"].to_pylist()
    for columns in (["folder"], ["line", "folder"], ["layer_3", "folder"], ["text"]):
        assert view.to_arrow(columns) == table.select(columns)
        assert pa.Table.from_batches(view.iter_batches(columns)) == table.select(columns)
    assert run["words"].to_arrow(["folder", "layer_1"], codes=True).column_names == ["folder", "layer_1"]
    part = next(part for part in view.parts if part.rows > 1)
    assert view.read(part, ["folder", "text"], np.array([1])).num_rows == 1
    batch = next(view.batches(5, columns=["folder"], shuffle=False))
    assert list(batch["folder"]) == table["folder"].to_pylist()[:5]
    records = run["records"]
    batches = list(records.batches(4, columns=["folder", "line"], shuffle=False))
    assert np.concatenate([batch["folder"] for batch in batches]).tolist() == [
        folder for folder in shards for _ in range(len(layerbeam.open_run(folder)["records"]))
    ]
    texts = list(run["words"].to_tf_dataset(["folder", "line", "word"]).as_numpy_iterator())
    assert {text["folder"].decode() for text in texts} == set(table["folder"].to_pylist())
    index = json.loads(view.export("arrays", columns=["layer_3"]).read_text())
    assert np.array_equal(np.load(f"arrays/{index['shards'][0]['files']['layer_3']}"), vectors)


def test_a_dataset_knows_the_folder(shards):
    rows = layerbeam.open_run(shards)["texts"].dataset()
    table = layerbeam.open_run(shards)["texts"].to_arrow()
    assert rows.to_table() == table
    assert rows.to_table(filter=pc.field("folder") == "out/2") == table.filter(pc.equal(table["folder"], "out/2"))
    counted = duckdb.sql("SELECT folder, count(*) FROM rows GROUP BY folder ORDER BY folder").fetchall()
    expected = table.group_by("folder").aggregate([([], "count_all")]).sort_by("folder")
    assert counted == list(zip(*(column.to_pylist() for column in expected.columns), strict=True))


def test_nearest_rows_are_those_of_one_run(shards):
    view, whole = layerbeam.open_run(shards)["texts"], layerbeam.open_run("whole")["texts"]
    query = whole.to_numpy("layer_3")[:2]
    found, expected = view.nearest(query, 4), whole.nearest(query, 4)
    assert found["score"] == expected["score"]
    assert found["text"] == expected["text"]
    only = view.nearest(query, 100, where=pc.field("folder") == "out/3", columns=["folder", "text"])
    assert set(only["folder"].to_pylist()) == {"out/3"}
    of_folder = layerbeam.open_run("out/3")["texts"].nearest(query, 100, columns=["text"])
    assert only["text"] == of_folder["text"]
    records = layerbeam.open_run(shards)["records"]
    kept = records.nearest(
        records.nearest(np.ones(64), 1, columns=[])["score"].to_numpy()[:1].repeat(64),
        3,
        where=pc.field("folder") != "out/1",
    )
    assert "out/1" not in kept["folder"].to_pylist()


@pytest.mark.parametrize(
    "given", ["out/*", "./out//[123]", ["out/*"], [Path("out/1"), "out/2/", "./out/3"], "absolute"]
)
def test_globs_and_spellings(shards, given, tmp_path):
    (tmp_path / "out/notes").mkdir()  # holds no run
    (tmp_path / "out/log.txt").write_text("")
    base = str(tmp_path / "out") if given == "absolute" else "out"
    run = layerbeam.open_run(f"{base}/*" if given == "absolute" else given)
    assert list(run.members) == [f"{base}/{number}" for number in (1, 2, 3)]
    assert run["texts"].to_arrow(["file", "text"]) == layerbeam.open_run(shards)["texts"].to_arrow(["file", "text"])


def test_folders_in_different_places(shards, tmp_path):
    """In the order given; numbers in the names of a glob count as numbers."""
    shutil.move("out/2", "other")
    run = layerbeam.open_run(["other", str(tmp_path / "out/1"), "out/3"])
    assert run["texts"].to_arrow(["folder"])["folder"].unique().to_pylist() == [
        "other",
        str(tmp_path / "out/1"),
        "out/3",
    ]
    for name in ("1", "3"):
        shutil.move(f"out/{name}", f"out/shard-{10 if name == '3' else 9}")
    assert list(layerbeam.open_run(["out/shard-*", "other"]).members) == ["out/shard-9", "out/shard-10", "other"]
    one = layerbeam.open_run("out/shard-9*", allow_incomplete=True)
    assert one["texts"].schema.names[0] == "folder"
    assert not one.manifest["complete"]


def test_folders_in_a_store(shards, memory, tmp_path):
    for number in (1, 2):
        upload(tmp_path / f"out/{number}", f"memory://bucket/runs/{number}")
    paths = ["memory://bucket/runs/1", "memory://bucket/runs/2/", "out/3"]
    expected = layerbeam.open_run(shards)["texts"].to_arrow().drop_columns("folder")
    run = layerbeam.open_run(paths)
    assert run["texts"].to_arrow().drop_columns("folder") == expected
    assert list(run.members) == ["memory://bucket/runs/1", "memory://bucket/runs/2", "out/3"]
    stored = layerbeam.open_run("memory://bucket/runs/*", allow_incomplete=True)
    assert list(stored.members) == ["memory://bucket/runs/1", "memory://bucket/runs/2"]
    assert stored["texts"].dataset().to_table() == stored["texts"].to_arrow()


def test_facts_of_all_folders(shards):
    run, whole = layerbeam.open_run(shards), layerbeam.open_run("whole")
    assert run.manifest["complete"]
    assert run.manifest["counts"]["records_read"] == whole.manifest["counts"]["records_read"]
    summary, of_whole = run.summary(), whole.summary()
    assert (summary.state, summary.counts["embedded"]) == ("complete", of_whole.counts["embedded"])
    assert summary.views["texts"]["rows"] == of_whole.views["texts"]["rows"]
    assert summary.inputs["files"] == 48
    assert sorted(entry["path"] for entry in run.inputs()) == [entry["path"] for entry in whole.inputs()]
    assert run.check_files() == []
    blocks = list(run.blocks())
    assert sum(block.counts["embedded"] for block in blocks) == of_whole.counts["embedded"]
    block = next(block for block in blocks if block.parts["texts"].rows)
    part = block.parts["texts"]
    assert run.block_of(part) == block
    assert run.same_texts(part, "words") == block.parts["words"]
    assert run.check_part(part) is None
    texts = run["texts"].read(part, ["file", "line", "text"]).to_pylist()
    records = run.record_texts(block)
    assert {(row["file"], row["line"]): row["text"] for row in texts} == records
    Path("out").joinpath(part.path).unlink()
    assert run.check_files() == [f"out/{part.path.split('/')[0]}: {part.path.split('/', 1)[1]} is missing"]
    assert "Run" in type(run).__name__
    assert isinstance(run, Run)


@pytest.mark.parametrize(
    ("sections", "lines"),
    [
        ({"encoder": {"max_seq_length": 9}}, ["  encoder.max_seq_length: 128 -> 9"]),
        ({"views": {"more": {"level": "text", "layers": [0]}}}, ["  views.more: only other has it"]),
        ({"views": {"texts": {"level": "text", "layers": [2]}}}, ["  views.texts.layers: [3] -> [2]"]),
        ({"input": {"unit": "sentence"}}, ["  input.unit: record -> sentence"]),
    ],
)
def test_other_settings_are_named(shards, workplace, sections, lines):
    changed(workplace, **sections)
    workplace.drive("--output", "other", "--input", "corpus/0.txt", arithmetic=True)
    with pytest.raises(ValueError, match="other: its settings are not those of whole, so that rows of both") as raised:
        layerbeam.open_run(["whole", "other"])
    assert set(lines) <= set(str(raised.value).splitlines())


def test_shards_that_do_not_belong_together(shards, workplace):
    with pytest.raises(ValueError, match="1 of 3 shards are missing: 2; name their folders too"):
        layerbeam.open_run(["out/1", "out/3"])
    run = layerbeam.open_run(["out/1", "out/3"], allow_incomplete=True)
    assert run.manifest["problems"] == ["1 of 3 shards are missing: 2"]
    assert run.summary().state == "incomplete"
    with pytest.raises(ValueError, match=r"out/2: is given twice"):
        layerbeam.open_run(["out/2", "./out/2"])
    shutil.copytree("out/2", "copy")
    with pytest.raises(ValueError, match="copy: is shard 2/3, and so is out/2: rows would be there twice"):
        layerbeam.open_run(["out/*", "copy"])
    with pytest.raises(ValueError, match=r"different divisions.*out/1 of 3 shards, whole of no shards"):
        layerbeam.open_run(["out/1", "whole"])
    workplace.drive("--shard", "1/2", "--output", "half")
    with pytest.raises(ValueError, match=r"different divisions.*out/1 of 3 shards, half of 2 shards"):
        layerbeam.open_run(["out/1", "half"])


def test_no_folder_and_no_run(shards):
    with pytest.raises(FileNotFoundError, match=r"nothing/\*: matches no folder with a layerbeam run"):
        layerbeam.open_run("nothing/*")
    with pytest.raises(FileNotFoundError, match="no output folder is given"):
        layerbeam.open_run([])
    with pytest.raises(FileNotFoundError, match="corpus: holds no layerbeam run"):
        layerbeam.open_run([*shards, "corpus"])
    Path("out/2/_SUCCESS").unlink()
    with pytest.raises(ValueError, match="out/2: the run"):
        layerbeam.open_run(shards)


def test_a_kept_field_called_folder(workplace):
    workplace.prepare(
        {"a.jsonl": '{"text": "x", "folder": "of mine"}\n'},
        views={"texts": VIEWS["texts"]},
        input={"keep_fields": {"folder": "string"}},
    )
    for name in ("a", "b"):
        workplace.drive("--output", name, arithmetic=True)
    with pytest.raises(ValueError, match="view texts has a column folder of its own"):
        layerbeam.open_run(["a", "b"])
    assert workplace._call("search", "a", "--like", "corpus/a.jsonl:0", status=0).out
    assert layerbeam.open_run("a")["texts"].to_arrow(["folder"])["folder"].to_pylist() == ["of mine"]


def test_changes_of_all_folders(workplace):
    """Not in a copy of a run: the shard of a file depends on its absolute path."""
    workplace.prepare(CORPUS, views={"texts": VIEWS["texts"]})
    shards = [f"out/{number}" for number in range(1, SHARDS + 1)]
    for number, folder in enumerate(shards, 1):
        workplace.drive("--shard", f"{number}/{SHARDS}", "--output", folder, arithmetic=True)
    run = layerbeam.open_run(shards)
    first = run.changes("texts", since=0)
    assert pa.Table.from_batches(first.came()) == run["texts"].to_arrow()
    assert json.loads(json.dumps(first.until)) == first.until
    assert list(first.until) == shards
    edited = next(iter(run["texts"].to_arrow(["folder", "file"]).to_pylist()))
    workplace.write(edited["file"], "an edited line\n")
    number = edited["folder"].removeprefix("out/")
    workplace.drive("--shard", f"{number}/{SHARDS}", "--output", edited["folder"], arithmetic=True)
    run = layerbeam.open_run(shards)
    later = run.changes("texts", since=first.until)
    came, went = pa.Table.from_batches(later.came(["folder", "text"])), list(later.went())
    assert came.to_pylist() == [{"folder": edited["folder"], "text": "an edited line"}]
    assert {(row["folder"], row["file"]) for batch in went for row in batch.to_pylist()} == {tuple(edited.values())}
    assert list(later.moved()) == []
    assert list(run.changes("texts", since=later.until).came()) == []
    assert list(run.changes("texts", since={shards[0]: later.until[shards[0]]}).until) == shards
    with pytest.raises(ValueError, match="no mapping of folders to positions"):
        run.changes("texts", since=later.until[shards[0]])
    with pytest.raises(ValueError, match="names elsewhere, which is not among the folders now"):
        run.changes("texts", since={"elsewhere": "1-0123456789abcdef"})
    shown = workplace._call("show", *shards, "--changes", "--json", status=0).out
    changes = [json.loads(line) for line in shown.splitlines()]
    assert {(edited["folder"], "came"), (edited["folder"], "went")} <= {(c["folder"], c["change"]) for c in changes}
    assert (
        f"{edited['folder']}: run 2 since run 1: lines: 1 came"
        in workplace._call("show", *shards, "--changes", status=0).out
    )


def test_search_in_all_folders(shards, workplace):
    text, place = LINES[0], "corpus/0.txt:0"
    done = json.loads(workplace._call("search", *shards, "--text", text, "--view", "texts", "--json", status=0).out)
    best = done["queries"][0]["nearest"][0]
    assert (best["text"], best["file"], best["folder"] in shards) == (text, "corpus/0.txt", True)
    whole = json.loads(workplace._call("search", "whole", "--like", place, "--view", "texts", "--json", status=0).out)
    like = json.loads(workplace._call("search", "out/*", "--like", place, "--view", "texts", "--json", status=0).out)
    assert [row["text"] for row in like["queries"][0]["nearest"]] == [
        row["text"] for row in whole["queries"][0]["nearest"]
    ]
    assert [row["text"] for row in like["queries"][0]["rows"]] == [text]
    printed = workplace._call(
        "search", "out/*", "--like", place, "--view", "texts", "--where", "folder == 'out/1'", status=0
    ).out
    places = [
        line.split()[1] for line in printed.splitlines()[3:] if line.strip() and not line.lstrip().startswith("query")
    ]
    assert set(places) == {"out/1:"}
    word = json.loads(
        workplace._call(
            "search",
            "out/*",
            "--like",
            f"{place}:{text.split()[0]}",
            "--view",
            "words",
            "--layer",
            "1",
            "--json",
            status=0,
        ).out
    )
    assert all(row["text"] for row in word["queries"][0]["nearest"])


def test_a_place_in_two_folders(workplace, tmp_path):
    """Two corpora, whose files have the same names: a row's text is that of its own folder."""
    for name, text in (("a", "the river bank\nmoney"), ("b", "an unbelievable end\nwater")):
        (tmp_path / name).mkdir()
        workplace.prepare(text, views={"texts": VIEWS["texts"], "words": {"level": "word", "layers": [1]}})
        workplace.drive("--output", f"{name}/out")
    done = workplace._call("search", "a/out", "b/out", "--like", "corpus/a.txt:0", "--view", "texts", status=2)
    assert "corpus/a.txt is in several folders, a/out, b/out; search one of them for it first" in done.err
    found = json.loads(
        workplace._call("search", "a/out", "b/out", "--text", "water", "--view", "texts", "--json", status=0).out
    )
    rows = found["queries"][0]["nearest"]
    assert {(row["folder"], row["line"]): row["text"] for row in rows} == {
        ("a/out", 0): "the river bank",
        ("a/out", 1): "money",
        ("b/out", 0): "an unbelievable end",
        ("b/out", 1): "water",
    }
    view = layerbeam.open_run(["a/out", "b/out"])["words"]
    assert len({tuple(row.values()) for row in view.to_arrow(["folder", "file", "line", "start"]).to_pylist()}) == len(
        view
    )


def test_show_and_report_of_all_folders(shards, workplace):
    done = workplace._call("show", *shards, status=0)
    assert "out: complete" in done.out
    assert "input     48 files" in done.out
    assert json.loads(workplace._call("show", "out/*", "--json", status=0).out)["views"]["texts"]["rows"] == 96
    assert workplace._call("show", "out/*", "--check", status=0)
    Path("out/2/_SUCCESS").unlink()
    assert workplace._call("show", "out/*", "--check", status=3)
    pytest.importorskip("sklearn")
    assert (
        "--to is missing: name the file for the page of several folders"
        in workplace._call("report", *shards, status=2).err
    )
    workplace._call(
        "report", *shards, "--to", "page.html", "--color-by", "folder", "--word", LINES[0].split()[0], status=0
    )
    page = Path("page.html").read_text()
    assert "out/2" in page
