"""Layers that stay on the GPU that computed them: its memory is far from the processor's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.flow.blocks import Float32Array, Int64Array
from layerbeam.transforms.hardware import tf
from layerbeam.transforms.views.columns import divisors, places


def keeps_layers() -> bool:
    """Whether layers stay on the device: on a GPU. A TPU would compile `take` and `pool` for each number of rows."""
    return bool(tf.config.list_logical_devices("GPU"))


class DeviceLayer:
    """One layer of a batch, [n, H]. NumPy makes an array of all of it; `take` and `pool` fetch what is needed only."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self._values.numpy(), dtype)

    def take(self, positions: Int64Array) -> Float32Array:
        """The vectors at these positions."""
        return np.asarray(tf.gather(self._values, positions))

    def pool(self, positions: Int64Array, splits: Int64Array, pooling: str) -> Float32Array:
        """[R, H]: row r pools the vectors at `positions[splits[r]:splits[r + 1]]`; zeros if there are none.

        `pooling`: first, last, max, or one of `columns.SUMS`.
        """
        counts = np.diff(splits)
        if pooling in ("first", "last"):
            filled = np.flatnonzero(counts)
            pooled = np.zeros((len(counts), self._values.shape[1]), np.float32)
            pooled[filled] = self.take(positions[splits[filled] if pooling == "first" else splits[filled + 1] - 1])
            return pooled
        rows = np.repeat(np.arange(len(counts)), counts)
        values = tf.gather(self._values, positions)
        if pooling == "max":
            pooled = np.asarray(tf.math.unsorted_segment_max(values, rows, len(counts)))
            return np.where(counts[:, None] > 0, pooled, np.float32(0))
        if pooling == "weighted_mean":
            values *= places(counts)[:, None]
        pooled = np.asarray(tf.math.unsorted_segment_sum(values, rows, len(counts)))
        return np.asarray(pooled / divisors(np.maximum(counts, 1), pooling)[:, None], np.float32)
