from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest

from layerbeam.pipeline import progress as progress_module
from layerbeam.pipeline.progress import JobProgress, Progress, Steps, show_progress
from layerbeam.transforms.encode.forward import TOKENS_ENCODED


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "POLL_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(progress_module, "LOG_INTERVAL_SECONDS", 0.0)


def commit(folder: Path, name: str, **counts: int) -> None:
    (folder / "_commits").mkdir(exist_ok=True)
    (folder / "_commits" / name).write_text(json.dumps({"files": [{"counts": counts}]}))


def test_commits_of_this_run_count_and_earlier_ones_do_not(tmp_path):
    commit(tmp_path, "before.json", tokens=1000, embedded=9)
    progress = Progress(str(tmp_path), total_tokens=400)
    start = progress._history[0][0]
    commit(tmp_path, "a.json", tokens=80, embedded=10, rejected=3)
    (tmp_path / "_commits" / "begun.json").write_text("")
    progress.update(start + 10)
    assert (progress.texts, progress.tokens, progress.rejected) == (10, 100, 3)
    assert (progress.fraction, progress.tokens_per_second, progress.seconds_left) == (0.25, 10, 30)
    assert progress.describe() == "10 tokens/s, 10 texts in finished blocks, 3 rejected, 30 s left"
    commit(tmp_path, "begun.json", tokens=260, embedded=20)
    progress.update(start + 20)
    assert (progress.tokens, progress.fraction) == (400, 1.0)
    assert progress.describe() == "20 tokens/s, 30 texts in finished blocks, 3 rejected, nearly done"


def test_batches_of_an_unfinished_block_count(tmp_path):
    progress = Progress(str(tmp_path), total_tokens=100)
    TOKENS_ENCODED.add(40)
    progress.update(progress._history[0][0] + 10)
    assert (progress.tokens, progress.texts, progress.fraction) == (40, 0, 0.4)
    assert progress.describe() == "4 tokens/s, 15 s left"  # no text is written yet
    commit(tmp_path, "a.json", tokens=20, embedded=5)  # of that block or another: tokens never count twice
    progress.update()
    assert (progress.tokens, progress.texts) == (40, 5)


def test_the_rate_is_the_mean_of_the_last_half_minute(tmp_path):
    progress = Progress(str(tmp_path), total_tokens=1e6)
    start = progress._history[0][0]
    for second in range(1, 121):
        TOKENS_ENCODED.add(100 if second <= 60 else 10)
        progress.update(start + second)
    assert progress.tokens_per_second == 10


def test_a_run_that_has_just_started(tmp_path):
    progress = Progress(str(tmp_path), total_tokens=0)
    progress.update()
    assert (progress.fraction, progress.seconds_left) == (0.0, None)
    assert progress.describe() == "starting"
    progress = JobProgress(str(tmp_path), None)
    progress.update()
    assert progress.describe() == "0 blocks committed"


class Job:
    state = "RUNNING"


def later(progress: JobProgress) -> JobProgress:
    """The same when it is time to list the commits again."""
    return dataclasses.replace(progress, _next=0.0)


def test_a_job_s_commits_are_counted(tmp_path):
    for number in range(40):
        commit(tmp_path, f"{number}.json", tokens=80, embedded=10)
    progress = JobProgress(str(tmp_path), Job())
    progress.update()
    assert (progress.blocks, progress.texts, progress.fraction) == (40, 400, None)
    assert progress.describe() == "running, 40 blocks committed, about 400 texts"
    (tmp_path / "_commits" / "40.json").write_text("")
    progress.update()
    assert progress.blocks == 40  # they are not listed again at once
    progress = later(progress)
    progress.update()
    assert progress.blocks == 41
    for path in (tmp_path / "_commits").iterdir():
        path.unlink()
    progress = later(progress)
    progress.update()
    assert progress.blocks == 41  # the end of a job deletes them


def test_a_job_that_commits_nothing(tmp_path):
    progress = JobProgress(str(tmp_path), Job(), _began=time.monotonic() - 301)
    progress.update()
    hint = "do the workers start? (docs/runners.md#when-nothing-is-committed)"
    assert progress.describe() == f"running, 0 blocks committed, {hint}"
    commit(tmp_path, "a.json", tokens=80, embedded=10)
    progress = later(progress)
    progress.update()
    assert progress.describe() == "running, 1 block committed, about 10 texts"


def test_lines_without_a_fraction(tmp_path):
    commit(tmp_path, "a.json", tokens=40, embedded=5)
    stream = io.StringIO()
    with show_progress(JobProgress(str(tmp_path), Job()), stream=stream):
        while "1 block " not in stream.getvalue():
            pass
    assert stream.getvalue().splitlines()[-1].endswith(" running, 1 block committed, about 5 texts")


def test_lines_without_a_terminal(tmp_path):
    stream = io.StringIO()
    progress = Progress(str(tmp_path), total_tokens=100)
    with show_progress(progress, stream=stream):
        commit(tmp_path, "a.json", tokens=40, embedded=5)
        while "5 texts" not in stream.getvalue():
            pass
    assert " 50%: " in stream.getvalue().splitlines()[-1]


def test_the_first_line_comes_soon(monkeypatch):
    monkeypatch.setattr(progress_module, "LOG_INTERVAL_SECONDS", 1e9)
    monkeypatch.setattr(progress_module, "FIRST_LOG_SECONDS", 0.0)
    stream = io.StringIO()
    with show_progress(Steps("text", 8, done=3), stream=stream):
        while not stream.getvalue():
            pass
    assert re.fullmatch(r"\d\d:\d\d:\d\d 38%: 3 of 8 texts\n", stream.getvalue())


def test_a_closed_stream_does_not_end_the_run(tmp_path):
    stream = io.StringIO()
    with show_progress(Progress(str(tmp_path), total_tokens=1), stream=stream):
        stream.close()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--processes", "2"]])
def test_a_run_at_a_terminal_has_a_bar_that_disappears(workplace, arguments):
    workplace.prepare("light shines in the darkness\n" * 20_000, input={"slice_bytes": 20_000})
    ours, theirs = pty.openpty()
    command = workplace.command("run", "c.yaml", *arguments)
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    shown = b""
    with subprocess.Popen(command, cwd=workplace.folder, stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        with open(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # when the other end is closed
            while piece := terminal.read(65536):
                shown += piece
        out = process.stdout.read().decode()
    assert process.returncode == 0, shown
    assert b"tokens/s" in shown
    assert b"100%" in shown or b"left" in shown
    assert b"\x1b[?25h" in shown  # the cursor is back
    assert "complete" in out
    assert "tokens/s" not in out


def test_counted_steps():
    stream, steps = io.StringIO(), Steps("text", 8)
    with show_progress(steps, stream=stream):
        steps.done = 2
        while "2 of" not in stream.getvalue():
            pass
    assert stream.getvalue().splitlines()[-1].endswith(" 25%: 2 of 8 texts")
    assert Steps("text", 1).describe() == "0 of 1 text"
