"""`input.shard` and lists of files: each file is in one shard, and the shards together have the rows of one run."""

from __future__ import annotations

import hashlib
import os

import pytest
from corpora import random_lines

import layerbeam
from layerbeam.pipeline.output.inputs import find_inputs, in_shard
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import InputFile

VIEWS = {"texts": {"level": "text", "layers": [-1]}, "words": {"level": "word", "layers": [1]}}
LINES = random_lines(120)
# The shards depend on the path of a test's folder: of so many files each has some.
FILES = {f"part {number}.txt": "\n".join(LINES[2 * number :][:2]) for number in range(60)}


def names(found: list[InputFile]) -> list[str]:
    return [os.path.basename(file.path) for file in found]


def test_the_shard_of_a_path_is_fixed():
    """By the first eight bytes of SHA-256 (`printf PATH | sha256sum`): the same with any version on any machine."""
    paths = ["/corpus/a.txt", "/corpus/caf\udce9.txt", "gs://bucket/a.txt"]
    expected = [int(hashlib.sha256(os.fsencode(path)).hexdigest()[:16], 16) % 64 + 1 for path in paths]
    assert expected == [6, 14, 51]
    for path, number in zip(paths, expected, strict=True):
        file = InputFile(path, 1, 1.0)
        assert [n for n in range(1, 65) if in_shard([file], f"{n}/64")] == [number]


def test_a_file_of_the_hub_has_one_shard_at_all_commits():
    files = [InputFile(f"hf://datasets/org/name@{digit * 40}/a.txt", 1, 0.0, version=digit) for digit in "ab"]
    assert [in_shard(files, f"{n}/4") for n in range(1, 5)].count([]) == 3


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_file_is_in_one_shard_however_it_is_written(tmp_path, monkeypatch, count):
    (tmp_path / "corpus").mkdir()
    for name in FILES:
        (tmp_path / "corpus" / name).write_text("x")
    monkeypatch.chdir(tmp_path / "corpus")
    spellings = [["*.txt"], ["./*"], ["../corpus/*.txt"], [f"{tmp_path}//corpus/**/*.txt"], [str(tmp_path / "corpus")]]
    of_shards = [
        [names(in_shard(find_inputs(globs, "out"), f"{number}/{count}")) for number in range(1, count + 1)]
        for globs in spellings
    ]
    assert all(other == of_shards[0] for other in of_shards)
    assert sorted(name for shard in of_shards[0] for name in shard) == sorted(FILES)
    few = [f"part {number}.txt" for number in range(5)]
    fewer = in_shard(find_inputs(few, "out"), f"1/{count}")
    assert names(fewer) == [name for name in of_shards[0][0] if name in few]


def test_a_folder_that_cannot_be_listed_is_a_problem_of_every_shard():
    folder = storage.unlisted("/corpus/secret", PermissionError(13, "Permission denied"))
    assert [in_shard([folder], f"{number}/3") for number in (1, 2, 3)] == [[folder]] * 3


@pytest.mark.parametrize("shard", ["0/4", "5/4", "1", "a/4", "1/4/4", "-1/4", "1.5/4", "", "٣/4"])
def test_what_is_no_shard(workplace, shard):
    workplace.prepare(FILES, views=VIEWS)
    done = workplace.drive(f"--shard={shard}", status=2)
    assert "input.shard: should be the number of a shard, from 1, and how many there are, such as 3/64" in done.err


def test_shards_have_the_rows_of_one_run(workplace):
    workplace.prepare(FILES, views=VIEWS)
    workplace.drive()
    for number in range(1, 4):
        workplace.drive("--shard", f"{number}/3", "--output", f"shards/{number}")
    assert "nothing to do" in workplace.drive("--shard", "2/3", "--output", "shards/2").err
    runs = [layerbeam.open_run(f"shards/{number}") for number in range(1, 4)]
    whole = layerbeam.open_run("out")
    assert all(len(run["texts"]) for run in runs)
    for view in VIEWS:
        rows = [row for run in runs for row in run[view].to_arrow().to_pylist()]
        assert len(rows) > 100
        assert sorted(rows, key=repr) == sorted(whole[view].to_arrow().to_pylist(), key=repr)


def test_another_shard_into_the_same_folder_is_refused(workplace):
    workplace.prepare(FILES, views=VIEWS)
    workplace.drive("--shard", "1/2")
    before = layerbeam.open_run("out")["texts"].to_arrow()
    for given, shown in ((["--shard", "2/2"], "1/2 -> 2/2"), (["--shard=1/3"], "1/2 -> 1/3"), ([], "1/2 -> not set")):
        done = workplace.drive(*given, status=2)
        assert "output.path: out holds a run with other settings" in done.err
        assert f"input.shard: {shown}" in done.err
    assert layerbeam.open_run("out")["texts"].to_arrow() == before


def test_new_and_changed_files_of_a_shard(workplace):
    workplace.prepare(FILES, views=VIEWS)
    workplace.drive("--shard", "1/2")
    kept = {row["file"] for row in layerbeam.open_run("out")["texts"].to_arrow(["file"]).to_pylist()}
    more = {f"new {number}.txt": "the new one\n" for number in range(30)}
    for name, text in more.items():
        workplace.write(f"corpus/{name}", text)
    workplace.drive("--shard", "1/2")
    files = {row["file"] for row in layerbeam.open_run("out")["texts"].to_arrow(["file"]).to_pylist()}
    assert kept < files
    assert names(in_shard(find_inputs(["corpus/*"], "out"), "1/2")) == sorted(map(os.path.basename, files))


def test_a_shard_without_files_ends_well(workplace):
    """One of many shards of few files: it must not fail the array. Its format is that of all files."""
    workplace.prepare({"a.jsonl": '{"text": "the river"}\n'}, views=VIEWS)
    of_shard = [bool(in_shard(find_inputs(["corpus/*"], "out"), f"{number}/2")) for number in (1, 2)]
    empty = 1 + of_shard.index(False)
    done = workplace.drive("--shard", f"{empty}/2")
    assert "0 read = 0 embedded" in done.out
    run = layerbeam.open_run("out")
    assert {name: len(run[name]) for name in run} == {"texts": 0, "words": 0}
    assert run.manifest["settings"]["input"]["format"] == "jsonl"
    assert workplace.driven("plan", "c.yaml", "--shard", f"{empty}/2", "--json").status == 0
    assert "nothing to do" in workplace.drive("--shard", f"{empty}/2").err
    workplace.write("corpus/b.txt", "x")
    assert "no file matches nothing/*" in workplace.drive("--shard", "1/2", "--input", "nothing/*", status=2).err


def test_all_files_of_a_shard_are_gone(workplace):
    """Their rows stay, as those of any run of which too many files are missing."""
    workplace.prepare(FILES, views=VIEWS)
    workplace.drive("--shard", "1/2")
    for file in in_shard(find_inputs(["corpus/*"], "out"), "1/2"):
        os.unlink(file.path)
    assert "is missing; its rows stay" in workplace.drive("--shard", "1/2", status=3).out
    workplace.drive("--shard", "1/2", "--prune-missing")
    assert len(layerbeam.open_run("out")["texts"]) == 0


def test_a_list_of_files(workplace):
    """Names are taken as they are written, also those that look like globs."""
    workplace.prepare({"a[1].txt": "one\n", "a1.txt": "two\n", "b.txt": "three\n"}, views=VIEWS)
    workplace.write("list.txt", "corpus/a[1].txt\n\ncorpus/b*.txt\r\n")
    workplace.drive("--input", "@list.txt")
    run = layerbeam.open_run("out")
    assert run["texts"].to_arrow(["file"])["file"].to_pylist() == ["corpus/a[1].txt", "corpus/b.txt"]
    assert run.manifest["settings"]["input"]["files"] == ["corpus/a[[]1].txt", "corpus/b*.txt"]
    assert "nothing to do" in workplace.drive("--input", "corpus/a[[]1].txt", "--input", "./corpus/b.txt").err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "@list.txt: has no lines"),
        ("corpus/a.txt\ncorpus/c.txt\nd\n", "2 of its 3 lines name no file, such as 'corpus/c.txt'"),
        ("corpus/a.txt\ngs://bucket/a.txt?token=hunter2\n", "@list.txt: "),
        (b"\xff\n", "list.txt: cannot be read (it is not UTF-8)"),
        (None, "list.txt: cannot be read (No such file or directory)"),
    ],
)
def test_a_list_that_cannot_be_used(workplace, lines, message):
    workplace.prepare("one\n", views=VIEWS)
    if lines is not None:
        workplace.write("list.txt", lines)
    assert message in workplace.drive("--input", "@list.txt", status=2).err
