"""Signs of life: one thread for each process and file, which ends with those who work."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest

from layerbeam.pipeline.output import heartbeat
from layerbeam.pipeline.output.heartbeat import Holder, beating
from layerbeam.transforms import storage
from layerbeam.transforms.commits import InputFile


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


def test_one_thread_for_all_who_work_in_a_process(alive):
    first, second = Holder(str(alive)), Holder(str(alive))
    assert len(beats()) == 1
    first.let_go()
    assert len(beats()) == 1
    second.let_go()
    second.let_go()
    assert beats() == []


def test_who_vanishes_without_a_word_does_not_beat_forever(alive):
    holder = Holder(str(alive))
    wait_for(alive.exists)
    del holder
    gc.collect()
    wait_for(lambda: beats() == [])


def test_a_process_does_not_write_what_another_has_written(alive, monkeypatch):
    written = []
    monkeypatch.setattr(heartbeat, "beat", written.append)
    times = iter(range(1000))
    # Another process writes each time.
    monkeypatch.setattr(storage, "stat_file", lambda path: InputFile(path, 0, float(next(times))))
    with beating(str(alive)):
        wait_for(lambda: next(times) > 10)
    assert written == []


def test_all_who_work_learn_that_the_attempt_is_given_up(alive):
    given_up = []
    first, second = Holder(str(alive), lambda: bool(given_up)), Holder(str(alive))
    wait_for(alive.exists)
    assert not first.is_over
    given_up.append(True)
    wait_for(lambda: first.is_over)
    given_up.clear()
    wait_for_beats(alive, 2 * heartbeat._BEATS_PER_QUESTION)  # a later answer does not take it back
    assert first.is_over
    assert second.is_over
    first.let_go()
    second.let_go()


def test_a_beat_that_fails_does_not_end_them(alive, monkeypatch):
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
