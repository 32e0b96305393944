from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from workplace import Workplace

from layerbeam.transforms import encode
from layerbeam.transforms.parts.block_store import BlockStore


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


@pytest.fixture
def fail_after(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A run that fails once so many blocks are committed: it leaves the files of a killed one."""

    def fail(commits: int) -> None:
        dies = Mock(side_effect=[*[DEFAULT] * commits, OSError("the worker dies")])
        real = BlockStore.put

        def put(self: Any, commit: Any) -> Any:
            dies()
            return real(self, commit)

        with monkeypatch.context() as patch:
            patch.setattr(BlockStore, "put", put)
            assert "the worker dies" in workplace.drive(status=1).err
        assert len(list((workplace.folder / "out/_commits").iterdir())) == commits

    return fail
