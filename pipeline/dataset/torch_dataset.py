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
        view.batches(**settings)  # its errors
        self._view, self._settings = view, settings

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration, in another order."""
        self._settings = self._settings | {"epoch": epoch}

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rank, world_size = (self._settings.get(*default) for default in (("rank", 0), ("world_size", 1)))
        share = {"rank": rank * count + number, "world_size": world_size * count}
        return self._view.batches(**self._settings | share)
