from __future__ import annotations

from typing import Any

import pytest

from layerbeam.transforms import encode


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(name, number of texts) of each block that is encoded."""
    blocks: list[tuple[str, int]] = []
    real = encode.encode_or_reject

    def record(tokens: Any, *functions: Any) -> Any:
        blocks.append((tokens.text.name, len(tokens.text.texts)))
        return real(tokens, *functions)

    monkeypatch.setattr(encode, "encode_or_reject", record)
    return blocks
