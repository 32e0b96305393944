"""What the report computes of vectors, with NumPy alone: cosines, principal components, groups.

Shapes: n vectors of W values; k groups.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_MOST_GROUPS = 4
# A group of fewer is an outlier, and a cut that only takes outliers away says nothing of senses.
_SMALLEST_GROUP = 3
_NEAR_THE_BEST = 0.75


def unit(vectors: Array) -> Array:
    """[n, W] in float64 with length 1; a vector of zeros stays one."""
    vectors = vectors.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms == 0, 1, norms))


def mean_cosine(vectors: Array) -> tuple[float, float]:
    """(mean cosine of two different rows, the share of it that the one largest dimension makes), over all pairs.

    The sum over pairs is in the square of the sum, so n^2 pairs cost n: (|sum of u|^2 - n) / (n (n - 1)), u of unit
    length. The share is Timkey and van Schijndel's (2021); 0 where the mean is not above 0.

    >>> cosine, share = mean_cosine(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    >>> round(cosine, 6), round(share, 6)
    (0.333333, 1.0)
    """
    n = len(vectors)
    if n < 2:
        return float("nan"), 0.0
    u = unit(vectors)
    by_dimension = (u.sum(axis=0) ** 2 - (u**2).sum(axis=0)) / (n * (n - 1))
    mean = float(by_dimension.sum())
    return mean, float(by_dimension.max() / mean) if mean > 1e-9 else 0.0


@dataclasses.dataclass(frozen=True)
class Projection:
    """`points`: [n, 2] on the first two principal components; `explained`: the share of the variance on each."""

    points: Array
    explained: tuple[float, float]


def pca(vectors: Array, like: Array | None = None) -> Projection:
    """The first two principal components of [n, W], centred and not scaled.

    An axis may point either way: it points as the same one of `like` ([n, 2], the layer before) does, so that the eye
    finds a point again; without it, so that its largest coordinate is positive.
    """
    x = vectors.astype(np.float64)
    x = x - x.mean(axis=0)
    total = float((x**2).sum())
    if len(x) < 2 or total == 0:
        return Projection(np.zeros((len(x), 2)), (0.0, 0.0))
    if len(x) < x.shape[1]:  # the smaller of the two squares has the same eigenvalues
        values, left = np.linalg.eigh(x @ x.T)
        values, left = values[::-1][:2].clip(min=0), left[:, ::-1][:, :2]
        points = left * np.sqrt(values)
    else:
        values, axes = np.linalg.eigh(x.T @ x)
        values, axes = values[::-1][:2].clip(min=0), axes[:, ::-1][:, :2]
        points = x @ axes
    if points.shape[1] < 2:
        points, values = np.pad(points, ((0, 0), (0, 1))), np.append(values, 0.0)
    for axis in range(2):
        column = points[:, axis]
        turned = column[np.abs(column).argmax()] < 0 if like is None else column @ like[:, axis] < 0
        points[:, axis] = -column if turned else column
    return Projection(points, (float(values[0] / total), float(values[1] / total)))


@dataclasses.dataclass(frozen=True)
class Grouping:
    """`order`: rows so that like ones are neighbours; `groups`: [n], from 0, the largest group; `silhouette`: how well
    they are apart, from -1 to 1; `clearest`: the same of the best cut, which may be a coarser one."""

    order: Array
    groups: Array
    silhouette: float
    clearest: float


def group(cosines: Array) -> Grouping:
    """Average-linkage clusters of [n, n] cosines, 1 to 4: the most whose mean silhouette is near the best one.

    The best alone stops at the one sense that is furthest from the others, and leaves those in one group.
    """
    n = len(cosines)
    merges = _average_linkage(1 - cosines)
    order = _leaf_order(n, merges, cosines)
    cuts = [(np.zeros(n, np.int64), 0.0)]
    for k in range(2, min(_MOST_GROUPS, n - 1) + 1):
        groups = _cut(n, merges, k)
        if np.bincount(groups).min() < min(_SMALLEST_GROUP, n // 2):
            continue
        cuts.append((groups, silhouette(1 - cosines, groups)))
    clearest = max(score for _, score in cuts)
    groups, score = [cut for cut in cuts if cut[1] >= _NEAR_THE_BEST * clearest][-1]
    return Grouping(order, groups, score, clearest)


def _average_linkage(distances: Array) -> list[tuple[int, int]]:
    """The merges, n - 1 of them; n + i is the cluster that merge i makes."""
    d = distances.copy()
    np.fill_diagonal(d, np.inf)
    n = len(d)
    names, sizes = list(range(n)), np.ones(n)
    merges = []
    for step in range(n - 1):
        a, b = sorted(divmod(int(d.argmin()), n))
        merges.append((names[a], names[b]))
        row = (d[a] * sizes[a] + d[b] * sizes[b]) / (sizes[a] + sizes[b])
        d[a], d[:, a], d[a, a] = row, row, np.inf
        d[b], d[:, b] = np.inf, np.inf
        sizes[a] += sizes[b]
        names[a] = n + step
    return merges


def _leaf_order(n: int, merges: list[tuple[int, int]], cosines: Array) -> Array:
    """The leaves of the tree from left to right, each pair of branches turned so that like ends meet."""
    leaves: dict[int, list[int]] = {i: [i] for i in range(n)}
    for step, (left, right) in enumerate(merges):
        a, b = leaves.pop(left), leaves.pop(right)
        turns = [(a, b), (a[::-1], b), (a, b[::-1]), (a[::-1], b[::-1])]
        a, b = max(turns, key=lambda pair: cosines[pair[0][-1], pair[1][0]])
        leaves[n + step] = a + b
    (order,) = leaves.values()
    return np.array(order, np.int64)


def _cut(n: int, merges: list[tuple[int, int]], k: int) -> Array:
    """[n]: the group of each row where the tree is cut in k, the largest group first."""
    members: dict[int, list[int]] = {i: [i] for i in range(n)}
    for step, (left, right) in enumerate(merges[: n - k]):
        members[n + step] = members.pop(left) + members.pop(right)
    groups = np.empty(n, np.int64)
    for number, rows in enumerate(sorted(members.values(), key=lambda rows: (-len(rows), min(rows)))):
        groups[rows] = number
    return groups


def silhouette(distances: Array, groups: Array) -> float:
    """Rousseeuw's mean silhouette (1987) of [n, n] distances; a row that is alone in its group counts 0.

    >>> silhouette(np.array([[0, 1, 4], [1, 0, 4], [4, 4, 0.0]]), np.array([0, 0, 1]))
    0.5
    """
    sizes = np.bincount(groups)
    to_group = np.stack([distances[:, groups == g].sum(axis=1) for g in range(len(sizes))], axis=1)
    rows = np.arange(len(groups))
    own = to_group[rows, groups] / np.maximum(sizes[groups] - 1, 1)
    others = to_group / sizes
    others[rows, groups] = np.inf
    nearest = others.min(axis=1)
    larger = np.maximum(own, nearest)
    scores = np.where((sizes[groups] == 1) | (larger == 0), 0, (nearest - own) / np.where(larger == 0, 1, larger))
    return float(scores.mean())


def mean_within_across(cosines: Array, groups: Array) -> tuple[float, float]:
    """The mean of [n, n] cosines over the pairs of one group, and over those of two; NaN where there is no pair."""
    same = groups[:, None] == groups[None, :]
    pairs = ~np.eye(len(groups), dtype=bool)
    within, across = cosines[same & pairs], cosines[~same]
    return (
        float(within.mean()) if within.size else float("nan"),
        float(across.mean()) if across.size else float("nan"),
    )
