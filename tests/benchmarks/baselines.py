"""The usual alternatives at their best: a hand-written loop over transformers, and sentence-transformers.

Runs in its own environment: python baselines.py KIND ENCODER_FOLDER TEXTS.json DTYPE OUTPUT; prints JSON.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

LAYERS = (-1, -2, -3, -4)
MAX_SEQ_LENGTH = 512
BATCH_SIZES = (8, 16, 32, 64, 128)
SAMPLE = 256  # texts used to choose the batch size
ROW_GROUP_SIZE = 20_000  # tokens per row group


def tokens(folder: str, texts: list[str], dtype: str, output: str) -> dict[str, float]:
    """Write the last four layers of every token to Parquet, sorted by length, with the fastest batch size."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    model.eval()

    def batches(batch_texts: list[str], batch_size: int):
        ids = tokenizer(batch_texts, truncation=True, max_length=MAX_SEQ_LENGTH, padding=False)["input_ids"]
        order = sorted(range(len(ids)), key=lambda text: -len(ids[text]))
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            padded = tokenizer.pad({"input_ids": [ids[text] for text in numbers]}, return_tensors="pt")
            hidden = model(**padded, output_hidden_states=True).hidden_states
            real = padded["attention_mask"].bool()
            yield numbers, padded["input_ids"][real].numpy(), real, [hidden[k][real].float().numpy() for k in LAYERS]

    def seconds(batch_size: int, batch_texts: list[str]) -> float:
        started = time.perf_counter()
        for _ in batches(batch_texts, batch_size):
            pass
        return time.perf_counter() - started

    with torch.inference_mode():
        sample = texts[:: max(len(texts) // SAMPLE, 1)]
        seconds(32, sample)
        batch_size = min(BATCH_SIZES, key=lambda size: seconds(size, sample))
        writer, waiting, encoding, count, started = None, [], 0.0, 0, time.perf_counter()

        def write() -> None:
            nonlocal writer, waiting
            columns = [np.concatenate(parts) for parts in zip(*waiting, strict=True)]
            vectors = [
                pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
                for values in columns[2:]
            ]
            names = ["line", "token_id", *(f"layer_{k}" for k in LAYERS)]
            table = pa.Table.from_arrays([pa.array(columns[0]), pa.array(columns[1]), *vectors], names=names)
            writer = writer or pq.ParquetWriter(
                output, table.schema, compression="zstd", compression_level=1, use_dictionary=False
            )
            writer.write_table(table)
            waiting = []

        begun = time.perf_counter()
        for numbers, ids, real, layers in batches(texts, batch_size):
            lines = np.repeat(numbers, real.sum(1).numpy())
            encoding += time.perf_counter() - begun
            count += len(ids)
            waiting.append([lines, ids, *layers])
            if sum(len(part[0]) for part in waiting) >= ROW_GROUP_SIZE:
                write()
            begun = time.perf_counter()
        if waiting:
            write()
        writer.close()
    return {
        "seconds": time.perf_counter() - started,
        "encoder_seconds": encoding,
        "tokens": count,
        "batch_size": batch_size,
    }


def text_vectors(folder: str, texts: list[str], dtype: str, output: str) -> dict[str, float]:
    """Write mean-pooled vectors from sentence-transformers' `encode`, with the fastest batch size."""
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})

    def seconds(batch_size: int, batch_texts: list[str]) -> float:
        started = time.perf_counter()
        model.encode(batch_texts, batch_size=batch_size, show_progress_bar=False)
        return time.perf_counter() - started

    sample = texts[:: max(len(texts) // SAMPLE, 1)]
    seconds(32, sample)
    batch_size = min(BATCH_SIZES, key=lambda size: seconds(size, sample))
    started = time.perf_counter()
    vectors = model.encode(texts, batch_size=batch_size, show_progress_bar=False)
    took = time.perf_counter() - started
    np.save(output, vectors.astype(np.float32))
    return {"seconds": took, "batch_size": batch_size}


def products(folder: str, texts: list[str], dtype: str, output: str) -> dict[str, float]:
    """PyTorch's rate for this encoder's matrix products alone, in GFLOP/s."""
    import torch

    with open(f"{folder}/config.json") as file:
        config = json.load(file)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    linears = [
        torch.nn.Linear(n_in, n_out).to(getattr(torch, dtype))
        for n_in, n_out in ((hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden))
    ]
    rows = [torch.randn(1024, linear.in_features).to(getattr(torch, dtype)) for linear in linears]
    with torch.inference_mode():
        best = min(_once(linears, rows) for _ in range(20))
    return {"gflops": 2 * 1024 * sum(linear.weight.numel() for linear in linears) / best / 1e9}


def _once(linears: list, rows: list) -> float:
    started = time.perf_counter()
    for linear, values in zip(linears, rows, strict=True):
        linear(values)
    return time.perf_counter() - started


if __name__ == "__main__":
    kind, encoder_folder, path, number_type, result = sys.argv[1:]
    with open(path) as texts_file:
        loaded = json.load(texts_file)
    run = {"tokens": tokens, "texts": text_vectors, "products": products}[kind]
    print(json.dumps(run(encoder_folder, loaded, number_type, result)))
