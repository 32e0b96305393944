"""The encoder alone, on the batches of a run, and TensorFlow's own rate for the encoder's matrix products.

python encoder_alone.py CONFIG: prints JSON. Reading, pooling and writing are not timed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from typing import Any

import numpy as np

from layerbeam.pipeline.config import load as configuration
from layerbeam.pipeline.config.job import Job, resolve
from layerbeam.pipeline.output.work import find_work
from layerbeam.transforms.encode.batching import equal_texts, plan_batches
from layerbeam.transforms.encode.block import pad_batch
from layerbeam.transforms.encode.forward import EncodeCost, Forward
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.encoders import onednn
from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.device import keeps_layers
from layerbeam.transforms.flow.blocks import Slice
from layerbeam.transforms.hardware import Hardware, cores, load_tensorflow
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.tokenize.tokenizer import Tokenizer

ROWS = 1024
PRODUCT_SECONDS = 3.0


def batches_of(job: Job) -> list[tuple[Any, Any, Any]]:
    """All batches of the run, block by block."""
    tokenizer = Tokenizer(job.encoder, (), job.sequences)
    batches = []
    elsewhere = dataclasses.replace(job, output=dataclasses.replace(job.output, path="no such folder"))
    for work in find_work(elsewhere).to_read:
        for block in read_blocks(Slice(work.file, 0, work.file.size, 0), job.limits, job.records):
            contexts = tokenizer.tokenize(block).contexts  # type: ignore[arg-type]
            first, _ = equal_texts(contexts.row_splits, contexts.token_ids, contexts.segment_ids)
            sequences = cut_sequences(contexts, first, job.encoding)
            for batch in plan_batches(np.diff(sequences.splits), job.encoding.batch_tokens):
                batches.append(pad_batch(sequences, batch, job.encoder.special.pad))
    return batches


def product_shapes(architecture: Architecture) -> list[tuple[int, int]]:
    """The kernels of a block's products; that of query, key and value is one."""
    weights = architecture.weight_shapes(num_blocks=1, pooler=False)
    kernels = {name: shape for name, shape in weights.items() if "/layer_0/" in name and name.endswith("/kernel")}
    three = [shape for name, shape in kernels.items() if "/attention/self/" in name]
    rest = [shape for name, shape in kernels.items() if "/attention/self/" not in name]
    return [(architecture.hidden_size, sum(width for _, width in three)), *rest]  # type: ignore[list-item]


def flops_per_token(architecture: Architecture) -> int:
    """The operations of all blocks' products with weights for one token."""
    return 2 * architecture.num_hidden_layers * sum(n_in * n_out for n_in, n_out in product_shapes(architecture))


def product_rate(
    architecture: Architecture,
    compute_dtype: str,
    threads: int,
    *,
    num_rows: int = ROWS,
    seconds: float = PRODUCT_SECONDS,
) -> float:
    """The rate of one block's products of `num_rows` rows in GFLOP/s, in as many threads as the encoder uses."""
    import tensorflow as tf

    shapes = product_shapes(architecture)
    dtype = tf.as_dtype(compute_dtype)
    is_packed = dtype == tf.bfloat16 and onednn.is_available("bfloat16")  # it compares values, which a graph has not
    # A bias costs a processor nothing; it costs a GPU another pass over memory, which is no product.
    has_bias = not keeps_layers()
    rows = {size: tf.cast(tf.random.normal([num_rows, size]), dtype) for size in dict(shapes)}
    weights = [
        (tf.Variable(tf.cast(tf.random.normal(shape), dtype)), tf.Variable(tf.zeros(shape[1], dtype)))
        for shape in shapes
    ]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, size], dtype) for size in rows])
    def once(*values_of_width: Any) -> Any:
        given = dict(zip(rows, values_of_width, strict=True))
        results = []
        for kernel, bias in weights:
            values = given[kernel.shape[0]]
            if is_packed:
                results.append(onednn.packed_dense(values, kernel, bias)[0, 0])
            else:
                product = tf.matmul(values, kernel)
                results.append((tf.nn.bias_add(product, bias) if has_bias else product)[0, 0])
        return results

    once(*rows.values())
    tf.test.experimental.sync_devices()
    calls = [0] * threads
    ends = time.perf_counter() + seconds

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
    tf.test.experimental.sync_devices()  # a GPU's calls return before it has computed them
    took = time.perf_counter() - started
    return 2 * num_rows * sum(n_in * n_out for n_in, n_out in shapes) * sum(calls) / took / 1e9


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
    architecture = job.encoder.architecture
    assert architecture is not None
    result = {
        "load_seconds": loading,
        "seconds": seconds,
        "tokens": cost.encoded_tokens,
        "padded_tokens": cost.padded_tokens,
        "gflops": cost.encoded_tokens * flops_per_token(architecture) / seconds / 1e9,
    }
    if job.config.encoder.compute_dtype != "int8":
        result["product_gflops"] = product_rate(architecture, job.config.encoder.compute_dtype, threads)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
