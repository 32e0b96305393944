"""What is the matter with vectors that should be those of a run: compared whatever their lengths and number type.

Shapes: n canary texts, W values in a vector of the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.views.columns import unit

Array = npt.NDArray[Any]

# Of a value of a vector at unit length: float32 is summed in another order by another engine, see docs/encoders.md.
EQUAL = 3e-6
# Distances at unit length up to which rounding explains them: of MiniLM's vectors float16 gives 0.0006, bfloat16 0.014
# (cosine 0.9999), int8 0.13 (0.992); docs/correctness.md. Another revision of a model may be as near as int8.
_NOISE = {"float16": 5e-3, "bfloat16": 0.065, "int8": 0.25}
_SAME_LENGTH = 1e-4
# The kind of difference that is right for queries.
QUERY_PROMPT = "query prompt"


class Difference(NamedTuple):
    """A way in which vectors were made differently; `text` as in `differs: <text>`."""

    kind: str
    text: str


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Vectors [n, W] made as those of the run but for these differences."""

    vectors: Array
    differences: tuple[Difference, ...] = ()


@dataclasses.dataclass(frozen=True)
class Match:
    """How near vectors are to a candidate, each scaled to unit length, in the dimensions that both have.

    `distance`: the largest of a vector; `largest`: that of a value; `cosine`: the smallest.
    """

    candidate: Candidate
    distance: float
    largest: float
    cosine: float

    @classmethod
    def of(cls, found: Array, candidate: Candidate) -> Match:
        width = min(found.shape[1], candidate.vectors.shape[1])
        one, other = unit(found[:, :width]), unit(candidate.vectors[:, :width])
        apart = one - other
        distances = np.linalg.norm(apart, axis=1)
        cosine = float((one * other).sum(axis=1).min())
        return cls(candidate, float(distances.max()), float(np.abs(apart).max()), cosine)

    @property
    def is_equal(self) -> bool:
        return self.largest <= EQUAL


def best_match(found: Array, candidates: Iterable[Candidate]) -> Match:
    """The nearest candidate; of those that are about as near, the one with the fewest differences."""
    return nearest([Match.of(found, candidate) for candidate in candidates])


def nearest(matches: Sequence[Match]) -> Match:
    """The nearest match; of those that are about as near, the one with the fewest differences."""
    limit = min(match.distance for match in matches) * 1.2 + EQUAL
    near = (match for match in matches if match.distance <= limit)
    return min(near, key=lambda match: (len(match.candidate.differences), match.distance))


def find_differences(found: Array, match: Match, compute_dtype: str) -> list[Difference]:
    """All differences of vectors from those of the run, by their best match; none: they are equal.

    `compute_dtype`: the run's; noise that it explains is none. Differences of kind `scale` change no cosine.
    """
    expected, narrow = match.candidate.vectors, found.shape[1] < match.candidate.vectors.shape[1]
    widths = f"{found.shape[1]:,} values, and the run's {expected.shape[1]:,}"
    other_width = found.shape[1] != expected.shape[1]
    noise = _noise_of(found, match)
    if noise is None:
        if other_width:
            return [Difference("model", f"another model: the vectors have {widths}")]
        what = "the vectors are near those of no prompt, pooling or layer of this encoder"
        return [Difference("model", f"another model, or a prompt unknown here: {what}")]
    differences = list(match.candidate.differences)
    width = min(found.shape[1], expected.shape[1])
    lengths, of_run = np.linalg.norm(found, axis=1), np.linalg.norm(expected, axis=1)
    cut_lengths = np.linalg.norm(expected[:, :width], axis=1)
    slack = _SAME_LENGTH + 2 * match.distance
    if narrow:
        scaled = ", scaled to unit length again" if _are(lengths, 1, slack) and not _are(cut_lengths, 1, slack) else ""
        differences.append(
            Difference("truncated", f"the first {width:,} values only, of {expected.shape[1]:,}{scaled}")
        )
        of_run = lengths if scaled else cut_lengths
    elif other_width:
        text = f"{widths}, the first of these: not cut off (truncate_dim)"
        differences.append(Difference("not truncated", text))
        of_run = lengths
    if not _are(lengths, of_run, slack):
        differences.append(Difference("scale", _scale_text(lengths, of_run, slack)))
    if noise and not (compute_dtype in _NOISE and match.distance <= _NOISE[compute_dtype]):
        differences.append(Difference("noise", noise))
    return differences


def _noise_of(found: Array, match: Match) -> str | None:
    """What rounding may have made the difference; "" if it is too small, None if it is too large."""
    if match.is_equal:
        return ""
    near = next((name for name, distance in _NOISE.items() if match.distance <= distance), None)
    if near is None:
        return None
    stored = _stored_as(found)
    if stored is not None:
        return f"values rounded to {stored}, off by {match.distance:.1g} of a vector's length"
    may_be = ", or another revision of the model" if near == "int8" else ""
    return f"noise as of products in {near}{may_be}, off by {match.distance:.1g} of a vector's length"


def _stored_as(found: Array) -> str | None:
    """The smaller number type in which all values are, whatever type they have now."""
    values = found.astype(np.float32)
    codes = values / np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-30) * 127
    if np.abs(codes - np.rint(codes)).max() < 1e-3:
        return "int8"
    if not (values.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if (values.astype(np.float16) == values).all() else None


def _scale_text(lengths: Array, of_run: Array, slack: float) -> str:
    if _are(lengths, 1, slack):
        return "scaled to unit length, and the run's are not (normalize)"
    if _are(of_run, 1, slack):
        return "not scaled to unit length, and the run's are (normalize)"
    factors = lengths / np.maximum(of_run, 1e-30)
    if _are(factors, factors.mean(), slack):
        return f"{factors.mean():.4g} times as long"
    return f"of other lengths, {factors.min():.4g} to {factors.max():.4g} times"


def _are(lengths: Array, expected: Array | float, slack: float) -> bool:
    return bool(np.all(np.abs(lengths - expected) <= slack * np.abs(expected)))
