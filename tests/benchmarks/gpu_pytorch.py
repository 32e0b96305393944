"""PyTorch's tokens per second on a GPU, for the sizes and batches of gpu.py: transformers' BertModel, last layer.

python gpu_pytorch.py, where PyTorch and transformers are installed.
"""

from __future__ import annotations

import time

import torch
from transformers import BertConfig, BertModel

LENGTH = 128
BATCHES = (1024, 4096, 16_384, 65_536, 131_072)
SIZES = {"MiniLM": (384, 6, 1536), "BERT-base size": (768, 12, 3072)}  # hidden, layers, intermediate
MODES = {"float32": torch.float32, "TF32": torch.float32, "bfloat16": torch.bfloat16}


def tokens_per_second(model: BertModel, tokens: int, seconds: float = 0.3) -> float:
    """The rate for batches of this many tokens without padding."""
    ids = torch.randint(1000, 20_000, (tokens // LENGTH, LENGTH), device="cuda")
    mask = torch.ones_like(ids)
    calls = 0
    with torch.inference_mode():
        for _ in range(3):
            model(input_ids=ids, attention_mask=mask)
        torch.cuda.synchronize()
        started = time.perf_counter()
        while time.perf_counter() < started + seconds:
            model(input_ids=ids, attention_mask=mask)
            calls += 1
            if calls % 20 == 0:  # calls return before the GPU has computed them
                torch.cuda.synchronize()
        torch.cuda.synchronize()
    return tokens * calls / (time.perf_counter() - started)


def main() -> None:
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name, (hidden, layers, intermediate) in SIZES.items():
        config = BertConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=12,
            intermediate_size=intermediate,
            attn_implementation="sdpa",
        )
        for mode, dtype in MODES.items():
            torch.backends.cuda.matmul.allow_tf32 = mode == "TF32"
            model = BertModel(config, add_pooling_layer=False).eval().cuda().to(dtype)
            cells = " | ".join(f"{tokens_per_second(model, tokens):,.0f}" for tokens in BATCHES)
            print(f"| {name}, {mode} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
