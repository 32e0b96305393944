"""One writer for each output folder, on disks and on stores."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from corpora import random_lines
from flaky_filesystem import SCHEME, FaultyFileSystem, Plan
from tampering import age

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.output import attempts
from layerbeam.pipeline.output.lock import only_writer


@pytest.fixture
def store(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(FaultyFileSystem, "plan", Plan())
    settle(monkeypatch, 0.05)
    (tmp_path / "out").mkdir()
    return f"{SCHEME}{tmp_path}/out"


def settle(monkeypatch, seconds: float, sleep=time.sleep) -> None:
    """Who starts without a lock waits for so long before looking whether another one has started."""
    monkeypatch.setattr(time, "sleep", lambda _: sleep(seconds))


def other_attempt(tmp_path, number: int, **owner) -> Path:
    """The record of an attempt that has taken its number."""
    path = tmp_path / f"out/_runs/{number}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    owner = {"host": "elsewhere", "pid": 1, "token": "x"} | owner
    path.write_text(json.dumps({"run": number, "state": "claimed", "owner": owner}))
    return path


@pytest.mark.slow
def test_a_second_run_is_refused_while_the_first_lives(workplace):
    workplace.prepare("\n".join(random_lines(2000)), input={"slice_bytes": 500})
    first = workplace.at_work()
    first.send_signal(signal.SIGSTOP)  # it lives, however long the second one takes
    assert workplace.drive(status=4).err == (
        "layerbeam: out: another run is active in this folder; wait for it or stop it\n"
    )
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=120)
    assert first.returncode == 0
    workplace.drive("--output", "alone")
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
            with pytest.raises(BusyError, match="another run is active"), only_writer(out):
                pass
        assert sorted(os.listdir(out)) == ["_lock", "_runs"]
        assert os.listdir(f"{out}/_runs") == ["1.json"]
    assert not os.path.exists(out)


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


@pytest.mark.slow
def test_twins_started_by_a_scheduler_one_works_and_one_is_refused(workplace):
    workplace.prepare("\n".join(random_lines(2000)), input={"slice_bytes": 500})
    command = workplace.command("run", "c.yaml")
    twins = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = {twin.returncode: err for twin in twins for _, err in [twin.communicate(timeout=240)]}
    assert sorted(errors) == [0, 4]
    assert errors[4].endswith("layerbeam: out: another run is active in this folder; wait for it or stop it\n")
    assert [name for name in os.listdir("out/_runs") if name.endswith(".json")] == ["1.json"]
    workplace.verify(status=0)


def test_a_refused_attempt_and_one_without_a_record_leave_nothing(store, tmp_path):
    with only_writer(store) as claim:
        assert claim["run"] == 1
        with pytest.raises(BusyError, match="another run is active in this folder, on "), only_writer(store):
            pass
        assert os.listdir(tmp_path / "out/_runs") == ["1.json"]
    with only_writer(store) as claim:
        assert claim["run"] == 1
    assert os.listdir(tmp_path / "out/_runs") == []


@pytest.mark.usefixtures("quick_beats")
def test_on_a_store_the_second_is_refused_while_the_first_beats(store, tmp_path, monkeypatch):
    alive = tmp_path / "out/_runs/1.alive"
    with only_writer(store):
        age(tmp_path / "out/_runs/1.json", 1000)
        while not alive.exists():
            time.sleep(0.01)
        monkeypatch.setattr(attempts, "host_id", lambda: "elsewhere")  # else it would know its own process
        with pytest.raises(BusyError, match="another run is active in this folder, on "), only_writer(store):
            pass
    assert not alive.exists()


def test_on_a_store_a_dead_writer_is_forgotten(store, tmp_path):
    record = other_attempt(tmp_path, 4)
    age(record, 100)
    with pytest.raises(BusyError, match="on elsewhere; wait for it or stop it"), only_writer(store):
        pass
    age(record, 151)
    with only_writer(store) as claim:
        assert claim["run"] == 5


def test_on_a_store_another_clock_makes_no_live_writer_dead(store, tmp_path, monkeypatch):
    """Times of the store are compared with times of the store."""
    other_attempt(tmp_path, 1)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    with pytest.raises(BusyError), only_writer(store):
        pass


def test_on_a_store_a_dead_process_of_this_machine_is_no_obstacle(store, tmp_path):
    with subprocess.Popen(["true"]) as process:
        process.wait()
    other_attempt(tmp_path, 1, host=attempts.host_id(), pid=process.pid)
    with only_writer(store):
        pass
    other_attempt(tmp_path, 1, host=attempts.host_id(), pid=os.getppid())
    with pytest.raises(BusyError), only_writer(store):
        pass


@pytest.mark.parametrize("has_ended", [False, True])
def test_of_two_that_write_the_same_number_the_later_works(store, tmp_path, monkeypatch, has_ended):
    """On a store that does not refuse to create what exists."""
    record = tmp_path / "out/_runs/1.json"
    this = threading.get_ident()

    def sleep(seconds: float) -> None:
        if threading.get_ident() == this:  # threads that other tests have left behind may sleep, too
            record.unlink() if has_ended else other_attempt(tmp_path, 1)

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(BusyError, match="another run has just started in this folder"), only_writer(store):
        pass
    assert record.exists() != has_ended
    assert has_ended or json.loads(record.read_text())["owner"]["host"] == "elsewhere"


def test_of_many_that_start_at_once_on_a_store_one_works(store, monkeypatch):
    settle(monkeypatch, 4)  # memory:// cannot create a file only if it is absent
    barrier, ended = threading.Barrier(6), threading.Event()
    held, refused = [], []

    def start() -> None:
        barrier.wait()
        try:
            with only_writer(store) as claim:
                held.append(claim["run"])
                ended.wait(60)
        except BusyError as error:
            refused.append(error)
        if len(refused) == 5:
            ended.set()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(refused)) == (1, 5)


def no_locks(monkeypatch, number: int = errno.ENOLCK) -> None:
    """From now on no mount does locks."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    settle(monkeypatch, 0.05)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_mount_that_does_no_locks_is_held_as_stores_are(tmp_path, monkeypatch, number):
    no_locks(monkeypatch, number)
    with only_writer(str(tmp_path / "out")):
        assert os.listdir(tmp_path / "out") == ["_runs"]
        with pytest.raises(BusyError), only_writer(str(tmp_path / "out")):
            pass
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("data", [b"", b'{"run": 1, "sta'])
def test_a_claim_that_is_being_written_counts_until_it_is_silent(tmp_path, monkeypatch, data):
    """On a mount without locks and links."""
    no_locks(monkeypatch)
    record = other_attempt(tmp_path, 1)
    record.write_bytes(data)
    with pytest.raises(BusyError, match="on some machine; wait for it or stop it"), only_writer(str(tmp_path / "out")):
        pass
    age(record, 151)
    with only_writer(str(tmp_path / "out")) as claim:
        assert claim["run"] == 2


def test_a_lower_number_that_was_chosen_before_and_taken_after_is_seen(tmp_path, monkeypatch):
    """On a mount without locks: the first attempt ended between the two looks of the second one."""
    no_locks(monkeypatch)
    age(other_attempt(tmp_path, 1), 151)
    monkeypatch.setattr(time, "sleep", lambda _: other_attempt(tmp_path, 1))
    with pytest.raises(BusyError, match="is active"), only_writer(str(tmp_path / "out")):
        pass


_STARTS = """
import errno, fcntl, os, sys
from layerbeam.pipeline.errors import BusyError
from layerbeam.pipeline.output import attempts, lock

def fail(*_):
    raise OSError(errno.ENOTSUP, "as on some mounts")

fcntl.flock = fail
if sys.argv[1] == "without links":
    os.link = fail
lock._SETTLE_SECONDS = 0
held = refused = 0
while held < 50 or refused < 50:
    try:
        with lock.only_writer("out"):
            held += 1
    except BusyError:
        refused += 1
"""


@pytest.mark.parametrize("links", ["with links", "without links"])
def test_many_at_once_without_locks_work_or_are_refused(tmp_path, links):
    """No other error comes up, although they create and remove folders and files under each other's hands."""
    command = [sys.executable, "-c", _STARTS, links]
    runs = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        while all(run.poll() is None for run in runs):  # nobody refuses the last one
            time.sleep(0.01)
        first = next(run for run in runs if run.poll() is not None)
        assert first.returncode == 0, first.communicate()[1]
    finally:
        for run in runs:
            run.kill()
            run.communicate()


def test_a_sign_of_life_from_the_future_does_not_hold_a_folder(store, tmp_path):
    record = other_attempt(tmp_path, 1)
    age(record, -86_400)
    (tmp_path / "out/_runs/1.alive").touch()
    age(tmp_path / "out/_runs/1.alive", -86_400)
    with only_writer(store) as claim:
        assert claim["run"] == 2
    age(tmp_path / "out/_runs/1.alive", -100)  # the clocks of a mount's machines may differ a little
    with pytest.raises(BusyError), only_writer(store):
        pass


def test_force_starts_next_to_a_program_that_nobody_can_ask(store, tmp_path):
    other_attempt(tmp_path, 1)
    with pytest.raises(BusyError) as refused, only_writer(store):
        pass
    assert str(refused.value) == (
        f"{store}: another run is active in this folder, on elsewhere; wait for it or stop it (a killed run is "
        "forgotten after 150 s; if you know that it has ended, --force starts)"
    )
    with only_writer(store, force=True) as claim:
        assert claim["run"] == 2


def test_force_does_not_start_next_to_a_process_of_this_machine(store):
    with only_writer(store), pytest.raises(BusyError, match="is active") as refused, only_writer(store, force=True):
        pass
    assert "--force" not in str(refused.value)


def test_two_machines_with_one_name_do_not_judge_each_others_processes(store, tmp_path):
    """Process 1 of the other one says nothing about a process that has ended here."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    name, boot, namespace = attempts.host_id().rsplit(" ", 2)
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    other_attempt(tmp_path, 1, host=f"{name} {'0' * 8}{boot[8:]} {namespace}", pid=process.pid)
    with pytest.raises(BusyError), only_writer(store):
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
