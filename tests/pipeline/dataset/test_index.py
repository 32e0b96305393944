"""The index of a run with many blocks: read in pages of two lines here."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from corpora import random_lines

import layerbeam
from layerbeam.pipeline.dataset import index
from layerbeam.pipeline.output import finish

LINES = random_lines(120)
VIEWS = {
    "tokens": {"level": "token", "layers": [1]},
    "texts": {"level": "text", "layers": [2]},
    "types": {"level": "word_type", "layers": [1]},
}


@pytest.fixture
def many(workplace, monkeypatch):
    """A run of five files of 10 to 40 lines."""
    monkeypatch.setattr(index, "_PAGE", 2)
    corpus = {f"{c}.txt": "\n".join(LINES[10 * n : 20 * n + 10]) + "\n" for n, c in enumerate("abcde")}
    workplace.finished(corpus, input={"slice_bytes": 800}, views=VIEWS)
    return workplace


def lines_of(workplace) -> list[str]:
    return (workplace.folder / "out/parts.jsonl").read_text().splitlines()


def blocks_written(workplace, run: int) -> int:
    return json.loads((workplace.folder / f"out/_runs/{run}.json").read_text())["counts"].get("blocks_written", 0)


def test_workers_compact_the_log_for_the_last_step(many, monkeypatch):
    files, left = many.files(), []

    def end(self, *, real=finish.RunEnd._end, **how) -> None:
        left.extend(os.listdir(f"{self.output.path}/_commits"))
        real(self, **how)

    monkeypatch.setattr(finish, "COMPACTED", 3)
    monkeypatch.setattr(finish.RunEnd, "_end", end)
    shutil.rmtree("out")
    many.drive()
    compacted = [name for name in left if name.endswith(".jsonl")]
    assert len(compacted) == -(-(len(left) - len(compacted)) // 3) > 3
    assert many.files() == files
    assert not os.path.exists("out/_commits")
    many.write("corpus/bb.txt", "\n".join(LINES[:30]) + "\n")
    many.drive()
    many.assert_equals_fresh()


def test_readers(many):
    run = layerbeam.open_run("out")
    written = [json.loads(line)["parts"] for line in lines_of(many)]
    for name in ("tokens", "texts"):
        view, paths = run.view(name), [parts[name]["path"] for parts in written if name in parts]
        assert len(view.parts) == many.manifest()["views"][name]["parts"] == len(paths) > 10
        assert [part.path for part in view.parts] == paths == sorted(paths)
        assert [view.parts[number].path for number in (7, 0, -1)] == [paths[number] for number in (7, 0, -1)]
        assert [part.path for part in view.parts[2:5]] == paths[2:5]
        texts = [view.read(part, ["file", "line"]) for part in view.parts]
        assert sum(map(len, texts)) == len(view) == view.to_arrow().num_rows
    with pytest.raises(IndexError):
        view.parts[len(view.parts)]
    assert many.verify("--checksums").out.endswith("pass\n")
    assert many.verify("--sample", "20").out.endswith("pass\n")
    assert json.loads(many.show("--json").out)["parts"]["texts"] == paths


def test_a_copy_of_a_part_is_found(many):
    part = layerbeam.open_run("out").view("texts").parts[3].path
    shutil.copyfile(f"out/{part}", "out/texts/copy.parquet")
    assert "texts/copy.parquet is there and not listed" in many.verify("--checksums", status=1).out


def test_only_what_is_new_is_encoded(many):
    assert "nothing to do" in many.drive().err
    before = lines_of(many)
    many.write("corpus/bb.txt", "\n".join(LINES[:30]) + "\n")
    with open("corpus/d.txt", "a") as file:
        file.write("one more line\n")
    many.drive()
    many.assert_equals_fresh()
    assert lines_of(many)[0] == before[0]
    assert 0 < blocks_written(many, 2) < len(lines_of(many)) / 2


def test_a_missing_file_keeps_its_rows_until_it_is_pruned(many):
    rows = many.rows("texts")
    os.rename("corpus/c.txt", "c.txt")
    assert "corpus/c.txt: is missing; its rows stay" in many.drive("--set", "input.max_missing=0", status=3).out
    assert many.rows("texts").equals(rows)
    assert not os.path.exists("out/_SUCCESS")
    many.drive("--prune-missing")
    assert set(many.rows("texts")["file"].to_pylist()) == {f"corpus/{name}.txt" for name in "abde"}
    many.assert_equals_fresh()


def test_a_run_that_fails_at_any_step_of_its_end_loses_nothing(many, monkeypatch):
    before = many.manifest()
    many.write("corpus/0.txt", "\n".join(LINES[:30]) + "\n")

    def killed(*_: object, **__: object) -> None:
        raise OSError(5, "killed")

    steps = ("_write", "find_problems", "RunEnd._delete_orphans", "_empty_folder")
    for name in steps:
        with monkeypatch.context() as patch:
            patch.setattr(f"layerbeam.pipeline.output.finish.{name}", killed)
            many.drive(status=1)
        assert not os.path.exists("out/_SUCCESS")
        assert many.manifest() == before or name == "_empty_folder"
    many.drive()
    many.assert_equals_fresh()
    assert blocks_written(many, len(steps) + 2) == 0


@pytest.mark.parametrize("name", ["manifest.json", "parts.jsonl"])
def test_damage_is_an_error_that_a_run_repairs(many, name):
    files, lines = many.files(), lines_of(many)
    if name == "manifest.json":
        os.remove("out/manifest.json")
    else:
        (many.folder / "out/parts.jsonl").write_text("\n".join([*lines[:3], "{", *lines[4:]]) + "\n")
        assert "parts.jsonl: cannot be read" in many.verify("--checksums", status=2).err
        with pytest.raises(ValueError, match=r"parts\.jsonl: cannot be read"):
            layerbeam.open_run("out").view("tokens").to_arrow()
        os.remove("out/_SUCCESS")
    many.drive()
    assert many.files() == files
    assert blocks_written(many, 2) == (name == "parts.jsonl")
