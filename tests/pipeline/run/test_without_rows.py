"""Files without rows: empty, blank, of rejects only, of texts without kept words only. None of them stops a night."""

from __future__ import annotations

import gzip
import os

import pytest

FILES = {"empty": b"", "blank": b"\n \n\n", "rejected": b"\xff\n\xfe\n", "filtered": b"no such word\n"}
KEPT = {"level": "word", "layers": [1], "keep_words": ["bank"]}
ALONE = {"slice_bytes": 100, "max_reject_rate": 1.0}
TOGETHER = {"max_reject_rate": 1.0}
CASES = [("empty", TOGETHER), ("blank", ALONE), ("blank", TOGETHER), ("rejected", TOGETHER), ("filtered", ALONE)]


def second(workplace, data: bytes) -> None:
    workplace.write("corpus/2.txt", data)


def renamed(workplace, data: bytes) -> None:
    os.rename("corpus/1.txt", "corpus/0.txt")


def touched(workplace, data: bytes) -> None:
    os.utime("corpus/1.txt", (1, 1))


def compressed(workplace, data: bytes) -> None:
    workplace.write("corpus/2.txt.gz", gzip.compress(data))


def grown(workplace, data: bytes) -> None:
    workplace.write("corpus/1.txt", data + b"\n")


@pytest.mark.parametrize("event", [second, renamed, touched, compressed, grown])
@pytest.mark.parametrize(("kind", "limits"), CASES)
def test_nights(workplace, kind, limits, event):
    data = FILES[kind]
    workplace.finished(
        {"a.txt": "the bank\n" * 30, "b.txt": "a bank\n", "1.txt": data}, views={"w": KEPT}, input=limits
    )
    event(workplace, data)
    workplace.plan()
    workplace.drive()
    workplace.assert_equals_fresh()
    assert "nothing to do" in workplace.drive().err
    workplace.configure(views={"w": KEPT, "more": KEPT | {"layers": [0]}}, input=limits)
    second(workplace, data)
    workplace.drive()
    assert workplace.rows("w").num_rows == workplace.rows("more").num_rows == 31
    workplace.verify("--checksums")
