"""Signs of life: a thread that writes a file as long as its program works for an attempt."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from layerbeam.pipeline.output import heartbeat
from layerbeam.pipeline.output.heartbeat import beating


@pytest.fixture
def alive(tmp_path, quick_beats) -> Path:
    return tmp_path / "_runs/1.alive"


def beats() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "alive"]


def wait_for(condition) -> None:
    while not condition():
        time.sleep(0.005)


def wait_for_beats(alive: Path, count: int) -> None:
    for _ in range(count):
        before = alive.stat().st_mtime_ns
        wait_for(lambda before=before: alive.stat().st_mtime_ns > before)


def test_the_file_is_written_again_and_again_until_the_end(alive):
    with beating(str(alive)):
        wait_for(alive.exists)
        wait_for_beats(alive, 2)
    assert beats() == []
    assert [path.name for path in alive.parent.iterdir()] == ["1.alive"]


def test_a_beat_that_fails_is_not_the_last(alive, monkeypatch):
    real, failed = heartbeat.beat, []

    def fail_first(path: str) -> None:
        if not failed:
            failed.append(path)
            raise OSError("no disk")
        real(path)

    monkeypatch.setattr(heartbeat, "beat", fail_first)
    with beating(str(alive)):
        wait_for(alive.exists)
    assert failed
