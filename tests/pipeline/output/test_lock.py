"""One writer for each output folder, on disks and on stores."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from corpora import random_lines
from flaky_filesystem import SCHEME, FaultyFileSystem, Plan

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.output import lock
from layerbeam.pipeline.output.lock import only_writer


@pytest.fixture
def store(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(FaultyFileSystem, "plan", Plan())
    monkeypatch.setattr(lock, "_SETTLE_SECONDS", 0.05)
    (tmp_path / "out").mkdir()
    return f"{SCHEME}{tmp_path}/out"


def other_writer(tmp_path, **facts) -> None:
    me = {"host": "elsewhere", "pid": 1, "token": "x"} | facts
    (tmp_path / "out/_writer.json").write_text(json.dumps(me))


def test_a_second_run_is_refused_while_the_first_lives(workplace):
    workplace.write("corpus/a.txt", "\n".join(random_lines(2000)))
    workplace.configure(input={"slice_bytes": 500})
    first = workplace.at_work()
    first.send_signal(signal.SIGSTOP)  # it lives, however long the second one takes
    assert workplace.run(status=4).err == (
        "layerbeam: out: another run is at work in this folder; wait for it or stop it\n"
    )
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=120)
    assert first.returncode == 0
    workplace.run("--output", "alone")
    assert workplace.files() == workplace.files("alone")


def test_a_dead_ones_lock_is_no_obstacle(workplace, tmp_path):
    script = "import fcntl, os; f = open('out/_lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); os.kill(os.getpid(), 9)"
    (tmp_path / "out").mkdir()
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert (tmp_path / "out/_lock").exists()
    with only_writer(str(tmp_path / "out")):
        pass
    assert not (tmp_path / "out").exists()


def test_who_is_refused_takes_nothing_away(tmp_path):
    """Not even the folder, in which nothing is yet."""
    out = str(tmp_path / "out")
    with only_writer(out):
        for _ in range(2):
            with pytest.raises(BusyError, match="another run is at work"), only_writer(out):
                pass
        assert os.listdir(out) == ["_lock"]


def test_many_at_once_hold_it_one_after_the_other(tmp_path):
    script = """
import os
from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.output.lock import only_writer
held = 0
while held < 20:
    try:
        with only_writer("out"):
            os.close(os.open("alone", os.O_CREAT | os.O_EXCL))
            os.remove("alone")
            held += 1
    except BusyError:
        pass
"""
    runs = [subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE) for _ in range(3)]
    for run in runs:
        _, err = run.communicate(timeout=120)
        assert run.returncode == 0, err


def test_on_a_store_who_lost_it_leaves_it_alone(store, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_HEARTBEAT_INTERVAL_SECONDS", 0.05)
    with only_writer(store):
        other_writer(tmp_path)
        time.sleep(0.3)
    assert json.loads((tmp_path / "out/_writer.json").read_text())["host"] == "elsewhere"


def test_on_a_store_the_second_is_refused_while_the_first_beats(store, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_HEARTBEAT_INTERVAL_SECONDS", 0.1)
    beats = set()
    with only_writer(store):
        for _ in range(8):
            beats.add((tmp_path / "out/_writer.json").stat().st_mtime_ns)
            time.sleep(0.05)
        monkeypatch.setattr(lock, "_host_id", lambda: "elsewhere")  # else it would know its own process
        with pytest.raises(BusyError, match="another run is at work in this folder, on "), only_writer(store):
            pass
    assert len(beats) > 1
    assert not (tmp_path / "out/_writer.json").exists()
    with only_writer(store):
        pass


def test_on_a_store_a_dead_writer_is_forgotten(store, tmp_path):
    other_writer(tmp_path)
    with pytest.raises(BusyError, match="on elsewhere; wait for it or stop it"), only_writer(store):
        pass
    long_ago = time.time() - 151
    os.utime(tmp_path / "out/_writer.json", (long_ago, long_ago))
    with only_writer(store):
        assert json.loads((tmp_path / "out/_writer.json").read_text())["pid"] == os.getpid()


def test_on_a_store_a_dead_process_of_this_machine_is_no_obstacle(store, tmp_path):
    with subprocess.Popen(["true"]) as process:
        process.wait()
    other_writer(tmp_path, host=lock._host_id(), pid=process.pid)
    with only_writer(store):
        pass
    other_writer(tmp_path, host=lock._host_id(), pid=os.getppid())
    with pytest.raises(BusyError), only_writer(store):
        pass


def test_of_two_that_start_at_once_on_a_store_the_later_goes_on(store, tmp_path, monkeypatch):
    def meanwhile(_: float) -> None:
        other_writer(tmp_path, token="later")

    monkeypatch.setattr(lock.time, "sleep", meanwhile)
    with pytest.raises(BusyError, match="another run has just started in this folder"), only_writer(store):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_mount_that_does_no_locks_is_held_as_stores_are(tmp_path, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(lock, "_SETTLE_SECONDS", 0)
    with only_writer(str(tmp_path / "out")):
        assert (tmp_path / "out/_writer.json").exists()
    assert not (tmp_path / "out").exists()
    with contextlib.suppress(BusyError), only_writer(str(tmp_path / "out")):
        pass


def test_a_mount_that_locks_only_files_open_for_writing(tmp_path, monkeypatch):
    """As NFS does; it is still one writer."""
    flock, opened = fcntl.flock, []

    def lock_writable(file: int, flags: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        opened.append(file)
        flock(file, flags)

    monkeypatch.setattr(fcntl, "flock", lock_writable)
    with only_writer(str(tmp_path / "out")), pytest.raises(BusyError), only_writer(str(tmp_path / "out")):
        pass
    assert len(opened) == 2


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/_lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot write to"), only_writer(str(tmp_path / "out")):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_fails_otherwise_is_an_error_and_leaves_the_folder(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output error"), only_writer(str(tmp_path / "out")):
        pass
