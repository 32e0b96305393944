"""What is left to do, in rare cases: names that clash, files that change while they are read."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from corpora import random_lines

from layerbeam.pipeline.output import find
from layerbeam.pipeline.output.find import is_up_to_date
from layerbeam.transforms import storage
from layerbeam.transforms.blocks import TextBlock
from layerbeam.transforms.commits import BlockId, Commit, InputFile
from layerbeam.transforms.layout import file_name
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.slice.slices import FileToRead, byte_ranges, number_slices, scan_range


def test_files_whose_hashes_begin_alike(workplace):
    # Found by trying: the first eight hex digits of the hashes of these paths agree.
    paths = ["corpus/d126111/a.txt", "corpus/d20203/a.txt"]
    assert [file_name(path) for path in paths] == ["a-fcf9f35232c8ebb5", "a-fcf9f352a2425591"]
    for number, path in enumerate(paths):
        workplace.write(path, f"text {number}\n")
    workplace.configure(input={"files": ["corpus/*/a.txt"]})
    workplace.run()
    assert sorted(set(workplace.rows()["file"].to_pylist())) == paths


def test_file_that_changes_while_it_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    work = FileToRead(InputFile(str(path), 8, path.stat().st_mtime))
    limits = BlockLimits(1 << 20, 1 << 20, 1 << 20, 128)
    (piece,) = number_slices([scan_range(work, *range_, limits) for range_ in byte_ranges(work.file, 100)])
    path.write_text("other\nlines\nnow\n")
    *blocks, left_out = read_blocks(piece, limits)
    assert all(isinstance(block, TextBlock) for block in blocks)
    assert left_out == InputFile.unreadable(str(path), "changed while it was being read; run again")


def test_commits_of_another_state_of_the_file_do_not_count(workplace):
    workplace.finished("\n".join(random_lines(60)), input={"slice_bytes": 500})
    files = workplace.files()
    # As if a run over a changed file had been killed after one block, and the change then undone.
    (found,) = find.find_work(["corpus/a.txt"], "out").files[:1]
    changed = Commit("f", BlockId(InputFile(found.path, 5, 1.0), 999, 1, 0, 5, "0"), {"records_read": 1}, {})
    os.mkdir("out/_commits")
    workplace.write(f"out/_commits/{changed.block.name}.json", json.dumps(changed.to_json()))
    work = find.find_work(["corpus/a.txt"], "out")
    assert work.is_empty
    shutil.rmtree("out/_commits")
    assert workplace.files() == files


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"size": 100, "modified": 0.0, "blocks": 2, "left_out": None}, True),
        ({"size": 101, "modified": 0.0, "blocks": 2, "left_out": None}, False),
        ({"size": 100, "modified": 1.0, "blocks": 2, "left_out": None}, False),
        ({"size": 100, "modified": 0.0, "blocks": 3, "left_out": None}, False),
        ({"size": 100, "modified": 0.0, "blocks": 2, "left_out": "damaged"}, False),
        ({"size": 100, "modified": 0.0, "version": "1", "blocks": 2, "left_out": None}, False),
        (None, False),
    ],
)
def test_up_to_date(entry, expected):
    file = InputFile("a.txt", 100, 0.0)
    assert is_up_to_date(file, 2, entry) is expected


def test_output_is_no_input(workplace):
    workplace.finished("a text\n", input={"files": ["**/*.txt", "**/*.json", "**/*.jsonl"]})
    workplace.run()
    assert [entry["path"] for entry in workplace.manifest()["inputs"]] == ["corpus/a.txt"]


def test_a_name_like_a_glob_hides_no_file(workplace):
    for name in ("1/a.txt", "[1]/b.txt", "[1]/[a].txt", "a.txt", "[a].txt", "*.txt/c.txt"):
        workplace.write(f"corpus/{name}", "a text\n")
    workplace.configure(views={"t": {"level": "text", "layers": [1]}})
    read = {}
    for number, given in enumerate(("corpus/*.txt", "corpus/[a].txt", "corpus/[1]", "corpus/[[]1]/*")):
        workplace.run("--input", given, "--output", f"{number}")
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
    workplace.run()
    os.remove("corpus/b.txt")

    def full_disk(path, real=storage.write_atomically, **how):
        if str(path).endswith("parts.jsonl"):
            raise OSError(28, "No space left on device")
        return real(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_atomically", full_disk)
        err = workplace.run("--prune-missing", status=1).err
    assert err.splitlines()[-2:] == [
        "layerbeam: failed: OSError: [Errno 28] No space left on device",
        "layerbeam: completed blocks are kept; rerun the same command to resume (-v shows the whole error)",
    ]
    assert "Traceback" not in err
    assert not os.path.exists("out/_SUCCESS")
    workplace.run("--prune-missing")
    assert workplace.rows()["file"].unique().to_pylist() == ["corpus/a.txt"]


def test_file_under_another_spelling_of_its_path_is_the_same_file(workplace):
    workplace.write("corpus/ten.txt", "a line\n" * 10)
    (workplace.folder / "link").symlink_to("corpus/deep")
    workplace.prepare({"deep/ten.txt": "another line\n"}, views={"t": {"level": "text", "layers": [1]}})
    here = workplace.folder
    workplace.run("--input", "./corpus//ten.txt", "--input", f"{here}/corpus/ten.txt")
    workplace.run("--input", "corpus/ten.txt", "--output", "fresh")
    (both, plain) = (workplace.files(output) for output in ("out", "fresh"))
    assert both.pop("manifest.json") != plain.pop("manifest.json")  # its settings name other files
    assert both == plain
    assert set(workplace.rows("t")["file"].to_pylist()) == {"corpus/ten.txt"}
    for spelling in ("./corpus/ten.txt", f"{here}/corpus/ten.txt", "corpus/../corpus//t*.txt"):
        assert "nothing to do" in workplace.run("--input", spelling).err
    # Behind a link, `..` is another folder: these are two files.
    workplace.write("ten.txt", "a third line\n")
    workplace.run("--input", "link/../ten.txt", "--input", "ten.txt", "--output", "linked")
    rows = workplace.rows("t", "linked")
    assert dict(zip(rows["file"].to_pylist(), rows["text"].to_pylist(), strict=True)) == {
        "link/../ten.txt": "a line",
        "ten.txt": "a third line",
    }
    workplace.run("--input", f"{here}/corpus/*.txt", "--output", "absolute")
    assert set(workplace.rows("t", "absolute")["file"].to_pylist()) == {f"{here}/corpus/ten.txt"}
    assert "nothing to do" in workplace.run("--output", "absolute", "--input", "corpus/ten.txt").err
