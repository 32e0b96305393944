"""The table of neighbours in docs/tuning.md: how many of the 10 nearest stay, by the types of products and files.

Vectors of MiniLM, by the reference in NumPy, which computes int8 as processors with VNNI instructions do. Nearest by
cosine, among tokens of other verses, and among verses.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from corpus import read_bible

from layerbeam.pipeline.verify.compare import cosines
from layerbeam.transforms.encoders import load_weights, open_encoder
from layerbeam.transforms.encoders.calibrate import calibrate
from layerbeam.transforms.hardware import Hardware, load_tensorflow
from layerbeam.transforms.reference import ReferenceWordPiece, forward, round_kernels
from layerbeam.transforms.views.number_types import NUMBER_TYPES, as_matrix

TEXTS, NEAREST = 2000, 10
LAYERS = (1, 3, 5, 6)
Vectors = dict[str, np.ndarray]


def main() -> None:
    load_tensorflow(Hardware(1))
    random = np.random.default_rng(1)
    source = open_encoder("minilm")
    reference = ReferenceWordPiece(source.vocabulary, source.do_lower_case)
    verses = read_bible()
    texts = [verses[index] for index in random.choice(len(verses), TEXTS, replace=False)]
    sequences = [np.array(reference.sequence(text, "", 128)[0]) for text in texts]
    places = [random.integers(1, len(ids) - 1) for ids in sequences]  # a token of each verse
    weights = dict(load_weights(source))
    codes = calibrate(source, weights, LAYERS, pooler=False)

    def vectors(weights: Vectors, codes: dict | None) -> Vectors:
        passes = [forward(source.architecture, weights, ids, np.zeros_like(ids), codes)[0] for ids in sequences]
        tokens = {
            f"tokens, layer {layer}": np.stack([one[layer][at] for one, at in zip(passes, places, strict=True)])
            for layer in LAYERS
        }
        return tokens | {"verses, mean of layer 6": np.stack([one[6].mean(axis=0) for one in passes])}

    exact = vectors(weights, None)
    products = {"float32": exact, "int8": vectors(round_kernels(weights, codes), codes)}
    wanted = {name: nearest(values) for name, values in exact.items()}
    print(f"| products | in files | {' | '.join(exact)} |\n|---|---|{'---|' * len(exact)}")
    for product, given in products.items():
        for dtype, number_type in NUMBER_TYPES.items():
            cells = []
            for name, values in given.items():
                stored = stored_as(number_type, values)
                kept = np.mean([len({*a} & {*b}) for a, b in zip(nearest(stored), wanted[name], strict=True)]) / NEAREST
                cells.append(f"{kept:.1%}; {cosines(stored, exact[name]).mean():.5f}")
            print(f"| {product} | {dtype} | {' | '.join(cells)} |", flush=True)


def stored_as(number_type, values: np.ndarray) -> np.ndarray:
    """The values as they are read back."""
    columns = number_type.store("x", number_type.round(values.astype(np.float32)))
    loaded = number_type.load(pa.table(columns))
    return as_matrix(loaded["x"].combine_chunks()).astype(np.float32)


def nearest(values: np.ndarray) -> np.ndarray:
    """[n, 10]: the rows of the largest cosines with each row but itself."""
    normal = values / np.linalg.norm(values, axis=1, keepdims=True)
    scores = normal @ normal.T
    np.fill_diagonal(scores, -2)
    return np.argpartition(scores, -NEAREST, axis=1)[:, -NEAREST:]


if __name__ == "__main__":
    main()
