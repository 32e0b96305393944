"""The batches of a view as a dataset of PyTorch, which is imported with this file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from layerbeam.pipeline.dataset.batches import Batch
from layerbeam.pipeline.dataset.view import View


class TorchBatches(IterableDataset):
    """The batches of one rank, for `DataLoader(dataset, batch_size=None)`: its worker processes share the rows.

    `settings`: those of `View.batches`.
    """

    def __init__(self, view: View, settings: dict[str, Any]) -> None:
        self._view, self._settings = view, settings
        self._position = view.batches(**settings).state()
        self._begins_at: dict[str, Any] | None = None

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration, in another order."""
        self._settings = self._settings | {"epoch": epoch}

    def state_dict(self) -> dict[str, Any]:
        """The position in this process; torchdata's StatefulDataLoader saves that of each worker."""
        return self._position

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next iteration at a position. It raises ValueError if settings differ, but for the epoch."""
        self._begins_at = state
        self.set_epoch(state["epoch"])

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rank, world_size = (self._settings.get(*default) for default in (("rank", 0), ("world_size", 1)))
        share = {"rank": rank * count + number, "world_size": world_size * count}
        batches = self._view.batches(**self._settings | share)
        if self._begins_at is not None:
            batches.resume(self._begins_at)
            self._begins_at = None
        for batch in batches:
            self._position = batches.state()
            yield batch
