"""Mistakes of users and faults of corpora: one message that says how to fix it, the right exit status, no loss."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from unittest.mock import Mock

import pytest
from drive import Driver
from repository import python

import layerbeam
from layerbeam.pipeline.run import run
from layerbeam.transforms import slice as slice_files


@pytest.mark.parametrize("change", ["appended", "shorter", "deleted", "touched", "replaced"])
def test_file_changed_during_run_is_reported_and_not_committed(workplace, monkeypatch, change):
    """It changes between its scan and its first commit. The other files are embedded; the next run does the rest."""
    from layerbeam.transforms.write import block as write_block

    changing = workplace.write("corpus/a.txt", "some lines\n" * 40)
    for name in "bc":
        workplace.write(f"corpus/{name}.txt", "other lines\n" * 40)
    workplace.configure(input={"slice_bytes": 100})
    real = write_block.make_table

    def change_it(*arguments):
        if change == "appended":
            changing.write_text("some lines\n" * 41)
        elif change == "shorter":
            changing.write_text("some lines\n" * 2)
        elif change == "deleted":
            changing.unlink(missing_ok=True)
        elif change == "touched":
            os.utime(changing, (1, 1))
        else:
            changing.write_text("new lines!\n" * 40)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(write_block, "make_table", change_it)
        done = workplace.drive(status=3)
    why = "No such file or directory" if change == "deleted" else "changed while it was being read; run again"
    assert f"problem   corpus/a.txt: {why}" in done.out
    assert workplace.rows()["file"].unique().to_pylist() == ["corpus/b.txt", "corpus/c.txt"]
    assert not os.path.exists("out/_SUCCESS")
    listed = (workplace.folder / "out/parts.jsonl").read_text()
    assert "corpus/a.txt" not in listed
    assert not list((workplace.folder / "out/tokens").glob("a-*"))
    if change == "deleted":
        changing.write_text("some lines\n" * 40)
    workplace.drive()
    workplace.assert_equals_fresh()


def test_file_emptied_before_scan_is_reported(workplace, monkeypatch):
    """As log rotation does when it copies and truncates."""
    changing = workplace.write("corpus/b.txt", "some lines\n" * 40)
    workplace.prepare("other lines\n" * 40)
    real = slice_files.scan_range

    def empty_it(*arguments):
        changing.write_text("")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(slice_files, "scan_range", empty_it)
        done = workplace.drive(status=3)
    assert "problem   corpus/b.txt: changed while it was being read; run again" in done.out
    assert workplace.rows()["file"].unique().to_pylist() == ["corpus/a.txt"]
    workplace.drive()
    assert [entry["records"] for entry in layerbeam.open_run("out").inputs()] == [40, 0]


def test_blocks_committed_before_file_changed_are_reused(workplace, monkeypatch):
    from layerbeam.transforms.write import block as write_block

    workplace.prepare("\n".join(f"line {n}" for n in range(100)), input={"slice_bytes": 100})
    real, tables = write_block.make_table, []

    def change_it(*arguments):
        tables.append(1)
        if len(tables) == 5:
            with open("corpus/a.txt", "a") as file:
                file.write("\none more")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(write_block, "make_table", change_it)
        workplace.drive(status=3)
    before = len(os.listdir("out/tokens"))
    assert 0 < before < 9
    workplace.drive()
    written = json.loads((workplace.folder / "out/_runs/2.json").read_text())["counts"]["blocks_written"]
    assert written == len(os.listdir("out/tokens")) - before
    workplace.assert_equals_fresh()


@pytest.mark.parametrize("runner", ["local", "DirectRunner", "FnApiRunner"])
def test_aliases_of_local_runner(workplace, runner):
    workplace.prepare("a\n", beam={"runner": runner})
    workplace.run()
    assert "nothing to do" in workplace.run("--runner", runner).err


def test_disk_that_is_too_small(workplace, monkeypatch):
    workplace.prepare("some words\n" * 100)
    monkeypatch.setattr(run, "free_bytes", lambda path: 1000)
    err = workplace.drive(status=2).err
    assert "to write: about " in err
    assert "output.path: out has 1 kB free, and this run writes about " in err
    workplace.drive("--force")


def test_estimate_is_close_to_written_size(workplace):
    workplace.write("corpus/a.txt", "some words of a text\n" * 5000)
    workplace.write("corpus/b.txt.gz", gzip.compress(b"some words of a text\n" * 5000))
    workplace.configure(views={"t": {"level": "text", "layers": [1]}})
    printed = workplace.drive().err.splitlines()[0]
    assert re.fullmatch(r"\d\d:\d\d:\d\d to write: about 2\.56 MB in `t`: 10,000 texts x 64 x 4 bytes", printed)


def test_line_of_five_megabytes(workplace):
    workplace.write("corpus/a.txt", "before\n" + "word " * 1_000_000 + "\nafter\n")
    workplace.configure(views={"t": {"level": "text", "layers": [-1]}})
    done = workplace.drive()
    rows = workplace.rows("t").select(["line", "num_tokens"]).to_pylist()
    assert [row["line"] for row in rows] == [0, 1, 2]
    assert rows[1]["num_tokens"] == 126
    assert workplace.manifest()["counts"]["truncated_texts"] == 1
    assert workplace.manifest()["counts"]["dropped_tokens"] > 900_000
    assert "1 text was longer than max_seq_length" in done.out


def test_control_characters_give_text_without_tokens(workplace):
    workplace.finished(b"\x00\x01\x02\x7f\n\xe2\x80\x8b\n")
    assert workplace.rows()["token"].to_pylist() == ["[CLS]", "[SEP]"] * 2


def test_run_over_an_empty_or_blank_corpus_is_not_complete(workplace):
    workplace.write("corpus/empty.txt", "")
    workplace.configure(views={"t": {"level": "token", "layers": [1]}, "s": {"level": "text", "layers": [1]}})
    done = workplace.drive(status=3)
    assert "problem   nothing was embedded: the files are empty; check input.files\n" in done.out
    assert workplace.plan("--output", "new", status=3).out.endswith(
        "problem   nothing was embedded: the files are empty; check input.files\n"
    )
    assert not os.path.exists("out/_SUCCESS")
    workplace.write("corpus/blank.txt", "\n \n")
    done = workplace.drive(status=3)
    assert "records   2 read = 0 embedded + 2 blank" in done.out
    assert "problem   nothing was embedded: 2 of 2 records are blank; check input.files" in done.out
    assert not os.path.exists("out/_SUCCESS")
    for view in ("t", "s"):
        rows = workplace.rows(view)
        assert rows.num_rows == 0
        assert "layer_1" in rows.column_names
    workplace.write("corpus/now.txt", "a text\n")
    workplace.drive()
    assert workplace.rows("s")["file"].to_pylist() == ["corpus/now.txt"]


def test_rejects_contain_raw_bytes(workplace):
    done = workplace.finished(b"fine\nnot \xff fine\r\nfine\n\xed\xa0\x80\n", input={"max_reject_rate": 1.0})
    first, second = workplace.rejects()
    assert first == {
        "file": "corpus/a.txt",
        "line": 1,
        "byte_offset": 5,
        "stage": "read",
        "reason": "invalid UTF-8: invalid start byte at byte 4 (0xff)",
        "raw": base64.b64encode(b"not \xff fine").decode(),
    }
    assert base64.b64decode(second["raw"]) == b"\xed\xa0\x80"
    assert "4 read = 2 embedded + 0 blank + 0 filtered + 2 rejected" in done.out
    assert "1 rejected: invalid UTF-8: invalid start byte" in done.out


def test_unknown_language_is_reported(workplace):
    workplace.prepare("ქართული ენა არის\n")
    said = " of the tokens are [UNK]; is there an encoder for this language or script?\n"
    assert said in workplace.drive().out


def test_closed_pipe_is_not_an_error(workplace):
    workplace.finished("a text\n" * 200)
    for arguments in ("show out", "show out --json"):
        command = " ".join(map(shlex.quote, workplace.command())) + f" {arguments} | head -c 5; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=workplace.folder, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path, closed):
    program = (
        "import os, sys; from layerbeam.__main__ import main; sys.argv = ['layerbeam', '--version']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit(os.open('file', os.O_CREAT) <= 2)"
    )
    command = f"{shlex.join([sys.executable, '-c', program])} {closed}"
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.slow
def test_closed_streams(workplace):
    """No part becomes the file to which something is printed."""
    workplace.prepare("a text\n" * 200)
    workplace.drive("--output", "open")
    command = shlex.join(workplace.command())
    for arguments, status in (("run c.yaml --processes 2", 0), ("verify out", 0), ("run nothing.yaml", 2)):
        started = ["sh", "-c", f"{command} {arguments} <&- >&- 2>&-"]
        assert subprocess.run(started, cwd=workplace.folder, check=False).returncode == status
    assert workplace.files() == workplace.files("open")


def test_show_does_not_interpret_markup_and_needs_no_unicode(workplace):
    workplace.finished("[/url] and [bold]\u6f22\u5b57[/bold]\n", views={"t": {"level": "text", "layers": [1]}})
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = workplace.command("show", "out")
    shown = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True, check=True, env=environment)
    assert "[/url] and [bold]\\u6f22\\u5b57[/bold]" in shown.stdout
    assert "[/url] and [bold]\u6f22\u5b57[/bold]" in workplace.show().out


def test_interrupt_before_run_starts(workplace, monkeypatch):
    workplace.prepare("a text\n")
    leave = Mock(side_effect=SystemExit)
    monkeypatch.setattr(Driver, "execute", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        workplace.drive()
    leave.assert_called_once_with(130)
    announced, last = workplace._capture()[1].splitlines()
    assert " to write: about " in announced
    assert last == "layerbeam: interrupted; completed blocks are kept: run the same command again to resume"
    assert "out: unfinished: interrupted" in workplace.show().out


def test_reject_rate_on_finished_run(workplace):
    workplace.finished(b"fine\n\xff\n", input={"max_reject_rate": 1.0})
    documented = ["_SUCCESS", "_runs", "manifest.json", "parts.jsonl", "rejects", "tokens"]
    assert sorted(os.listdir("out")) == documented
    done = workplace.drive("--set", "input.max_reject_rate=0.4", status=3)
    assert "1 of 2 records were rejected: more than max_reject_rate 0.4 allows" in done.out
    assert sorted(os.listdir("out")) == documented[1:]
    assert workplace.rows().num_rows > 0
    workplace.drive()


def test_help_and_configuration_errors_import_no_heavy_modules(workplace):
    workplace.configure()
    (workplace.folder / "c.yaml").rename("right.yaml")
    workplace.configure(input={"recrod": "line"})
    program = (
        "import sys; from layerbeam.__main__ import main\n"
        "from layerbeam.pipeline.config import load; load.load('right.yaml')\n"
        "heavy, found = ('tensorflow', 'tensorflow_text', 'apache_beam', 'pyarrow', 'numpy'), []\n"
        "for arguments in ('--help', 'run --help', '--version', 'run c.yaml', 'rnu'):\n"
        "    sys.argv = ['layerbeam', *arguments.split()]\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        "    found.append([name for name in heavy if name in sys.modules])\n"
        "print(found)"
    )
    assert python(program, folder=workplace.folder).splitlines()[-1] == "[[], [], [], [], []]"
