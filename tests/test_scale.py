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
    "start": 0.0,
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


def test_time_is_that_of_the_rounds_of_blocks(scale):
    job = scale.Job(1e9, "token", NUMBERS)
    assert job.hours * 3600 == 10_000  # 400 threads of 250 tokens/s, 5,000 blocks each


def test_threads_beyond_blocks_are_idle(scale):
    job = scale.Job(1e9, "token", NUMBERS | {"token_block": 200_000_000})
    assert job.blocks == 5
    assert job.hours * 3600 == 800_000  # one block of 200 million tokens on one vCPU: the blocks run in parallel
