"""docs/scale.md has the tables of scale.py; its formulas are checked on simple numbers."""

from __future__ import annotations

from typing import Any

import pytest
from repository import ROOT

NUMBERS = {
    "token_block": 500.0,
    "text_tokens": 10.0,
    "row_bytes": 3000.0,
    "core": 500.0,
    "vcpu": 0.5,
    "l4": 178_000.0,
    "upload": 300e6,
    "start": 0.0,
    "group": 1000.0,
    "reads": 2.0,
    "read": 0.01,
    "pages": 0.005,
    "part_pages": 0.002,
    "page": 0.4,
    "batches": 0.01,
    "batch": 0.5,
}


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tests/benchmarks")
    import scale

    return scale


def test_page_is_up_to_date(scale):
    page = scale.PAGE.read_text()
    assert "| 100 B |" in page
    assert scale.updated(page) == page, "run `make scale`"


def test_counts_are_proportional_to_tokens(scale):
    job = scale.Job(1e9, "token", NUMBERS)
    assert (job.blocks, job.rows, job.disk_bytes) == (2_000_000, 1e9, 3e12)


def test_time_follows_slowest_resource(scale):
    job = scale.Job(1e9, "token", NUMBERS)
    assert job.cpu_hours * 3600 == 10_000  # 400 threads of 250 tokens/s, 5,000 blocks each
    assert job.l4_hours * 3600 == pytest.approx(2500)  # 4 workers, each uploads 100,000 tokens/s


def test_threads_beyond_blocks_are_idle(scale):
    job = scale.Job(1e6, "token", NUMBERS | {"token_block": 200_000})
    assert job.blocks == 5
    assert job.cpu_hours * 3600 == 800  # one block of 200,000 tokens on one vCPU: the blocks run in parallel


def test_end_waits_for_requests(scale):
    job = scale.Job(1e6, "token", NUMBERS)
    assert job.blocks == 2000
    assert job.groups_seconds == pytest.approx(27)  # 2 groups at once: 2,000 reads, 5 pages and 10 batches each
    assert job.last_seconds == pytest.approx(1.6)  # 4 pages
