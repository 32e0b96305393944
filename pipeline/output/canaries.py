"""The canary texts of a run with their vectors, which show whether an encoder is that of the run.

The first worker that loads the encoder writes them to a file of their own, and the end of the run, which has no
encoder, takes them into the manifest. They depend on the fingerprint of the run alone, not on its texts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.pipeline.output.manifest import Canaries, invalid_entries, load_manifest
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout

# By view and column, [n, W].
CanaryVectors = Mapping[str, Mapping[str, npt.NDArray[Any]]]

_PLACES = ("mill", "old ferry", "chapel", "weir", "stone bridge", "island", "quarry", "lock", "vineyard")
# One word, in which special tokens weigh most; letters' case and punctuation; accents and other scripts; white space;
# and a text of some 600 tokens, for limits at 128, 256 and 512.
CANARY_TEXTS = (
    "Bank",
    "Dr. O'Neill's flight BA-117 to RIO left at 7:45 p.m. - \"late again!\", she said (twice).",
    "Überraschung: Zoë aß crème brûlée in São Paulo; Привет, Москва! 東京は雨です。",
    "  Two  spaces,\ta tab\nand a new line: <b>C++</b> & 50 % off, no. 5...  ",
    " ".join(
        f"Day {day}: we rowed {3 * day + 2} miles upstream and slept near the {_PLACES[day % len(_PLACES)]}."
        for day in range(1, 36)
    ),
)


def has_canaries(output_path: str, fingerprint: str) -> bool:
    """Whether those of a run with this fingerprint are in the folder."""
    if storage.exists(storage.join(output_path, layout.canaries_path(fingerprint))):
        return True
    return find_canaries(output_path, fingerprint) is not None


def keep_canaries(output_path: str, fingerprint: str, texts: Sequence[str], vectors: CanaryVectors) -> None:
    """Write them for the end of the run, unless another worker has done so."""
    encoded = {
        view: {column: base64.b64encode(values.astype("<f4").tobytes()).decode() for column, values in columns.items()}
        for view, columns in vectors.items()
    }
    path = storage.join(output_path, layout.canaries_path(fingerprint))
    storage.create_if_absent(path, json.dumps(Canaries(texts=list(texts), vectors=encoded)).encode("ascii"))


def find_canaries(output_path: str, fingerprint: str) -> Canaries | None:
    """Those of a run with this fingerprint: of an earlier end of it, or that its workers have written."""
    manifest = load_manifest(output_path)
    if manifest is not None and manifest["fingerprint"] == fingerprint and "canaries" in manifest:
        return manifest["canaries"]
    found: Any = storage.read_json(storage.join(output_path, layout.canaries_path(fingerprint)))
    return None if found is None or invalid_entries(Canaries, found) else found


def decode_vectors(encoded: str, width: int) -> npt.NDArray[np.float32]:
    """[n, W] of a column. ValueError if it is damaged."""
    return np.frombuffer(base64.b64decode(encoded, validate=True), "<f4").reshape(-1, width)
