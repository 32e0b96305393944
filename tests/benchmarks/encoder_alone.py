"""The encoder alone, on the batches of a run, and TensorFlow's own rate for the encoder's matrix products.

python encoder_alone.py CONFIG: prints JSON. Reading, pooling and writing are not timed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np

from layerbeam.pipeline.config import load as configuration
from layerbeam.pipeline.config.job import Job, resolve
from layerbeam.pipeline.output.find import find_work
from layerbeam.transforms.blocks import Slice
from layerbeam.transforms.encode.batching import equal_texts, plan_batches
from layerbeam.transforms.encode.block import pad_batch
from layerbeam.transforms.encode.forward import EncodeCost, Forward
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.encoders import onednn
from layerbeam.transforms.hardware import Hardware, cores, load_tensorflow
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.tokenize.sequences import load_text_tokenizer, tokenize_block

ROWS = 1024
PRODUCT_SECONDS = 3.0


def batches_of(job: Job) -> list[tuple[Any, Any, Any]]:
    """All batches of the run, block by block."""
    tokenizer = load_text_tokenizer(job.encoder)
    batches = []
    for work in find_work(job.config.input.files, "no such folder", prune_missing=False).to_read:
        for block in read_blocks(Slice(work.file, 0, work.file.size, 0), job.limits, job.records):
            tokens = tokenize_block(block, tokenizer, job.sequences)  # type: ignore[arg-type]
            first, _ = equal_texts(tokens.row_splits, tokens.token_ids, tokens.segment_ids)
            sequences = cut_sequences(tokens, first, job.encoding.max_seq_length, job.encoding.window_overlap)
            for batch in plan_batches(np.diff(sequences.splits), job.encoding.batch_tokens):
                batches.append(pad_batch(tokens, sequences, batch, job.encoder.special.pad))
    return batches


def product_rate(job: Job, threads: int) -> float:
    """The rate of one block's four products of 1,024 rows in GFLOP/s, in as many threads as the encoder uses."""
    import tensorflow as tf

    assert job.encoder.architecture is not None
    hidden, inner = job.encoder.architecture.hidden_size, job.encoder.architecture.intermediate_size
    shapes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]
    dtype = tf.as_dtype(job.config.encoder.compute_dtype)
    rows = {size: tf.cast(tf.random.normal([ROWS, size]), dtype) for size in (hidden, inner)}
    weights = [
        (tf.Variable(tf.cast(tf.random.normal(shape), dtype)), tf.Variable(tf.zeros(shape[1], dtype)))
        for shape in shapes
    ]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, size], dtype) for size in (hidden, inner)])
    def once(narrow: Any, wide: Any) -> Any:
        results = []
        for kernel, bias in weights:
            values = narrow if kernel.shape[0] == hidden else wide
            if dtype == tf.bfloat16 and onednn.is_available():
                results.append(onednn.packed_dense(values, kernel, bias)[0, 0])
            else:
                results.append(tf.nn.bias_add(tf.matmul(values, kernel), bias)[0, 0])
        return results

    once(*rows.values())
    calls = [0] * threads
    ends = time.perf_counter() + PRODUCT_SECONDS

    def work(number: int) -> None:
        while time.perf_counter() < ends:
            once(*rows.values())
            calls[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    return 2 * ROWS * sum(n_in * n_out for n_in, n_out in shapes) * sum(calls) / seconds / 1e9


def main(path: str) -> None:
    config = configuration.load(path)
    job = resolve(config)
    threads = cores()
    load_tensorflow(Hardware(threads))
    batches = batches_of(job)
    started = time.perf_counter()
    forward = Forward(job.load_encoder(), threads)
    for _ in forward(batches[:threads], EncodeCost()):
        pass
    loading = time.perf_counter() - started
    cost = EncodeCost()
    started = time.perf_counter()
    for _ in forward(batches, cost):
        pass
    seconds = time.perf_counter() - started
    assert job.encoder.architecture is not None
    hidden, inner = job.encoder.architecture.hidden_size, job.encoder.architecture.intermediate_size
    flops = 2 * job.encoder.num_hidden_layers * (4 * hidden * hidden + 2 * hidden * inner)
    result = {
        "load_seconds": loading,
        "seconds": seconds,
        "tokens": cost.encoded_tokens,
        "padded_tokens": cost.padded_tokens,
        "gflops": cost.encoded_tokens * flops / seconds / 1e9,
        "product_gflops": product_rate(job, threads),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
