"""The encoder alone on one core by the length of its texts: processor time and peak memory, next to transformers.

python lengths.py RIVALS_PYTHON [--before PYTHON] [--lengths N ...] [--only NAME ...] [--write]

The weights are random. A batch has 2,048 tokens in texts of one length, or one text. Each measurement has a process of
its own. `--before`: a Python with another version of layerbeam. transformers has SDPA attention. Memory is what a
process takes above the loaded encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (128, 390, 512, 2048, 8192)
BATCH_TOKENS = 2048
SECONDS = 6.0  # of a measurement, or one batch
_BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 30522,
    "type_vocab_size": 2,
    "max_position_embeddings": 8192,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 12,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "MiniLM's size": _BERT | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "BERT-base's size": _BERT | {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072},
    "ModernBERT-base's size": {
        "model_type": "modernbert",
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "pad_token_id": 0,
    },
}


def memory(name: str) -> int:
    """A number of bytes from /proc/self/status: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{name}:"))


def ours(folder: Path, dtype: str) -> Callable[[np.ndarray], Any]:
    from layerbeam.transforms.encoders.architectures import read_architecture
    from layerbeam.transforms.encoders.config_file import ConfigFile
    from layerbeam.transforms.encoders.network import Network
    from layerbeam.transforms.hardware import Hardware, load_tensorflow

    load_tensorflow(Hardware(1))
    architecture = read_architecture(ConfigFile(folder.name, folder / "config.json"))
    weights = random_weights(architecture)
    network = Network(architecture, weights, layers=[architecture.num_hidden_layers], compute_dtype=dtype)
    return lambda ids: network(ids, np.full(len(ids), ids.shape[1], np.int32), np.zeros_like(ids))


def random_weights(architecture: Any) -> dict[str, np.ndarray]:
    from random_encoder import make_weights

    return make_weights(architecture)


def transformers(folder: Path, dtype: str) -> Callable[[np.ndarray], Any]:
    import torch
    import transformers

    torch.set_num_threads(1)
    config = transformers.AutoConfig.from_pretrained(folder)
    kinds = {"attn_implementation": "sdpa", "dtype": getattr(torch, dtype)}
    model = transformers.AutoModel.from_config(config, **kinds).eval()

    def encode(ids: np.ndarray) -> Any:
        with torch.inference_mode():
            given = torch.from_numpy(ids.astype(np.int64))
            return model(input_ids=given, attention_mask=torch.ones_like(given)).last_hidden_state

    return encode


def measure(encode: Callable[[np.ndarray], Any], length: int) -> dict[str, float]:
    """Processor seconds for 1,000 tokens, and the bytes that a batch takes."""
    random = np.random.default_rng(0)
    ids = random.integers(5, 30_000, (max(BATCH_TOKENS // length, 1), length)).astype(np.int32)
    encode(ids[:, :4])
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    times: list[float] = []
    while sum(times) < SECONDS:
        began = time.process_time()
        encode(ids)
        times.append(time.process_time() - began)
    # The first batch of a shape makes kernels for it.
    return {"seconds": statistics.median(times[1:] or times) / ids.size * 1000, "bytes": memory("VmHWM") - before}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rivals_python")
    parser.add_argument("--before", help="a Python with another version of layerbeam")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--only", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--write", action="store_true", help="write the table to tests/benchmarks/README.md")
    options = parser.parse_args()

    from command import run_json
    from page import write_table
    from speed import processor

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pythons = {"layerbeam": sys.executable, "transformers": options.rivals_python}
    if options.before:
        pythons = {"before": options.before, **pythons}
    lines = [
        f"{processor()}, one core, {options.dtype}: processor seconds for 1,000 tokens, and peak memory above the "
        "loaded encoder.",
        "",
        f"| size, tokens in a text | {' | '.join(f'{name} | memory' for name in pythons)} |",
        "|---" * (1 + 2 * len(pythons)) + "|",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.only:
            folder = Path(temporary, name)
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
            for length in options.lengths:
                cells = []
                for what, python in pythons.items():
                    found = run_json(python, __file__, "--one", what, str(folder), str(length), options.dtype)
                    cells.append(f"{found['seconds']:.3f} | {found['bytes'] / 1e6:,.0f} MB")
                lines.append(f"| {name}, {length:,} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    print("\n".join(lines))
    if options.write:
        write_table("lengths", lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        what, folder, length, dtype = sys.argv[2:]
        load = transformers if what == "transformers" else ours
        print(json.dumps(measure(load(Path(folder), dtype), int(length))))
    else:
        main()
