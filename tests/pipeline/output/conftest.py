from __future__ import annotations

import pytest

from layerbeam.pipeline.output import heartbeat


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life every 20 ms."""
    monkeypatch.setattr(heartbeat, "_INTERVAL_SECONDS", 0.02)
