"""The index of a large run, in shards: made small here, so that a small corpus has several groups and shards."""

from __future__ import annotations

import functools
import json
import os
import shutil

import pytest
from corpora import random_lines

import layerbeam
from layerbeam.pipeline.build import build
from layerbeam.pipeline.output import finish, finish_group, groups, index
from layerbeam.pipeline.output.index import load_index
from layerbeam.pipeline.run import run

LINES = random_lines(120)
VIEWS = {
    "tokens": {"level": "token", "layers": [1]},
    "texts": {"level": "text", "layers": [2]},
    "types": {"level": "word_type", "layers": [1]},
}


@pytest.fixture
def sharded(workplace, monkeypatch):
    """Settings with which five files of 10 to 40 lines make four groups, and a group several shards of two blocks."""
    corpus = {f"{c}.txt": "\n".join(LINES[10 * n : 20 * n + 10]) + "\n" for n, c in enumerate("abcde")}
    workplace.finished(corpus, input={"slice_bytes": 800}, views=VIEWS)
    (workplace.folder / "out").rename("whole")
    make_small(monkeypatch)
    workplace.run()
    return workplace


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_GROUP_SLICES", 6)
    monkeypatch.setattr(index, "SHARD_COMMITS", 2)
    monkeypatch.setattr(finish_group, "SHARD_COMMITS", 2)


def shards(workplace, output: str = "out") -> list[str]:
    return [shard["path"] for shard in workplace.manifest(output)["index"]["parts"]]


def test_the_same_parts_in_the_same_order(sharded):
    whole, out = sharded.manifest("whole"), sharded.manifest()
    assert len(shards(sharded)) > 5
    assert len(out["index"]["inputs"]) == 4
    assert {name: out[name] for name in ("complete", "counts", "views")} == {
        name: whole[name] for name in ("complete", "counts", "views")
    }
    lines = [line for path in shards(sharded) for line in (sharded.folder / "out" / path).read_text().splitlines()]
    assert lines == (sharded.folder / "whole/parts.jsonl").read_text().splitlines()
    entries = [shard["path"] for shard in out["index"]["inputs"]]
    inputs = [json.loads(line) for path in entries for line in (sharded.folder / "out" / path).read_text().splitlines()]
    assert inputs == whole["inputs"]
    assert not os.path.exists("out/parts.jsonl")
    assert not os.path.exists("out/_commits")
    files, others = sharded.files(), sharded.files("whole")
    own = {"manifest.json", "parts.jsonl"}
    assert {name: files[name] for name in files if not name.startswith("_index") and name not in own} == {
        name: others[name] for name in others if name not in own
    }


def test_on_remote_runners_no_commit_is_left_to_the_last_step(sharded, monkeypatch):
    files, left = sharded.files(), []

    def finish_run(self, *, is_complete: bool, real=finish.Finish.finish_run) -> None:
        left.extend(os.listdir(os.path.join(self.output.path, "_commits")))
        real(self, is_complete=is_complete)

    monkeypatch.setattr(finish.Finish, "finish_run", finish_run)
    monkeypatch.setattr(run, "build", functools.partial(build, is_remote=True))
    shutil.rmtree("out")
    sharded.run()
    assert left == []
    assert sharded.files() == files
    sharded.write("corpus/bb.txt", "\n".join(LINES[:30]) + "\n")
    sharded.run()
    assert left == []
    sharded.assert_equals_fresh()


def test_readers(sharded):
    run, whole = layerbeam.open_run("out"), layerbeam.open_run("whole")
    for name in ("tokens", "texts"):
        view, other = run.view(name), whole.view(name)
        assert len(view.parts) == len(other.parts) > 10
        assert view.num_rows == other.num_rows
        assert list(view.parts) == list(other.parts)
        assert [view.parts[number] for number in (7, 0, -1)] == [other.parts[number] for number in (7, 0, -1)]
        assert view.parts[2:5] == other.parts[2:5]
        assert view.to_arrow().equals(other.to_arrow())
    with pytest.raises(IndexError):
        view.parts[len(view.parts)]
    assert sharded.verify("--checksums").out.endswith("pass\n")
    assert sharded.verify("--sample", "20").out.endswith("pass\n")
    assert json.loads(sharded.show("--json").out)["parts"]["texts"] == [part.path for part in view.parts]


def test_a_copy_of_a_part_is_found(sharded):
    part = layerbeam.open_run("out").view("texts").parts[3].path
    (sharded.folder / "out/texts/copy.parquet").write_bytes((sharded.folder / "out" / part).read_bytes())
    assert "texts/copy.parquet is there and not listed" in sharded.verify("--checksums", status=1).out


def test_only_what_is_new_is_encoded(sharded):
    assert "nothing to do" in sharded.run().err
    before = shards(sharded)
    sharded.write("corpus/bb.txt", "\n".join(LINES[:30]) + "\n")
    with open("corpus/d.txt", "a") as file:
        file.write("one more line\n")
    sharded.run()
    sharded.assert_equals_fresh()
    assert shards(sharded)[0] == before[0]
    written = json.loads((sharded.folder / "out/_runs/2.json").read_text())["counts"]["blocks_written"]
    assert written < len(list(load_index("out"))) / 2
    assert {name for name in os.listdir("out/_index") if not name.endswith(".inputs.jsonl")} == {
        os.path.basename(path) for path in shards(sharded)
    }


def test_a_missing_file_keeps_its_rows_until_it_is_pruned(sharded):
    rows = sharded.rows("texts")
    os.rename("corpus/c.txt", "c.txt")
    assert "corpus/c.txt: is missing; its rows stay" in sharded.run(status=3).out
    assert sharded.rows("texts").equals(rows)
    assert not os.path.exists("out/_SUCCESS")
    sharded.run("--prune-missing")
    assert set(sharded.rows("texts")["file"].to_pylist()) == {f"corpus/{name}.txt" for name in "abde"}
    sharded.assert_equals_fresh()


def test_a_run_that_fails_at_any_step_of_its_end_leaves_the_old_index(sharded, monkeypatch):
    before = sharded.manifest()
    sharded.write("corpus/0.txt", "\n".join(LINES[:30]) + "\n")  # every shard changes

    def killed(*_: object, **__: object) -> None:
        raise OSError(5, "killed")

    for name in ("write_empty_part", "_delete_strays", "_write", "_delete_old_index", "_empty_folder"):
        with monkeypatch.context() as patch:
            patch.setattr(finish, name, killed)
            if name != "write_empty_part":  # each view has parts
                sharded.run(status=1)
        assert all(os.path.exists(f"out/{path}") for path in shards(sharded))
        assert not os.path.exists("out/_SUCCESS") or name == "write_empty_part"
        if name == "_write":
            assert sharded.manifest() == before
    sharded.run()
    sharded.assert_equals_fresh()
    last = json.loads((sharded.folder / "out/_runs/6.json").read_text())
    assert last["counts"].get("blocks_written", 0) == 0


def test_an_output_of_one_file_becomes_one_of_shards_and_back(workplace, monkeypatch):
    workplace.prepare("\n".join(LINES[:40]) + "\n", input={"slice_bytes": 800}, views=VIEWS)
    workplace.run()
    files = workplace.files()
    with monkeypatch.context() as patch:
        make_small(patch)
        assert "nothing to do" in workplace.run().err
        workplace.write("corpus/b.txt", "\n".join(LINES[40:80]) + "\n")
        workplace.run()
        workplace.assert_equals_fresh()
        assert not os.path.exists("out/parts.jsonl")
    os.remove("corpus/b.txt")
    workplace.run("--prune-missing")
    assert not os.path.exists("out/_index")
    assert workplace.files() == files


def test_a_lost_manifest_is_restored_without_encoding(sharded):
    files = sharded.files()
    os.remove("out/manifest.json")
    sharded.run()
    assert sharded.files() == files
    assert json.loads((sharded.folder / "out/_runs/2.json").read_text())["counts"].get("blocks_written", 0) == 0


def test_damage_to_a_shard_is_an_error_that_a_run_repairs(sharded):
    files, path = sharded.files(), sharded.folder / "out" / shards(sharded)[1]
    path.write_text("{\n")
    assert f"{shards(sharded)[1]}: cannot be read" in sharded.verify("--checksums", status=2).err
    with pytest.raises(ValueError, match="cannot be read"):
        layerbeam.open_run("out").view("tokens").to_arrow()
    os.remove("out/_SUCCESS")
    sharded.run()
    assert sharded.files() == files


def test_a_manifest_cannot_name_files_elsewhere(sharded):
    manifest = sharded.manifest()
    manifest["index"]["parts"][0]["path"] = "../whole/parts.jsonl"
    (sharded.folder / "out/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="names files that do not lie in the folder"):
        layerbeam.open_run("out")
