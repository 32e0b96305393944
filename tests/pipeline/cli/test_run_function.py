"""`layerbeam.run`: the command from Python."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpora import random_lines
from repository import DATA
from workplace import Workplace

import layerbeam
from layerbeam.pipeline.cli import run_function

VIEWS = {"s": {"level": "text", "layers": [2]}}


def settings(folder: Path, **sections):
    """A configuration as a notebook has it: with paths, and with tuples."""
    return {
        "input": {"files": (str(folder / "corpus" / "*"),)} | sections.get("input", {}),
        "encoder": {"handle": DATA / "hf_uncased"},
        "views": VIEWS,
        "output": {"path": folder / "out"},
    }


@pytest.mark.slow
def test_a_run_is_opened_and_leaves_this_process_as_it_was(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    workplace = Workplace(tmp_path)
    workplace.write("corpus/a.txt", "a bank\nthe river\n")
    before = sys.stderr, threading.excepthook, *map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
    run = layerbeam.run(settings(workplace.folder), workers=1)
    assert capfd.readouterr() == ("", "")
    assert run["s"].to_arrow(["text"]).to_pylist() == [{"text": "a bank"}, {"text": "the river"}]
    workplace.configure(views=VIEWS)
    workplace.write("corpus/b.txt", b"\xff\n")
    limit = {"input.max_reject_rate": 0.1, "output.path": "other"}
    with pytest.raises(ValueError, match=r"(?s)other: the run ended without _SUCCESS:.*1 of 3 records"):
        layerbeam.run(workplace.folder / "c.yaml", set=limit, verbose=True)
    out, err = capfd.readouterr()
    assert (out, "to write: " in err) == ("", True)
    assert len(layerbeam.open_run("other", allow_incomplete=True)["s"]) == 2
    assert before == (sys.stderr, threading.excepthook, *map(signal.getsignal, (signal.SIGINT, signal.SIGTERM)))


@pytest.fixture
def python_handler() -> Iterator[Any]:
    """Python's handler of SIGINT: PySpark, in another test, leaves its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_an_interrupt_ends_the_run_only(workplace, python_handler):
    workplace.write("corpus/a.txt", "\n".join(random_lines(3000)))

    def interrupt():
        while not list(workplace.folder.glob("out/_commits/*")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        layerbeam.run(settings(workplace.folder, input={"slice_bytes": 500}), workers=1)
    assert signal.getsignal(signal.SIGINT) is python_handler
    state = layerbeam.pipeline.output.run_log.load_runs(str(workplace.folder / "out"))[-1]["state"]
    assert state == "interrupted"


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"input": {"file": ["a"]}}, {}, "run: input.file: unknown setting; did you mean `files`?"),
        ({"input": {"files": [b"a"]}}, {}, "run: input.files.0: should be a valid string"),
        ({"input": {"files": [{1}]}}, {}, "run: input.files.0: should be a valid string; given: {1}"),
        ({"input": {"files": [object]}}, {}, "is a type; a configuration holds texts, numbers, lists and mappings"),
        ({}, {"workers": 0}, "argument --workers: '0' is not a positive integer"),
        ({}, {"set": {"views.s.layers": "1"}}, "run: views.s.layers: should be all or a list of layers"),
        (
            {},
            {"set": {"views.s.layers": [1], "encoder.max": 4}},
            "run: encoder.max: unknown setting; known here: handle",
        ),
    ],
)
def test_what_the_command_refuses_is_a_value_error(tmp_path, changes, options, message):
    with pytest.raises(ValueError, match=message):
        layerbeam.run(settings(tmp_path) | changes, **options)
    with pytest.raises(ValueError, match=r"nowhere.yaml: No such file or directory; `layerbeam init` writes one"):
        layerbeam.run("nowhere.yaml")


@pytest.mark.parametrize(
    ("status", "printed", "error", "message"),
    [
        (2, ["noise", "layerbeam: encoder.handle: x", "layerbeam: y"], ValueError, "encoder.handle: x\ny"),
        (4, ["layerbeam: another run is active"], BlockingIOError, "another run is active"),
        (1, ["layerbeam: failed: OSError"], RuntimeError, "failed: OSError"),
        (1, [], RuntimeError, "exit status 1"),
        (-9, [], RuntimeError, "the run was killed by SIGKILL"),
    ],
)
def test_how_a_run_ends_is_an_exception(tmp_path, monkeypatch, status, printed, error, message):
    monkeypatch.setattr(run_function, "_run_command", lambda arguments, verbose: (status, printed))
    with pytest.raises(error) as caught:
        layerbeam.run(settings(tmp_path))
    assert str(caught.value) == message
