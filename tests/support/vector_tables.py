"""Tables of a view with given vectors, for `write_run`, and a view that is written with random ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from written_run import write_run

from layerbeam.pipeline.dataset.view import View as ReadView
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.number_types import NUMBER_TYPES
from layerbeam.transforms.views.view import ViewSpec

WIDTH = 12


def a_view(**settings: Any) -> ViewSpec:
    kept = (("year", "int64"), ("party", "string"))
    return ViewSpec(
        **{"name": "texts", "level": "text", "layers": (1, 2), "hidden_size": WIDTH, "fields": kept} | settings
    )


def table_of(view: ViewSpec, vectors: np.ndarray, first: int = 0) -> pa.Table:
    """Rows with these vectors in the last of the columns; in the others their negatives. `line` counts from `first`."""
    number_type, names = NUMBER_TYPES[view.dtype], view.vector_columns
    count = len(vectors)
    lines = np.arange(first, first + count)
    columns: dict[str, Any] = {"file": ["a.txt"] * count, "line": lines, "year": [*(1990 + lines % 7).tolist()]}
    columns |= {name: [f"{name} {line}" for line in lines] for name in ("text", "token", "word")}
    columns["party"] = [None if line % 5 == 0 else "ab"[line % 2] for line in lines]
    for name in names:
        columns |= number_type.store(name, number_type.round(vectors if name == names[-1] else -vectors))
    given = [columns.get(field.name, [0] * count) for field in schema(view)]
    arrays = [v if isinstance(v, pa.Array) else pa.array(v, f.type) for v, f in zip(given, schema(view), strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema(view))


def in_parts(view: ViewSpec, vectors: np.ndarray, sizes: Sequence[int]) -> list[pa.Table]:
    firsts = np.cumsum([0, *sizes])
    assert firsts[-1] == len(vectors)
    return [table_of(view, vectors[i:j], i) for i, j in itertools.pairwise(firsts.tolist())]


def random_vectors(seed: int, count: int, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


def written(path: Path, sizes: Sequence[int], **settings: Any) -> ReadView:
    """A view with the rows `random_vectors(1, sum(sizes))` in parts of these sizes. `line` is the number of a row."""
    texts = a_view(**settings)
    return write_run(path, texts, in_parts(texts, random_vectors(1, sum(sizes), texts.hidden_size), sizes)).view(
        "texts"
    )
