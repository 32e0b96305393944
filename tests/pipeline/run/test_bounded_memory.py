"""Small files that expand without end, and records without end: the memory of a command stays bounded."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from workplace import Workplace

from layerbeam.transforms import storage

pytestmark = pytest.mark.slow

LIMIT = 400  # MB above a small file of plain text; without bounds each of these files takes GB
LOG = b"2026-11-24T12:00:00Z INFO worker-17 heartbeat ok, queue empty\n"
PACKERS: dict[str, tuple[Callable[[], Any], bytes]] = {
    "newlines.txt.bz2": (lambda: bz2.BZ2Compressor(9), b"\n"),
    "newlines.txt.gz": (lambda: zlib.compressobj(9, wbits=31), b"\n"),
    "newlines.txt.zst": (lambda: zstandard.ZstdCompressor(level=3).compressobj(), b"\n"),
    "log.txt.zst": (lambda: zstandard.ZstdCompressor(level=3).compressobj(), LOG),
}


def bomb(name: str) -> bytes:
    """512 MiB of one line again and again."""
    new_packer, line = PACKERS[name]
    packer, chunk = new_packer(), line * ((1 << 20) // len(line))
    return b"".join([*(packer.compress(chunk) for _ in range(512)), packer.flush()])


# In a program of its own: Linux counts the memory of the program that starts a command as the command's, too.
STARTER = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""


def peak_of(workplace: Workplace, command: str, *, statuses: tuple[int, ...] = (0,)) -> int:
    """The most memory, in MB, that a command had."""
    started = [sys.executable, "-c", STARTER, *workplace.command(command, "c.yaml")]
    done = subprocess.run(started, cwd=workplace.folder, capture_output=True, text=True)
    assert done.returncode in statuses, done.stdout + done.stderr
    return int(done.stdout.splitlines()[-1]) >> 10


@pytest.fixture(scope="module")
def plain_peak(tmp_path_factory) -> int:
    place = Workplace(tmp_path_factory.mktemp("plain"))
    place.prepare({"plain.txt": LOG * 1000}, views={"texts": {"level": "text", "layers": [-1]}})
    return peak_of(place, "run")


def test_plan_of_files_that_expand_ten_thousandfold(workplace):
    workplace.configure(views={"texts": {"level": "text", "layers": [-1]}})
    plain = workplace.write("corpus/plain.txt", LOG * 250_000)
    plain_peak = peak_of(workplace, "plan")
    plain.unlink()
    for name in PACKERS:
        workplace.write(f"corpus/{name}", bomb(name))
    assert peak_of(workplace, "plan") < plain_peak + LIMIT


def test_plan_of_a_file_of_64_gigabytes(workplace, plain_peak):
    workplace.configure(views={"texts": {"level": "text", "layers": [-1]}})
    path = workplace.write("corpus/a.txt", LOG * 1000)
    os.truncate(path, 1 << 36)  # zeros at the end, which take no disk
    assert peak_of(workplace, "plan") < plain_peak + LIMIT


def test_plan_of_a_parquet_file_that_has_one_text_thousands_of_times(workplace, plain_peak):
    text = pa.DictionaryArray.from_arrays(np.zeros(2000, np.int32), [LOG.decode() * 16_000])
    pq.write_table(pa.table({"text": text}), workplace.folder / "a.parquet")
    workplace.configure(input={"files": "a.parquet"}, views={"texts": {"level": "text", "layers": [-1]}})
    assert peak_of(workplace, "plan") < plain_peak + LIMIT


def test_many_equal_texts(workplace, plain_peak):
    workplace.write("corpus/plain.txt", LOG * 60_000)
    workplace.configure(input={"slice_bytes": 1 << 24}, views={"texts": {"level": "text", "layers": [-4, -3, -2, -1]}})
    assert peak_of(workplace, "run") < plain_peak + LIMIT


@pytest.mark.parametrize("name", ["newlines.txt.bz2", "log.txt.zst"])
def test_first_records_of_a_file_that_expands_ten_thousandfold(workplace, plain_peak, name):
    workplace.write(f"corpus/{name}", bomb(name))
    workplace.configure(input={"limit": 1000}, views={"texts": {"level": "text", "layers": [-1]}})
    # Nothing is embedded of empty lines, which is status 3.
    assert peak_of(workplace, "run", statuses=(0, 3)) < plain_peak + LIMIT
    counts = workplace.manifest()["counts"]
    assert (counts["records_read"], counts.get("embedded", 0)) == (1000, 1000 if name == "log.txt.zst" else 0)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.txt", b"first\n", b"\nlast\n"),
        ("a.jsonl", b'{"text": "first"}\n{"text": "', b'"}\n{"text": "last"}\n'),
        ("a.csv", b'text,n\nfirst,1\n"', b'",2\nlast,3\n'),
    ],
)
def test_a_line_of_a_gigabyte(workplace, plain_peak, name, before, after):
    path = workplace.write(f"corpus/{name}", before + b"x" * 8192)
    with open(path, "r+b") as file:
        file.seek(1 << 30)  # zeros between, which take no disk
        file.write(after)
    workplace.configure(input={"max_reject_rate": 1}, views={"texts": {"level": "text", "layers": [-1]}})
    assert peak_of(workplace, "run") < plain_peak + LIMIT
    assert workplace.rows("texts")["line"].to_pylist() == ([1, 3] if name == "a.csv" else [0, 2])
    (reject,) = workplace.rejects()
    assert (reject["line"], reject["stage"]) == (2 if name == "a.csv" else 1, "read")
    assert reject["reason"] == "is longer than 33,554,432 bytes (input.max_record_bytes)"


def test_a_million_short_members():
    packed = gzip.compress(b"a", mtime=0) * 1_000_000
    assert sum(map(len, storage.read_chunks(io.BytesIO(packed), "a.gz"))) == 1_000_000


def test_a_window_that_needs_too_much_memory(workplace):
    parameters = zstandard.ZstdCompressionParameters(window_log=28, compression_level=1)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    workplace.prepare({"long.txt.zst": packed.compress(b"a text\n") + packed.flush(), "other.txt": "a text\n"})
    problem = "takes more than 128 MiB to decompress (zstd --long); use `zstd -d --long=31`, and zstd again"
    assert problem in workplace.run(status=3).out
    assert set(workplace.rows()["file"].to_pylist()) == {"corpus/other.txt"}
