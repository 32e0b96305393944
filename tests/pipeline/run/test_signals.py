from __future__ import annotations

import ctypes
import signal
import subprocess
import sys

import pytest

# Its main thread waits for a thread that prints its number and sleeps.
PROGRAM = """
import threading, time
from layerbeam.pipeline.run.signals import install_signal_handlers, run_in_thread

def work():
    print(threading.get_native_id(), flush=True)
    time.sleep(600)

install_signal_handlers()
try:
    run_in_thread(work)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "tgkill"), reason="a signal to one thread: Linux, glibc 2.30")
def test_a_signal_that_another_thread_receives_interrupts_the_main_thread():
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        other = int(process.stdout.readline())
        assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGINT) == 0
        out, _ = process.communicate()
    assert (process.returncode, out) == (0, "interrupted\n")
