from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from layerbeam.pipeline.cli import progress as progress_module
from layerbeam.pipeline.cli.progress import Progress, describe, shown
from layerbeam.transforms import metrics


def commit(folder: Path, name: str, **counts: int) -> None:
    (folder / "_commits").mkdir(exist_ok=True)
    (folder / "_commits" / name).write_text(json.dumps({"counts": counts}))


def test_only_commits_of_this_run_count(tmp_path):
    commit(tmp_path, "before.json", tokens=1000, embedded=9)
    progress = Progress(str(tmp_path), total_tokens=400)
    start = progress._seen[0][0]
    commit(tmp_path, "a.json", tokens=80, embedded=10, rejected=3)
    (tmp_path / "_commits" / "begun.json").write_text("")
    progress.look(start + 10)
    assert (progress.texts, progress.tokens, progress.rejected) == (10, 100, 3)
    assert (progress.share, progress.tokens_per_second, progress.seconds_left) == (0.25, 10, 30)
    assert describe(progress) == "10 texts, 10 tokens/s, 3 rejected, 30 s left"
    commit(tmp_path, "begun.json", tokens=260, embedded=20)
    progress.look(start + 20)
    assert (progress.tokens, progress.share) == (400, 1.0)
    assert describe(progress) == "30 texts, 20 tokens/s, 3 rejected, nearly done"


def test_batches_of_current_block_count(tmp_path):
    progress = Progress(str(tmp_path), total_tokens=100)
    metrics.note_encoded(40)
    progress.look()
    assert (progress.tokens, progress.texts, progress.share) == (40, 0, 0.4)
    commit(tmp_path, "a.json", tokens=20, embedded=5)  # that block or another: never counted twice
    progress.look()
    assert (progress.tokens, progress.texts) == (40, 5)


def test_rate_covers_last_half_minute(tmp_path):
    progress = Progress(str(tmp_path), total_tokens=1e6)
    start = progress._seen[0][0]
    for second in range(1, 121):
        metrics.note_encoded(100 if second <= 60 else 10)
        progress.look(start + second)
    assert progress.tokens_per_second == 10


def test_nothing_known_at_start(tmp_path):
    progress = Progress(str(tmp_path), total_tokens=0)
    progress.look()
    assert (progress.share, progress.seconds_left) == (0.0, None)
    assert describe(progress) == "0 texts, 0 tokens/s"


def test_log_lines_without_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_module, "_POLL_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(progress_module, "_LOG_INTERVAL_SECONDS", 0.02)
    stream = io.StringIO()
    progress = Progress(str(tmp_path), total_tokens=100)
    with shown(progress, stream=stream):
        commit(tmp_path, "a.json", tokens=40, embedded=5)
        while "5 texts" not in stream.getvalue():
            pass
    assert stream.getvalue().splitlines()[-1].startswith("50%: 5 texts, ")


def test_closed_stream_does_not_end_run(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_module, "_POLL_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(progress_module, "_LOG_INTERVAL_SECONDS", 0.0)
    stream = io.StringIO()
    with shown(Progress(str(tmp_path), total_tokens=1), stream=stream):
        stream.close()


@pytest.mark.parametrize("arguments", [[], ["--processes", "2"]])
def test_terminal_bar_is_removed_at_end(workplace, arguments):
    workplace.write("corpus/a.txt", "light shines in the darkness\n" * 20_000)
    workplace.configure(input={"slice_bytes": 20_000})
    ours, theirs = pty.openpty()
    command = workplace.command("run", "c.yaml", *arguments)
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    printed = b""
    with subprocess.Popen(command, cwd=workplace.folder, stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        with open(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # once the other end is closed
            while piece := terminal.read(65536):
                printed += piece
        out = process.stdout.read().decode()
    assert process.returncode == 0, printed
    assert b"tokens/s" in printed
    assert b"100%" in printed or b"left" in printed
    assert b"\x1b[?25h" in printed  # the cursor is visible again
    assert "complete" in out
    assert "tokens/s" not in out
