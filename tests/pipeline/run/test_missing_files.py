"""Files that are gone: deleted ones up to a limit, renamed ones, and those of which nobody knows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

import layerbeam

VIEWS = {"t": {"level": "text", "layers": [0]}}


@pytest.fixture(params=["together", "alone"])
def twenty(workplace, request):
    """A run over twenty files, packed or a block each."""
    inputs = {} if request.param == "together" else {"slice_bytes": 12}
    corpus = {f"{number:02}.txt": f"bank number {number}\nriver {number}\n" for number in range(20)}
    workplace.finished(corpus, views=VIEWS, input=inputs | {"files": ["corpus/**/*.txt"]})
    return workplace


def files(workplace) -> list[str]:
    return sorted(set(workplace.rows("t")["file"].to_pylist()))


def went(since: str) -> list[tuple[str, int]]:
    changes = layerbeam.open_run("out").changes("t", since=since)
    return sorted((row["file"], row["line"]) for batch in changes.went() for row in batch.to_pylist())


@pytest.mark.parametrize(("setting", "number"), [([], 2), (["--set", "input.max_missing=5"], 5)])
def test_up_to_the_limit_their_rows_go(twenty, setting, number):
    before = layerbeam.open_run("out").changes("t", since=0).until
    for name in range(number):
        os.remove(f"corpus/{name:02}.txt")
    planned = json.loads(twenty.plan("--json", *setting).out)
    assert planned["kept"]["texts"] + planned["estimates"]["texts"]["value"] == 40 - 2 * number
    done = twenty.drive(*setting)
    names = ", ".join(f"corpus/{name:02}.txt" for name in range(number))
    assert f"deleted   the rows of {number} missing files: {names}\n" in done.out
    assert f"deleted   the rows of {number} missing files" in twenty.show().out
    assert files(twenty) == [f"corpus/{name:02}.txt" for name in range(number, 20)]
    assert went(before) == [(f"corpus/{name:02}.txt", line) for name in range(number) for line in (0, 1)]
    twenty.drive("--output", "fresh")
    assert twenty.rows("t").num_rows == twenty.rows("t", "fresh").num_rows == 40 - 2 * number
    assert "nothing to do" in twenty.drive(*setting).err


@pytest.mark.parametrize(("setting", "number"), [([], 3), (["--set", "input.max_missing=0"], 1)])
def test_above_it_all_rows_stay(twenty, setting, number):
    for name in range(number):
        os.remove(f"corpus/{name:02}.txt")
    twenty.write("corpus/new.txt", "a new bank\n")
    assert "input.max_missing" in twenty.plan(*setting, status=3).out
    done = twenty.drive(*setting, status=3)
    assert "corpus/00.txt: is missing; its rows stay, because more files are missing than input.max_m" in done.out
    assert "the same command with --prune-missing" in done.out
    assert not os.path.exists("out/_SUCCESS")
    assert twenty.rows("t").num_rows == 41
    twenty.drive("--set", f"input.max_missing={number}")
    assert twenty.rows("t").num_rows == 41 - 2 * number


def test_renamed_files_are_not_missing(twenty):
    """However many there are; of those that are gone otherwise the limit decides."""
    os.makedirs("corpus/moved")
    for name in range(15):
        os.rename(f"corpus/{name:02}.txt", f"corpus/moved/{name:02}.txt")
    twenty.drive()
    assert len(files(twenty)) == 20
    assert files(twenty)[5] == "corpus/moved/00.txt"
    for name in range(15):
        os.rename(f"corpus/moved/{name:02}.txt", f"corpus/{name:02}.txt")
    for name in range(16, 20):
        os.remove(f"corpus/{name:02}.txt")
    done = twenty.drive(status=3)
    assert done.out.count("is missing; its rows stay") == 4
    assert files(twenty) == [f"corpus/{name:02}.txt" for name in range(20)]


def test_no_input_at_all_changes_nothing(twenty):
    before = twenty.files()
    shutil.rmtree("corpus")
    assert "no file matches" in twenty.drive("--set", "input.max_missing=1.0", status=2).err
    assert twenty.files() == before


def as_nobody(workplace, *arguments: str) -> tuple[int, str]:
    """(exit status, what it printed) of a run that permissions hold for, also where the tests are root's."""
    if os.geteuid():
        command = workplace.command("run", "c.yaml", *arguments)
    else:
        bounding = "--bounding-set=-dac_override,-dac_read_search"
        command = ["setpriv", bounding, *workplace.command("run", "c.yaml", *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def closed(workplace):
    """A finished run, and then a folder in it that cannot be listed."""
    corpus = {"a.txt": "a bank\n", "b/b.txt": "a river\n", "b/c.txt": "a well\n"}
    workplace.finished(corpus, views=VIEWS, input={"files": ["corpus/**/*.txt"], "max_missing": 1.0})
    os.chmod("corpus/b", 0)
    yield workplace
    os.chmod("corpus/b", 0o755)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may list every folder")
@pytest.mark.parametrize("given", ["corpus/**/*.txt", "corpus/*/*.txt", "corpus/b/*.txt"])
def test_nothing_in_a_folder_that_cannot_be_listed_is_missing(closed, given):
    for arguments in ([], ["--prune-missing"]):
        status, printed = as_nobody(closed, "--input", "corpus/a.txt", "--input", given, *arguments)
        assert status == 3
        assert "corpus/b: cannot be listed (Permission denied)" in printed
        assert files(closed) == ["corpus/a.txt", "corpus/b/b.txt", "corpus/b/c.txt"]
    os.chmod("corpus/b", 0o755)
    assert as_nobody(closed)[0] == 0
    assert json.loads((closed.folder / "out/manifest.json").read_text())["complete"]


def test_a_disk_that_fails_while_it_is_listed(workplace, monkeypatch):
    corpus = {"a.txt": "a bank\n", "b/b.txt": "a river\n"}
    workplace.finished(corpus, views=VIEWS, input={"files": ["corpus/**/*.txt"], "max_missing": 1.0})

    def listdir(path, real=os.listdir):
        if str(path).endswith("corpus/b"):
            raise OSError(5, "Input/output error")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        for arguments in ([], ["--prune-missing"]):
            done = workplace.drive(*arguments, status=3)
            assert "problem   corpus/b: cannot be listed (Input/output error)\n" in done.out
            assert "corpus/b/b.txt: is in corpus/b, which cannot be listed (Input/output error)" in done.out
            assert files(workplace) == ["corpus/a.txt", "corpus/b/b.txt"]
    workplace.drive()
    assert (workplace.folder / "out/_SUCCESS").exists()


def test_of_very_many_problems_the_first_are_printed(workplace):
    workplace.finished({f"{number:03}.txt": f"bank {number}\n" for number in range(100)}, views=VIEWS)
    for number in range(99):
        os.remove(f"corpus/{number:03}.txt")
    workplace.drive(status=3)
    for command in (["show", "out"], ["run", "c.yaml", "--quiet"]):
        done = workplace.driven(*command, status=0 if command[0] == "show" else 3)
        lines = [line for line in (done.out + done.err).splitlines() if line.startswith(("problem", "layerbeam: out"))]
        assert len(lines) == 21, lines
        assert lines[-1].endswith("79 more problems are listed in out/manifest.json")
    assert len(workplace.manifest()["problems"]) == 99
