"""docs/scale.md is generated from the measurements by scale.py; its arithmetic is checked on simple numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from repository import ROOT

BENCHMARKS = ROOT / "tests/benchmarks"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import scale_model

    return scale_model


def figures(**changes: Any) -> dict[str, Any]:
    """1,000 tokens of 4 bytes in 2 blocks; a core encodes 500 tokens/s, the other work of 10,000 tokens takes 1 s."""
    flow = {
        "encoded_tokens": 1000,
        "text_bytes": 4000,
        "blocks": 2,
        "processor_seconds": 0.1,
        "views": {"v": {"rows": 1000}},
        "shuffled_bytes": {"slices": 500, "commits": 1500},
    }
    speed = {"encoded_tokens": 1000, "processor_seconds": 2.0, "views": {"v": {"rows": 100, "bytes": 300_000}}}
    ends = {
        "finish, 10": {"seconds": 1.0, "memory_bytes": 50_000, "parts_jsonl_bytes": 7000},
        "finish, 100": {"seconds": 1.9, "memory_bytes": 410_000, "parts_jsonl_bytes": 70_000},
    }
    measured = {
        "machine": {"commits": 100},
        "flow": {"BERT-base size, token": flow},
        "speed": {"BERT-base size, float32, token": speed},
        "load": {"BERT-base size, float32": {"import_seconds": 3.0, "load_seconds": 2.0}},
        "ends": ends,
        "store_requests": {"find": {"open": 1.0}},
    }
    return measured | changes


def test_page_is_up_to_date():
    printed = subprocess.run(
        [sys.executable, BENCHMARKS / "scale.py"], capture_output=True, text=True, check=True
    ).stdout
    page = (ROOT / "docs/scale.md").read_text()
    begin, end = "<!-- scale: written by make scale -->\n", "<!-- end of scale -->"
    assert page.split(begin)[1].split(end)[0].strip() == printed.strip(), "run `make scale`"
    assert "## Limits" in printed


def test_counts_are_proportional_to_tokens(model):
    job = model.Job(figures(), "BERT-base size", "token", 1e9)
    assert (job.blocks, job.text_bytes, job.files, job.ranges) == (2_000_000, 4e9, 4, 3815)
    assert job.shuffled == {"slices": 500e6, "commits": 1500e6}
    assert job.part_bytes == 3e12  # 3,000 bytes per row, as for the last layer


def test_hours_follow_slowest_resource(model):
    job = model.Job(figures(), "BERT-base size", "token", 1e9)
    assert job.cpu_rate() == 2000  # 8 vCPUs, each half of a core
    assert job.block_seconds == 2
    assert job.cpu_seconds == 10_000  # 400 threads, 5,000 blocks each
    limits = job.l4_limits()
    assert limits["upload"] == 100_000
    assert limits["vCPUs"] == pytest.approx(40_000)
    assert limits["GPU"] == pytest.approx(178_078, rel=1e-4)  # a quarter of 121 TFLOP/s, 170 MFLOP per token
    assert job.l4_seconds == pytest.approx(6250)  # 4 workers, limited by their vCPUs


def test_threads_beyond_blocks_are_idle(model):
    measured = figures()
    measured["flow"]["BERT-base size, token"]["blocks"] = 0.005
    job = model.Job(measured, "BERT-base size", "token", 1e6)
    assert job.blocks == 5
    assert job.cpu_seconds == 800  # one block of 200,000 tokens on one vCPU: the blocks run in parallel


def test_run_end_waits_for_requests(model):
    job = model.Job(figures(), "BERT-base size", "token", 1e6)
    assert job.blocks == 2000
    assert job.end_requests("finish") == pytest.approx(23)  # 20 requests of 1 s, 10 pages of a listing
    assert job.end_requests("find") == pytest.approx(10.575)  # 3 requests per commit, 32 commits at once; 4 pages
    assert job.end_memory("finish") == 8e6  # 4,000 bytes per commit
    assert job.end_computing("finish") == pytest.approx(40)  # 10 ms here, twice that on a vCPU
    assert job.listing_bytes == 1.4e6


def test_measurements_are_consistent():
    measured = json.loads((BENCHMARKS / "scale_measured.json").read_text())
    assert measured["machine"]["command"] == "make bench-scale"
    for flow in measured["flow"].values():
        # As in the model: each edge has one element per file, range or block; each end of a run has one.
        elements = flow["elements"]
        stages = ("slice/number/ParDo(_NumberSlices)", "wordpiece", "encode", "write")
        assert [elements[stage] for stage in stages] == [flow["blocks"]] * 4
        assert elements["slice/scan"] == 4  # of 1 MiB, in 4.1 MB
        assert elements["reports"] == flow["blocks"] + flow["files"]
        assert elements["finish"] == elements["find/ParDo(FindWork)"] == 1
        assert sum(flow["shuffled_bytes"].values()) < flow["text_bytes"] / 100
