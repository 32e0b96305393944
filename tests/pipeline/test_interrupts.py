"""Signals reach the run, whatever it is doing."""

from __future__ import annotations

import os
import signal
import time

import pytest

from pipeline.interrupts import Stop


def interrupted(stop: Stop, number: int, *, swallowed: bool) -> None:
    with stop:
        try:
            os.kill(os.getpid(), number)
            time.sleep(30)
        except BaseException:
            if not swallowed:
                raise
        time.sleep(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_somebody_swallows_comes_again(number):
    stop = Stop(again_seconds=0.1)
    with pytest.raises(KeyboardInterrupt):
        interrupted(stop, number, swallowed=True)
    assert stop.number == number


def test_nothing_comes_after_it_is_left():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        interrupted(Stop(again_seconds=0.05), signal.SIGTERM, swallowed=False)
    assert signal.getsignal(signal.SIGTERM) is before
    time.sleep(0.2)
