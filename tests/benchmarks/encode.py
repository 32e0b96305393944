"""`layerbeam.encode` against `SentenceTransformer.encode`, loaded and warm: medians of interleaved rounds.

python encode.py RIVALS_PYTHON [--rounds N] [--lines N]

RIVALS_PYTHON has PyTorch and sentence-transformers (requirements.txt). Needs Debian's package bible-kjv. Both sides
run in processes of their own, one at a time, with the same sentences, and must agree to 2e-5.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

MAX_ERROR = 2e-5
REPEATS = {1: 20}


def sentence_transformers(folder: str) -> Callable[[list[str]], Any]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = 128
    return lambda texts: model.encode(texts, show_progress_bar=False, normalize_embeddings=True)


def layerbeam(folder: str) -> Callable[[list[str]], Any]:
    from layerbeam import encode

    return lambda texts: encode(texts, encoder=folder)


def serve(side: str, folder: str) -> None:
    """Encode what each line of standard input holds; print the seconds of one call, and the vectors of the last."""
    encode = {"sentence-transformers": sentence_transformers, "layerbeam": layerbeam}[side](folder)
    for line in sys.stdin:
        texts = json.loads(line)
        repeats = REPEATS.get(len(texts), 1)
        encode(texts[:32])
        started = time.perf_counter()
        for _ in range(repeats):
            vectors = encode(texts)
        seconds = (time.perf_counter() - started) / repeats
        print(json.dumps({"seconds": seconds, "vectors": np.asarray(vectors)[:10].tolist()}), flush=True)


def main() -> None:
    from corpus import read_bible

    from layerbeam import open_encoder

    parser = argparse.ArgumentParser()
    parser.add_argument("rivals_python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=1000)
    given = parser.parse_args()
    folder = str(open_encoder("minilm").folder)
    verses = read_bible()
    texts = verses[:: len(verses) // given.lines][: given.lines]
    pythons = {"layerbeam": sys.executable, "sentence-transformers": given.rivals_python}
    sides = {
        name: subprocess.Popen([python, __file__, "--serve", name, folder], stdin=-1, stdout=-1, text=True)
        for name, python in pythons.items()
    }
    for count in (1, given.lines):
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(given.rounds):
            some = texts if count > 1 else [texts[number]]
            vectors = {}
            for name in sorted(sides, reverse=bool(number % 2)):
                process = sides[name]
                process.stdin.write(json.dumps(some) + "\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                seconds[name].append(answer["seconds"])
                vectors[name] = np.array(answer["vectors"])
            np.testing.assert_allclose(vectors["layerbeam"], vectors["sentence-transformers"], rtol=0, atol=MAX_ERROR)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        ratio = medians["sentence-transformers"] / medians["layerbeam"]
        figures = ", ".join(f"{name} {value * 1000:,.1f} ms" for name, value in medians.items())
        print(f"{count:,} sentences: {figures}; ratio {ratio:.2f}", flush=True)
    for process in sides.values():
        process.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
