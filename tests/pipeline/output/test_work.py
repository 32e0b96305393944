"""What is left to do, in rare cases: names that clash, files that change while they are read."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil

import pytest
from corpora import random_lines
from output_folder import OutputFolder

import layerbeam
from layerbeam.pipeline.config import load
from layerbeam.pipeline.config.job import resolve
from layerbeam.pipeline.output.commits import note_damaged
from layerbeam.pipeline.output.work import find_work
from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import TextBlock
from layerbeam.transforms.flow.commits import Commit, FileRange, InputFile, name_of
from layerbeam.transforms.flow.layout import file_name, part_name
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.slice.slices import FileToRead, byte_ranges, number_slices, scan_range
from layerbeam.transforms.views.view import ViewSpec


def test_files_whose_hashes_begin_alike(workplace):
    # Found by trying: the first eight hex digits of the hashes of these paths agree.
    paths = ["corpus/d126111/a.txt", "corpus/d20203/a.txt"]
    assert [file_name(path) for path in paths] == ["a-fcf9f35232c8ebb5", "a-fcf9f352a2425591"]
    for number, path in enumerate(paths):
        workplace.write(path, f"text {number}\n")
    workplace.configure(input={"files": ["corpus/*/a.txt"]})
    workplace.drive()
    assert sorted(set(workplace.rows()["file"].to_pylist())) == paths


def test_file_that_changes_while_it_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    work = FileToRead(InputFile(str(path), 8, path.stat().st_mtime))
    limits = BlockLimits(1 << 20, 1 << 20, 1 << 20, 128)
    (piece,) = number_slices([scan_range(work, *range_, limits) for range_ in byte_ranges(work.file, 100)], limits)
    path.write_text("other\nlines\nnow\n")
    *blocks, left_out = read_blocks(piece, limits)
    assert all(isinstance(block, TextBlock) for block in blocks)
    assert left_out == InputFile.unreadable(str(path), "changed while it was being read; run again")


def test_commits_of_another_state_of_the_file_do_not_count(workplace):
    workplace.finished("\n".join(random_lines(60)), input={"slice_bytes": 500, "format": "text"})
    files = workplace.files()
    # As if a run over a changed file had been killed after one block, and the change then undone.
    job = resolve(load.load("c.yaml"))
    (found,) = find_work(job).files
    state = dataclasses.replace(found, size=5, modified=1.0)
    block = (FileRange(state, 999, 1, 0, 5, "0", counts={"records_read": 1, "blank_skipped": 1}),)
    changed = Commit(name_of(block), job.output.fingerprint, block, {}, attempt=2)
    workplace.write(f"out/_commits/{changed.name}.json", changed.to_line())
    assert find_work(job).is_empty
    shutil.rmtree("out/_commits")
    assert workplace.files() == files


@pytest.mark.parametrize("now", [{}, {"size": 101}, {"modified": 1.0}, {"version": "1"}])
def test_a_file_is_complete_if_size_time_and_version_are_as_recorded(tmp_path, now):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    view = ViewSpec(name="t", level="text", layers=(1,), hidden_size=4)
    limits = BlockLimits(4, 1 << 30, 1 << 30, 128)
    output = OutputFolder(str(tmp_path / "out"), [str(tmp_path / "*.txt")], (view,), "f", limits)
    assert output.run()
    found = [dataclasses.replace(file, **now) for file in output.find().files]
    assert [work.file for work in find_work(output.job, found=found).to_read] == (found if now else [])
    index = tmp_path / "out/parts.jsonl"
    index.write_text(index.read_text().splitlines()[1] + "\n")
    assert [work.file for work in output.find().to_read] == output.find().files


def test_a_view_without_rows_is_complete(workplace):
    views = {name: {"level": "word", "layers": [1], "keep_words": [name]} for name in ("bank", "zebra")}
    workplace.finished("the bank\n", views=views)
    assert [workplace.manifest()["views"][name]["rows"] for name in views] == [1, 0]
    assert "nothing to do" in workplace.drive().err


def test_output_is_no_input(workplace):
    workplace.finished("a text\n", input={"files": ["**/*.txt", "**/*.json", "**/*.jsonl"]})
    workplace.drive()
    assert [entry["path"] for entry in layerbeam.open_run("out").inputs()] == ["corpus/a.txt"]


def test_a_name_like_a_glob_hides_no_file(workplace):
    for name in ("1/a.txt", "[1]/b.txt", "[1]/[a].txt", "a.txt", "[a].txt", "*.txt/c.txt"):
        workplace.write(f"corpus/{name}", "a text\n")
    workplace.configure(views={"t": {"level": "text", "layers": [1]}})
    read = {}
    for number, given in enumerate(("corpus/*.txt", "corpus/[a].txt", "corpus/[1]", "corpus/[[]1]/*")):
        workplace.drive("--input", given, "--output", f"{number}")
        read[given] = [path.removeprefix("corpus/") for path in workplace.rows("t", f"{number}")["file"].to_pylist()]
    assert read == {
        "corpus/*.txt": ["*.txt/c.txt", "[a].txt", "a.txt"],
        "corpus/[a].txt": ["[a].txt", "a.txt"],
        "corpus/[1]": ["[1]/[a].txt", "[1]/b.txt"],  # a folder; what is in it is no glob
        "corpus/[[]1]/*": ["[1]/[a].txt", "[1]/b.txt"],
    }


def test_success_is_deleted_before_rows_of_a_missing_file_are(workplace, monkeypatch):
    for name in ("a", "b"):
        workplace.write(f"corpus/{name}.txt", "a text\n")
    workplace.configure()
    workplace.drive()
    os.remove("corpus/b.txt")

    def full_disk(path, real=storage.write_atomically, **how):
        if str(path).endswith("parts.jsonl"):
            raise OSError(28, "No space left on device")
        return real(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_atomically", full_disk)
        err = workplace.drive("--prune-missing", status=1).err
    assert err.splitlines()[-2:] == [
        "layerbeam: failed: OSError: [Errno 28] No space left on device",
        "layerbeam: completed blocks are kept; rerun the same command to resume (-v shows the whole error)",
    ]
    assert "Traceback" not in err
    assert not os.path.exists("out/_SUCCESS")
    workplace.drive("--prune-missing")
    assert workplace.rows()["file"].unique().to_pylist() == ["corpus/a.txt"]


def test_file_under_another_spelling_of_its_path_is_the_same_file(workplace):
    workplace.write("corpus/ten.txt", "a line\n" * 10)
    (workplace.folder / "link").symlink_to("corpus/deep")
    workplace.prepare({"deep/ten.txt": "another line\n"}, views={"t": {"level": "text", "layers": [1]}})
    here = workplace.folder
    workplace.drive("--input", "./corpus//ten.txt", "--input", f"{here}/corpus/ten.txt")
    workplace.drive("--input", "corpus/ten.txt", "--output", "fresh")
    (both, plain) = (workplace.files(output) for output in ("out", "fresh"))
    assert both.pop("manifest.json") != plain.pop("manifest.json")  # its settings name other files
    assert both == plain
    assert set(workplace.rows("t")["file"].to_pylist()) == {"corpus/ten.txt"}
    for spelling in ("./corpus/ten.txt", f"{here}/corpus/ten.txt", "corpus/../corpus//t*.txt"):
        assert "nothing to do" in workplace.drive("--input", spelling).err
    # Behind a link, `..` is another folder: these are two files.
    workplace.write("ten.txt", "a third line\n")
    workplace.drive("--input", "link/../ten.txt", "--input", "ten.txt", "--output", "linked")
    rows = workplace.rows("t", "linked")
    assert dict(zip(rows["file"].to_pylist(), rows["text"].to_pylist(), strict=True)) == {
        "link/../ten.txt": "a line",
        "ten.txt": "a third line",
    }
    workplace.drive("--input", f"{here}/corpus/*.txt", "--output", "absolute")
    assert set(workplace.rows("t", "absolute")["file"].to_pylist()) == {f"{here}/corpus/ten.txt"}
    assert "nothing to do" in workplace.drive("--output", "absolute", "--input", "corpus/ten.txt").err


def small_blocks(tmp_path, **limits) -> OutputFolder:
    """A block for each line of eight bytes, or as `limits` say."""
    (tmp_path / "in").mkdir()
    view = ViewSpec(name="t", level="text", layers=(1,), hidden_size=4)
    given = {"text_bytes": 8, "token_rows": 1 << 30, "text_rows": 1 << 30, "max_seq_length": 128} | limits
    return OutputFolder(str(tmp_path / "out"), [str(tmp_path / "in/*")], (view,), "f", BlockLimits(**given))


def test_a_late_commit_of_a_damaged_part(tmp_path):
    """Of an attempt that was given up: it does not know what `verify --checksums` found."""
    output = small_blocks(tmp_path)
    (tmp_path / "in/a.txt").write_text("one    \ntwo    \n")
    assert output.run()
    commit = json.loads((tmp_path / "out/parts.jsonl").read_text().splitlines()[0])
    (tmp_path / "out/_commits").mkdir()
    (tmp_path / f"out/_commits/{commit['name']}.json").write_text(json.dumps(commit | {"attempt": 1}))
    part = tmp_path / "out" / commit["parts"]["t"]["path"]
    whole = part.read_bytes()
    part.write_bytes(bytes(len(whole)))
    note_damaged(output.path, [commit["parts"]["t"]["path"]])
    for output.attempt in (2, 3):
        complete = output.run()
    assert complete
    assert part.read_bytes() == whole


def rows_of(output: OutputFolder) -> list[dict[str, str]]:
    return layerbeam.open_run(output.path)["t"].to_arrow(["file", "text"]).to_pylist()


def test_files_whose_names_print_alike_give_no_rows_to_others(tmp_path):
    """Rows of a pack are told apart by their column `file`."""
    output = small_blocks(tmp_path, text_bytes=1 << 20, joins_files=True)
    folder = os.fsencode(tmp_path / "in")
    for number in range(20):
        (tmp_path / f"in/{number:02}.txt").write_text(f"line {number}\n")
    for name, text in ((b"x\xff.txt", b"of bytes\n"), (b"x%FF.txt", b"of a percent sign\n")):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(text)
    assert output.run()
    assert len(os.listdir(tmp_path / "out/t")) == 1
    (tmp_path / "in/05.txt").write_text("another line\n")
    output.attempt = 2
    assert output.run()
    alike = [row for row in rows_of(output) if row["file"] == str(tmp_path / "in/x%FF.txt")]
    assert sorted(row["text"] for row in alike) == ["of a percent sign", "of bytes"]
    os.rename(os.path.join(folder, b"x\xff.txt"), tmp_path / "in/moved.txt")
    output.attempt = 3
    assert output.run(prune_missing=True)
    assert [row["text"] for row in rows_of(output) if row["file"].endswith("moved.txt")] == ["of bytes"]


def test_what_a_late_attempt_leaves_is_work_for_the_next_run(tmp_path):
    """A commit, or a part that no commit lists, of an attempt that was given up."""
    output = small_blocks(tmp_path)
    (tmp_path / "in/a.txt").write_text("one    \ntwo    \n")
    assert output.run()
    assert output.is_finished
    commit = json.loads((tmp_path / "out/parts.jsonl").read_text().splitlines()[0])
    part = tmp_path / "out" / commit["parts"]["t"]["path"]
    stray = part.with_name(part_name(commit["name"], "0123456789abcdef") + part.suffix)
    late = tmp_path / f"out/_commits/{commit['name']}.json"
    for path, data in ((stray, part.read_bytes()), (late, json.dumps(commit | {"attempt": 1}).encode())):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        assert not output.is_finished
        output.attempt += 1
        assert output.run()
        assert not path.exists()
        assert output.is_finished
