"""Records that are too long, and files that hold other bytes than their size says, through the whole command."""

from __future__ import annotations

import gzip
import os

import pytest

VIEWS = {"texts": {"level": "text", "layers": [-1]}}
LONG = "a long line " * 400
LINES = "\n".join(["one", LONG, "two", "", LONG + LONG, "three"]) + "\n"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_long_lines_are_rejected_the_same_for_any_workers(workplace, name):
    workplace.write(f"corpus/{name}", gzip.compress(LINES.encode(), mtime=0) if name.endswith("gz") else LINES)
    workplace.configure(input={"max_record_bytes": 4000, "slice_bytes": 1000, "max_reject_rate": 1}, views=VIEWS)
    workplace.drive()
    assert workplace.rows("texts")["line"].to_pylist() == [0, 2, 5]
    assert [(reject["line"], reject["byte_offset"]) for reject in workplace.rejects()] == [(1, 4), (4, 4810)]
    assert {reject["reason"] for reject in workplace.rejects()} == {
        "is longer than 4,000 bytes (input.max_record_bytes)"
    }
    counts = workplace.manifest()["counts"]
    assert [counts[name] for name in ("records_read", "embedded", "blank_skipped", "rejected")] == [6, 3, 1, 2]
    workplace.run("--workers", "3", "--output", "other")
    assert workplace.files("other") == workplace.files()
    assert "nothing to do" in workplace.drive().err
    workplace.verify()


def test_the_limit_is_part_of_the_settings_of_a_run(workplace):
    workplace.finished("one\n" * 200, views=VIEWS)
    assert "max_record_bytes" in workplace.drive("--set", "input.max_record_bytes=4000", status=2).err


def test_resumed_run_has_the_same_rejects(workplace):
    workplace.write("corpus/a.txt", LINES * 5)
    workplace.configure(input={"max_record_bytes": 4000, "slice_bytes": 5000, "max_reject_rate": 1}, views=VIEWS)
    workplace.drive()
    before = workplace.files()
    for path in [*workplace.folder.glob("out/rejects/*"), workplace.folder / "out" / "_SUCCESS"]:
        path.unlink()
    workplace.drive()
    assert workplace.files() == before


@pytest.mark.parametrize("how", [{}, {"record": "paragraph"}, {"record": "file"}, {"format": "csv", "text_field": "a"}])
def test_file_with_less_than_its_size_is_named(workplace, how):
    source = "/sys/kernel/uevent_seqnum"
    if not os.path.exists(source) or os.stat(source).st_size != 4096:
        pytest.skip("no file in /sys that holds less than its size")
    workplace.write("corpus/b.txt", "a,b\na text,1\n")
    os.symlink(source, workplace.folder / "corpus" / "a.txt")
    workplace.configure(input={"column_names": ["a", "b"]} | how if "format" in how else how, views=VIEWS)
    with open(source, "rb"):  # as long as it is open its time stays the same
        out = workplace.drive(status=3).out
    assert "bytes, and its size is 4,096; copy it to a disk" in out
    assert set(workplace.rows("texts")["file"].to_pylist()) == {"corpus/b.txt"}


def test_file_of_size_0_that_holds_bytes_is_named(workplace):
    source = "/proc/version"
    if not os.path.exists(source) or os.stat(source).st_size:
        pytest.skip("no file in /proc that holds more than its size")
    workplace.write("corpus/b.txt", "a text\n")
    workplace.write("corpus/empty.txt", "")
    os.symlink(source, workplace.folder / "corpus" / "a.txt")
    workplace.configure(views=VIEWS)
    out = workplace.drive(status=3).out
    assert "holds bytes, and its size is 0; copy it to a disk" in out
    assert "empty.txt" not in out
