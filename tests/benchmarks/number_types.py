"""One core's forward passes in float32, bfloat16 and int8, without the rest of a run: the table in docs/tuning.md.

Random weights and tokens, 32 texts of 32 tokens, the last four layers. The number types take turns; medians. With
ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI in the environment, as on a processor without AMX and bfloat16.
"""

from __future__ import annotations

import dataclasses
import sys
import time

import numpy as np
from random_encoder import BASE, make_weights

from layerbeam.transforms.encoders import onednn
from layerbeam.transforms.encoders.calibrate import InputRanges
from layerbeam.transforms.encoders.network import Network
from layerbeam.transforms.hardware import Hardware, load_tensorflow, slow_bfloat16

MINILM = dataclasses.replace(BASE, hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
TEXTS, LENGTH = 32, 32


def main(seconds: float) -> None:
    load_tensorflow(Hardware(1))
    random = np.random.default_rng(0)
    print("| tokens/s of one core | float32 | bfloat16 | int8 | int8 / float32 |\n|---|---|---|---|---|")
    for name, architecture in (("MiniLM's size", MINILM), ("BERT-base's size", BASE)):
        weights = make_weights(architecture)
        layers = range(architecture.num_hidden_layers - 3, architecture.num_hidden_layers + 1)
        token_ids = random.integers(1, architecture.vocab_size, (TEXTS, LENGTH)).astype(np.int32)
        batch = token_ids, np.full(TEXTS, LENGTH, np.int32), np.zeros_like(token_ids)
        networks = {"float32": Network(architecture, weights, layers=layers)}
        if slow_bfloat16("bfloat16") is None:
            networks["bfloat16"] = Network(architecture, weights, layers=layers, compute_dtype="bfloat16")
        if onednn.int8_problem() is None:
            ranges = InputRanges(architecture, weights, max(layers))
            for ids in token_ids[:, None]:
                ranges.add(ids, np.zeros_like(ids))
            networks["int8"] = Network(architecture, weights, layers=layers, compute_dtype="int8", codes=ranges.codes())
        took: dict[str, list[float]] = {dtype: [] for dtype in networks}
        end = time.perf_counter() + seconds * len(networks)
        while time.perf_counter() < end:
            for dtype, network in networks.items():
                started = time.perf_counter()
                network(*batch)
                took[dtype].append(time.perf_counter() - started)
        rates = {dtype: TEXTS * LENGTH / np.median(times) for dtype, times in took.items()}
        cells = [f"{rates[dtype]:,.0f}" if dtype in rates else "-" for dtype in ("float32", "bfloat16", "int8")]
        ratio = f"{rates['int8'] / rates['float32']:.2f}" if "int8" in rates else "-"
        print(f"| {name} | {' | '.join(cells)} | {ratio} |", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
