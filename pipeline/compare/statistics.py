"""How alike two sets of vectors of the same rows are. Shapes: n rows, V and W values in a vector, k neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.views.columns import unit

Array = npt.NDArray[Any]

# Distances of a cosine from 1 are counted in steps of 1 %, down to what is rounding of float32.
_SMALLEST, _STEPS = 1e-9, 2154
_EDGES = _SMALLEST * 1.01 ** np.arange(_STEPS)
# Where the rows say nothing of a direction, the rotation leaves it as it is.
_RIDGE = 1e-9
_ROWS_AT_ONCE = 512
# Neighbours as near as this are equally near.
_TIE = 1e-6


class Cosines:
    """Cosines counted as they come: mean and minimum exactly, percentiles to 1 % of their distance from 1."""

    def __init__(self) -> None:
        self.rows, self._least, self._sum = 0, 1.0, 0.0
        self._counts = np.zeros(_STEPS + 1, np.int64)

    def add(self, cosines: Array) -> None:
        self.rows += len(cosines)
        self._sum += float(cosines.sum())
        self._least = min(self._least, float(cosines.min(initial=1.0)))
        self._counts += np.bincount(np.searchsorted(_EDGES, 1 - cosines), minlength=_STEPS + 1)

    def figures(self) -> dict[str, float | None]:
        """Mean, percentiles and the least, to 9 digits; None for each if there are no cosines."""
        if not self.rows:
            return dict.fromkeys(("mean", "median", "p5", "p1", "least"))
        found = {"mean": self._sum / self.rows, "median": self._percentile(50), "p5": self._percentile(5)}
        found |= {"p1": self._percentile(1), "least": self._least}
        return {name: round(value, 9) for name, value in found.items()}

    def _percentile(self, percent: float) -> float:
        """The cosine that so many percent of the rows do not exceed."""
        from_top = np.cumsum(self._counts)  # of the rows nearest to 1
        step = int(np.searchsorted(from_top, self.rows * (1 - percent / 100)))
        return float(1 - _EDGES[min(step, _STEPS - 1)]) if step else 1.0


def cosines(one: Array, other: Array) -> Array:
    """[n]: of each row of [n, W] with that of the other; 1 of two vectors of zeros."""
    one, other = unit(one), unit(other)
    found = np.where(one.any(axis=1) | other.any(axis=1), (one * other).sum(axis=1), 1)
    return np.asarray(np.clip(found, -1, 1))


def rotated_cosines(one: Array, other: Array) -> Array:
    """[n / 2]: cosines of every second row after the rotation that is best for the others (orthogonal Procrustes).

    The vectors [n, V] and [n, W] are scaled to unit length first, and the narrower ones padded with zeros.
    """
    width = max(one.shape[1], other.shape[1])
    one, other = (np.pad(unit(side), ((0, 0), (0, width - side.shape[1]))) for side in (one, other))
    product = one[::2].T @ other[::2]
    left, _, right = np.linalg.svd(product + _RIDGE * len(one) * np.eye(width))
    return cosines(one[1::2] @ (left @ right), other[1::2])


def kept_neighbours(one: Array, other: Array, count: int) -> float:
    """The share of the `count` nearest rows, by cosine, that are among the nearest in both; equally near ones are."""
    one, other = unit(one), unit(other)
    count, kept = min(count, len(one) - 1), 0.0
    for first in range(0, len(one), _ROWS_AT_ONCE):
        rows = np.arange(first, min(first + _ROWS_AT_ONCE, len(one)))
        near, other_near = (side[rows] @ side.T for side in (one, other))
        near[np.arange(len(rows)), rows] = other_near[np.arange(len(rows)), rows] = -2
        limit = np.partition(near, -count, axis=1)[:, [-count]]
        chosen = np.argpartition(other_near, -count, axis=1)[:, -count:]
        kept += float((np.take_along_axis(near, chosen, axis=1) >= limit - _TIE).sum())
    return kept / (len(one) * count)


def centred_gram(vectors: Array) -> Array:
    """[n n]: the U-centred products of the rows, of length 1: the CKA of two is their product (Song et al. 2012)."""
    values = vectors.astype(np.float64)
    values = values - values.mean(axis=0)
    gram, n = values @ values.T, len(values)
    np.fill_diagonal(gram, 0)
    sums = gram.sum(axis=0) / (n - 2)
    gram += gram.sum() / ((n - 1) * (n - 2)) - sums[:, None] - sums
    np.fill_diagonal(gram, 0)
    flat = gram.ravel()
    return np.asarray(flat / max(float(np.linalg.norm(flat)), 1e-30))
