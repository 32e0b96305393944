"""A GPU's tokens per second by batch size, number type and XLA; its memory; and whole runs, for README.md.

python gpu.py [--device gpu|cpu] [--write]

The batches have no padding. On the processor the sizes are small: this shows that the benchmark works, no more.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from command import run_settings
from corpus import long_tail
from encoder_alone import flops_per_token, product_rate
from page import write_table
from random_encoder import BASE, make_weights
from speed import ROOT, processor, write_lines

from layerbeam import load_encoder, open_encoder
from layerbeam.transforms.encode.forward import Encoder
from layerbeam.transforms.encode.isolate import is_out_of_memory
from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.network import Network
from layerbeam.transforms.hardware import DeviceError, Hardware, load_tensorflow

sys.path.append(str(ROOT / "tests" / "gpu"))
from device import describe

LENGTH = 128  # tokens of a text; MiniLM's and BERT's usual maximum is 128 to 512
MODES = {"float32": ("float32", False), "TF32": ("float32", True), "bfloat16": ("bfloat16", False)}
TEXT = {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True}
TOKENS = {"level": "token", "layers": [-1, -2, -3, -4]}
# {name: (the encoder's settings, view, share of the lines)}; four layers of a token are 6 kB.
RUNS = {
    "one vector per text, float32": ({}, TEXT, 1),
    "one vector per text, bfloat16": ({"compute_dtype": "bfloat16"}, TEXT, 1),
    "one vector per text, bfloat16, XLA": (
        {"compute_dtype": "bfloat16", "xla": True, "length_buckets": [32, 64, 128, 256, 512]},
        TEXT,
        1,
    ),
    "four layers per token, float32": ({}, TOKENS, 4),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured: tokens of the batches, seconds for each number, lines and batches of the runs."""

    batches: tuple[int, ...]
    seconds: float
    lines: int
    batch_tokens: int
    runs: tuple[str, ...]


SIZES = {
    "gpu": Sizes((1024, 4096, 16_384, 65_536, 131_072), 1.0, 20_000, 16_384, tuple(RUNS)),
    "cpu": Sizes((128,), 0.1, 40, 1024, ("one vector per text, float32", "four layers per token, float32")),
}


def tokens_per_second(tf: Any, encoder: Encoder, tokens: int, seconds: float) -> float | None:
    """The rate for batches of this many tokens; None if one does not fit in memory."""
    shape = (tokens // LENGTH, LENGTH)
    ids = np.random.default_rng(0).integers(1000, 20_000, shape).astype(np.int32)
    batch = (ids, np.full(len(ids), LENGTH, np.int32), np.zeros_like(ids))
    calls = 0
    try:
        for _ in range(2):  # tracing, XLA's compilation, the choice of kernels
            encoder(*batch)
        tf.test.experimental.sync_devices()
        started = time.perf_counter()
        while time.perf_counter() < started + seconds:
            encoder(*batch)
            calls += 1
        tf.test.experimental.sync_devices()  # a GPU's calls return before it has computed them
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
    return tokens * calls / (time.perf_counter() - started)


def load(name: str, weights: dict[str, np.ndarray], compute_dtype: Any, xla: bool) -> Encoder:
    """MiniLM, or BERT-base's size with random weights: the last layer."""
    if name == "MiniLM":
        return load_encoder(open_encoder("minilm"), layers=(6,), pooler=False, compute_dtype=compute_dtype, xla=xla)
    return Network(BASE, weights, layers=(12,), compute_dtype=compute_dtype, xla=xla)


def encoder_table(tf: Any, device: str, sizes: Sizes) -> list[str]:
    """The encoders alone, by batch size."""
    lines = [
        f"| tokens/s in batches of | {' | '.join(f'{tokens:,}' for tokens in sizes.batches)} | peak memory "
        "| of the products' rate |",
        "|---" * (len(sizes.batches) + 3) + "|",
    ]
    minilm = open_encoder("minilm").architecture
    assert minilm is not None
    architectures: dict[str, Architecture] = {"MiniLM": minilm, "BERT-base size": BASE}
    weights = make_weights(BASE)
    for name, architecture in architectures.items():
        for mode, (compute_dtype, has_tf32) in MODES.items():
            tf.config.experimental.enable_tensor_float_32_execution(has_tf32)
            peak = product_rate(architecture, compute_dtype, 1, num_rows=sizes.batches[-1], seconds=sizes.seconds)
            for xla in (False, True):
                gc.collect()  # the encoder before, which is part of a cycle, would count as memory of this one
                encoder = load(name, weights, compute_dtype, xla)
                if device == "gpu":
                    tf.config.experimental.reset_memory_stats("GPU:0")
                rates = [tokens_per_second(tf, encoder, tokens, sizes.seconds) for tokens in sizes.batches]
                memory = "-"
                if device == "gpu":
                    memory = f"{tf.config.experimental.get_memory_info('GPU:0')['peak'] / 1e9:.2f} GB"
                del encoder
                cells = " | ".join("out of memory" if rate is None else f"{rate:,.0f}" for rate in rates)
                best = max(rate or 0 for rate in rates) * flops_per_token(architecture) / 1e9
                share = f"{best / peak:.2f} of {peak / 1000:.3g} TFLOP/s"
                lines.append(f"| {name}, {mode}{', XLA' * xla} | {cells} | {memory} | {share} |")
                print(lines[-1], flush=True)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return lines


def run_table(device: str, sizes: Sizes) -> list[str]:
    """Whole runs with MiniLM, start-up not counted."""
    lines = ["| MiniLM to Parquet | tokens | time | tokens/s | busy with the encoder |", "|---" * 5 + "|"]
    sentences = (ROOT / "tests/parity/sentences.txt").read_text().splitlines()
    texts = long_tail(sentences, sizes.lines)
    for name in sizes.runs:
        settings, view, share = RUNS[name]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_lines(folder / "texts.jsonl", texts[::share])
            encoder = {"handle": "minilm", "device": device, "max_seq_length": 512, "batch_tokens": sizes.batch_tokens}
            record = run_settings(
                folder,
                {
                    "input": {"files": ["texts.jsonl"], "format": "jsonl"},
                    "encoder": encoder | settings,
                    "views": {"v": view},
                    "output": {"path": "out"},
                },
            )
        seconds = record["seconds"] - record["seconds_to_first_block"]
        tokens = record["counts"]["encoded_tokens"]
        forward = record["stage_shares"]["forward"]
        lines.append(f"| {name} | {tokens:,} | {seconds:.1f} s | {tokens / seconds:,.0f} | {forward:.0%} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=SIZES, default="gpu")
    parser.add_argument("--write", action="store_true", help="write the tables to tests/benchmarks/README.md")
    options = parser.parse_args()
    if options.write and options.device == "cpu":
        parser.error("--write: the page shows a GPU, and --device is cpu")
    sizes = SIZES[options.device]
    try:
        name = describe(options.device)
    except DeviceError as error:
        sys.exit(str(error))
    tf = load_tensorflow(Hardware(1, options.device))
    versions = f"TensorFlow {tf.__version__}, CUDA {tf.sysconfig.get_build_info()['cuda_version']}"
    machine = processor() if options.device == "cpu" else f"{name}, {versions}"
    # The runs first: TensorFlow keeps the memory that it has taken from a GPU until its process ends.
    runs = run_table(options.device, sizes)
    written = [
        f"{datetime.date.today()}, {machine}; texts of {LENGTH} tokens, one process.",
        "",
        *encoder_table(tf, options.device, sizes),
        "",
        *runs,
    ]
    print("\n".join(["", *written]))
    if options.write:
        write_table("gpu", written)


if __name__ == "__main__":
    main()
