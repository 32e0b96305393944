"""Statistics of n vectors of W values: distributions, cosines, principal components, clusters.

SciPy and scikit-learn come with the extra `report`. Functions import them, because `make demo` needs only NumPy here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.views.columns import unit

if TYPE_CHECKING:
    from scipy.cluster.hierarchy import ClusterNode

Array = npt.NDArray[Any]

# Every value of at most this many rows enters a distribution; norms and cosines use all sampled rows.
_ROWS_OF_VALUES = 2000
_BINS = 48
# A smaller relative spread is rounding, as in the norms of normalized vectors.
_MIN_SPREAD = 1e-4
# Vectors that differ by less, relative to their size, are equal but for rounding: float32 is summed in any order.
_ROUNDING = 1e-5
_MAX_GROUPS = 4
# A smaller group is one of outliers. A cut that only removes outliers says nothing about senses.
_MIN_GROUP_SIZE = 3
_MIN_GROUP_SHARE = 0.05
# In a smaller group a cut needs a reasonable structure: among few points, chance gives a weak one.
_FEW = 30
# Groups follow the places if they explain more than this share of their variance, with less than this probability by
# chance.
_MOST = 0.5
_CHANCE = 0.01
# Kaufman and Rousseeuw (1990), table 4: up to which silhouette which structure was found.
_STRUCTURES = ((0.25, "no"), (0.50, "a weak"), (0.70, "a reasonable"))


def cosine_matrix(vectors: Array) -> Array:
    """[n, n] cosines of [n, W] vectors, at most 1; exactly 1 if two differ by rounding only.

    >>> cosine_matrix(np.float32([[0.1, 0.3], [0.1, 0.3], [0, 0]])).tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    cosines = unit(vectors) @ unit(vectors).T
    return np.where(cosines > 1 - _ROUNDING**2, 1.0, cosines)


def mean_cosine(vectors: Array) -> tuple[float, float]:
    """(mean cosine over all pairs of different rows, share of it that the largest single dimension contributes).

    For unit vectors u, the sum over pairs is |sum of u|^2 - n, so n^2 pairs cost O(n). The share is that of Timkey and
    van Schijndel (2021); it is 0 unless the mean is positive.

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


def mean_within_across(cosines: Array, groups: Array) -> tuple[float, float]:
    """Means of [n, n] cosines over pairs in the same group and over pairs in different groups; NaN without pairs."""
    same = groups[:, None] == groups[None, :]
    pairs = (same & ~np.eye(len(groups), dtype=bool), ~same)
    within, across = (float(cosines[chosen].mean()) if chosen.any() else float("nan") for chosen in pairs)
    return within, across


class Separation(NamedTuple):
    """How well vectors separate given labels.

    `agreement`: the share of rows whose nearest other row, by cosine, has their label; of several rows that are equally
    near, the share of them. `silhouette`: the mean silhouette of the labels, with cosine distances, from -1 to 1. Both
    are NaN with fewer than two labels; the silhouette also if each row has a label of its own.
    """

    agreement: float
    silhouette: float


def separation(cosines: Array, labels: Array) -> Separation:
    """The separation of [n] label numbers by a `cosine_matrix`, [n, n]."""
    from sklearn.metrics import silhouette_score

    found, n = len(np.unique(labels)), len(labels)
    if found < 2:
        return Separation(float("nan"), float("nan"))
    others = np.where(np.eye(n, dtype=bool), -np.inf, cosines)
    is_nearest = others == others.max(axis=1, keepdims=True)
    same = labels[:, None] == labels[None, :]
    agreement = float(((same & is_nearest).sum(axis=1) / is_nearest.sum(axis=1)).mean())
    if found == n:
        return Separation(agreement, float("nan"))
    return Separation(agreement, float(silhouette_score(_distances(cosines), labels, metric="precomputed")))


def _distances(cosines: Array) -> Array:
    """[n, n] cosine distances, 0 on the diagonal, where the cosine of zeros is 0."""
    return np.where(np.eye(len(cosines), dtype=bool), 0.0, np.maximum(1 - cosines, 0))


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Quartiles, and a histogram of the middle 98 % of the values; no bins if all values are equal but for rounding."""

    quartiles: Array
    counts: Array
    edges: Array


def _distribution(values: Array) -> Distribution:
    low, *quartiles, high = np.quantile(values, [0.01, 0.25, 0.5, 0.75, 0.99])
    if high - low > _MIN_SPREAD * max(abs(low), abs(high)):
        return Distribution(np.array(quartiles), *np.histogram(values, _BINS, (low, high)))
    return Distribution(np.array(quartiles), np.zeros(0), np.zeros(1))


@dataclasses.dataclass(frozen=True)
class LayerStatistics:
    """One layer of a view. `figures`: what `--json` prints."""

    figures: dict[str, float]
    values: Distribution
    norms: Distribution


def describe_layer(vectors: Array) -> LayerStatistics:
    """Statistics of [n, W] vectors. Rows for the distribution of values are spread evenly, so that all files count."""
    values = vectors[:: -(-len(vectors) // _ROWS_OF_VALUES)].ravel()
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    anisotropy, largest_dimension = mean_cosine(vectors)
    figures = {
        "mean": float(values.mean(dtype=np.float64)),
        "std": float(values.std(dtype=np.float64)),
        "min": float(values.min()),
        "max": float(values.max()),
        "mean_norm": float(norms.mean()),
        "anisotropy": anisotropy,
        "largest_dimension": largest_dimension,
    }
    return LayerStatistics(figures, _distribution(values), _distribution(norms))


@dataclasses.dataclass(frozen=True)
class Projection:
    """`points`: [n, 2] on the first two principal components; `explained`: each component's share of the variance."""

    points: Array
    explained: tuple[float, float]


def pca(vectors: Array, like: Array | None = None) -> Projection:
    """The first two principal components of [n, W], centred, not scaled.

    The sign of a component is arbitrary. It follows the same component of `like` ([n, 2], the previous layer), so that
    points stay in place from plot to plot; without `like` the coordinate of largest magnitude is positive.
    """
    from sklearn.decomposition import PCA

    x = vectors.astype(np.float64)
    n, width = x.shape
    size = np.abs(x).max(initial=0)
    x -= x.mean(axis=0)
    if n < 2 or np.abs(x).max() <= _ROUNDING * size:
        return Projection(np.zeros((n, 2)), (0.0, 0.0))
    # The solver "auto" picks would be randomized for some shapes.
    model = PCA(min(2, width), svd_solver="covariance_eigh" if n > width else "full")
    points = np.pad(model.fit_transform(x), ((0, 0), (0, 2 - model.n_components_)))
    signs = points[np.abs(points).argmax(axis=0), [0, 1]] if like is None else (points * like).sum(axis=0)
    first, second = [*model.explained_variance_ratio_, 0.0][:2]
    return Projection(points * np.where(signs < 0, -1, 1), (float(first), float(second)))


def project_layers(layers: Iterable[tuple[str, Array]]) -> dict[str, Projection]:
    """The principal components of each layer: (column, [n, W]), with the signs of the layer before."""
    found: dict[str, Projection] = {}
    previous = None
    for column, vectors in layers:
        found[column] = pca(vectors, previous)
        previous = found[column].points
    return found


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Clusters of n rows.

    `order`: all rows, similar ones adjacent; `groups`: [n] group numbers from 0, the largest group first;
    `silhouette`: how well the groups are separated, from -1 to 1; `first_silhouette`: that of the first cut, into two.
    """

    order: Array
    groups: Array
    silhouette: float
    first_silhouette: float


def min_group_size(n: int) -> int:
    """The size of the smallest group that `group` makes of n rows.

    >>> min_group_size(4), min_group_size(20), min_group_size(160)
    (2, 3, 8)
    """
    return max(min(_MIN_GROUP_SIZE, n // 2), math.ceil(_MIN_GROUP_SHARE * n))


def group(cosines: Array) -> Grouping:
    """Average-linkage clusters of a `cosine_matrix`: 1 to 4 groups, by cuts whose silhouette shows structure.

    The silhouette of a cut is that of its two groups alone. Over all rows, the cut that separates only the most
    distinct sense has the best one, and the other senses would stay in one group.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage, to_tree
    from scipy.spatial.distance import squareform
    from sklearn.metrics import silhouette_score

    n = len(cosines)
    groups = np.zeros(n, np.int64)
    if n < 3:
        return Grouping(np.arange(n), groups, 0.0, 0.0)
    distances = _distances(cosines)
    tree = linkage(squareform(distances, checks=False), "average", optimal_ordering=True)
    first = _cut(distances, to_tree(tree))
    cuts = [] if first is None else [first]
    for number in range(1, _MAX_GROUPS):
        if not cuts:
            break
        cut = cuts.pop(int(np.argmax([cut.height for cut in cuts])))
        groups[cut.apart] = number
        cuts += [inner for part in cut.parts if (inner := _cut(distances, part)) is not None]
    if first is None:
        return Grouping(leaves_list(tree), groups, 0.0, 0.0)
    _, firsts, sizes = np.unique(groups, return_index=True, return_counts=True)
    by_size = np.argsort(np.lexsort((firsts, -sizes)))
    score = float(silhouette_score(distances, groups, metric="precomputed"))
    return Grouping(leaves_list(tree), by_size[groups], score, first.silhouette)


class _Cut(NamedTuple):
    """A cut of a node into two `parts`, nodes as well. `height`: their distance; `apart`: rows of the second one."""

    height: float
    silhouette: float
    apart: Array
    parts: tuple[ClusterNode, ClusterNode]


def _cut(distances: Array, node: ClusterNode) -> _Cut | None:
    """The highest cut of the node into two groups, if it shows structure. Outliers above it join the nearer group.

    They do not count for the silhouette: it would be high for any cut that has them all in its smaller group.
    """
    from sklearn.metrics import silhouette_score

    rows, n = np.array(node.pre_order()), len(distances)
    while node.count > 2 and min(node.left.count, node.right.count) < min_group_size(n):
        node = max(node.left, node.right, key=lambda part: part.count)
    if node.count <= 2:
        return None
    parts = node.left, node.right
    near, far = (distances[np.ix_(rows, part.pre_order())].mean(axis=1) for part in parts)
    inside, is_right = np.isin(rows, node.pre_order()), np.isin(rows, node.right.pre_order())
    apart = np.where(inside, is_right, far < near)
    own = rows[inside]
    silhouette = float(silhouette_score(distances[np.ix_(own, own)], is_right[inside], metric="precomputed"))
    (weak, _), (reasonable, _), _ = _STRUCTURES
    least = reasonable if len(rows) < min(_FEW, n) else weak
    return _Cut(node.dist, silhouette, rows[apart], parts) if silhouette > least else None


def describe_structure(silhouette: float) -> str:
    """`no structure`, `a weak`, `a reasonable` or `a strong structure`.

    >>> describe_structure(0.26)
    'a weak structure'
    """
    found = (name for limit, name in _STRUCTURES if round(silhouette, 2) <= limit)
    return f"{next(found, 'a strong')} structure"


def follow_places(groups: Array, places: Array) -> tuple[bool, float]:
    """(whether the groups follow the places, the share of the places' variance that the groups explain: eta squared).

    If the groups were random, eta squared would have a beta distribution.
    """
    from scipy.stats import beta

    total = places.var()
    sizes = np.bincount(groups)
    if len(sizes) < 2 or not total:
        return False, 0.0
    means = np.bincount(groups, weights=places) / sizes
    share = float(means[groups].var() / total)
    by_chance = beta.sf(share, (len(sizes) - 1) / 2, (len(groups) - len(sizes)) / 2)
    return bool(share > _MOST and by_chance < _CHANCE), share
