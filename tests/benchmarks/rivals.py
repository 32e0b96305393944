"""What people use today, each at its best: transformers, ONNX Runtime, OpenVINO, sentence-transformers.

Runs in its own environment:

    python rivals.py tokens ENGINE ENCODER_FOLDER TEXTS.json DTYPE OUTPUT.parquet [MODE BATCH]
    python rivals.py texts BACKEND ENCODER_FOLDER TEXTS.json DTYPE OUTPUT.npy [MODE BATCH]

Prints JSON. Each engine gets the texts sorted by length, and takes the fastest of its modes and batch sizes, unless
they are given.
"""

from __future__ import annotations

import collections
import concurrent.futures
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

LAYERS = (-1, -2, -3, -4)
MAX_SEQ_LENGTH = 512
BATCH_TOKENS = (512, 1024, 2048, 4096, 8192)
BATCH_SIZES = (8, 16, 32, 64, 128)
SAMPLE = 128  # texts used to choose
ROW_GROUP_SIZE = 20_000  # tokens per row group
CORES = len(os.sched_getaffinity(0))
NAMES = ["input_ids", "attention_mask", "token_type_ids"]
OPENVINO_PRECISION = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}  # of what is not int8

# (ids, mask, segments), [B, S] each -> the layers [B, S, H]; and how many threads may call it at once.
Infer = tuple[Callable[[np.ndarray, np.ndarray, np.ndarray], list[np.ndarray]], int]
Inputs = list[tuple[np.ndarray, np.ndarray, np.ndarray]]


def torch_model(folder: str, dtype: str, attention: str):
    import torch
    import transformers

    class LastLayers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kind = getattr(torch, dtype)
            self.model = transformers.AutoModel.from_pretrained(folder, dtype=kind, attn_implementation=attention)
            self.has_segments = "token_type_ids" in inspect.signature(self.model.forward).parameters

        def forward(self, ids, mask, segments):
            given = {"input_ids": ids, "attention_mask": mask}
            if self.has_segments:
                given["token_type_ids"] = segments
            hidden = self.model(**given, output_hidden_states=True).hidden_states
            return tuple(hidden[k] for k in LAYERS)

    return LastLayers().eval()


def example():
    import torch

    ids = torch.full((4, 16), 1000)
    return ids, torch.ones_like(ids), torch.zeros_like(ids)


def with_transformers(folder: str, dtype: str, sample: Inputs) -> Iterator[tuple[str, Infer]]:
    import torch

    def infer(model):
        def call(*arrays):
            with torch.inference_mode():
                return [layer.float().numpy() for layer in model(*map(torch.from_numpy, arrays))]

        return call, 1

    try:
        model = torch_model(folder, dtype, "sdpa")
    except ValueError:  # MPNet has no other
        model = torch_model(folder, dtype, "eager")
    yield "eager", infer(model)
    yield "torch.compile", infer(torch.compile(model, dynamic=True))


def with_onnxruntime(folder: str, dtype: str, sample: Inputs) -> Iterator[tuple[str, Infer]]:
    """float32 and int8 (of the inputs by the range of each batch): on x86 it has no bfloat16 products."""
    import onnx
    import onnxruntime as ort
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer

    model = torch_model(folder, "float32", "eager")  # the form in which the optimizer finds attention
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "model.onnx")
        axes = {name: {0: "rows", 1: "length"} for name in NAMES}
        outputs = [f"layer_{k}" for k in LAYERS]
        torch.onnx.export(
            model, example(), path, input_names=NAMES, output_names=outputs, dynamic_axes=axes, dynamo=False
        )
        config = model.model.config
        fused = optimizer.optimize_model(path, "bert", config.num_attention_heads, config.hidden_size)
        assert fused.get_fused_operator_statistics()["Attention"] == config.num_hidden_layers
        fused.save_model_to_file(path, use_external_data_format=True)
        if dtype == "int8":
            exported, path = path, os.path.join(temporary, "int8.onnx")
            unknown = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # results of the optimizer's own nodes
            quantize_dynamic(exported, path, per_channel=True, weight_type=QuantType.QInt8, extra_options=unknown)
        for sessions, threads in ((1, CORES), (CORES, 1)):
            options = ort.SessionOptions()
            options.intra_op_num_threads = threads
            free = collections.deque(ort.InferenceSession(path, options) for _ in range(sessions))

            def call(*arrays, free=free):
                session = free.pop()
                result = session.run(None, dict(zip(NAMES, arrays, strict=True)))
                free.append(session)
                return result

            yield f"{sessions} sessions with {threads} threads", (call, sessions)


def in_int8(model, sample: Inputs):
    """OpenVINO's model with int8 products, by NNCF: static ranges, of the sample."""
    import nncf

    names = [each.get_any_name() for each in model.inputs]
    arrays = [dict(zip(names, each, strict=True)) for each in sample]
    return nncf.quantize(model, nncf.Dataset(arrays), subset_size=len(arrays), model_type=nncf.ModelType.TRANSFORMER)


def with_openvino(folder: str, dtype: str, sample: Inputs) -> Iterator[tuple[str, Infer]]:
    import openvino as ov

    model = ov.convert_model(torch_model(folder, "float32", "sdpa"), example_input=example())
    if dtype == "int8":
        model = in_int8(model, sample)
    precision = OPENVINO_PRECISION[dtype]
    for hint in ("THROUGHPUT", "LATENCY"):
        compiled = ov.compile_model(model, "CPU", {"PERFORMANCE_HINT": hint, "INFERENCE_PRECISION_HINT": precision})
        requests = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        free = collections.deque(compiled.create_infer_request() for _ in range(requests))

        def call(*arrays, free=free):
            request = free.pop()
            result = request.infer(arrays, share_inputs=True)
            free.append(request)
            return [result[k] for k in range(len(LAYERS))]

        yield f"hint {hint.lower()}", (call, requests)


def tokens(
    engine: str, folder: str, texts: list[str], dtype: str, output: str, mode: str = "", batch: str = ""
) -> dict[str, float | str]:
    """The last four layers of every token: encoded, and encoded and written to Parquet."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    load = {"transformers": with_transformers, "onnxruntime": with_onnxruntime, "openvino": with_openvino}[engine]

    def batches(texts: list[str], batch_tokens: int):
        """(the texts' numbers, ids, mask, segments) of each batch."""
        ids = tokenizer(texts, truncation=True, max_length=MAX_SEQ_LENGTH, padding=False)["input_ids"]
        order = collections.deque(sorted(range(len(ids)), key=lambda text: -len(ids[text])))
        while order:
            longest = len(ids[order[0]])
            numbers = [order.popleft() for _ in range(min(max(batch_tokens // longest, 1), len(order)))]
            mask = np.arange(longest) < np.array([[len(ids[text])] for text in numbers])
            padded = np.full(mask.shape, tokenizer.pad_token_id)
            padded[mask] = np.concatenate([ids[text] for text in numbers])
            yield numbers, padded, mask.astype(np.int64), np.zeros_like(padded)

    def encoded(infer: Infer, batches):
        """(line and id of each token, its layers) of each batch; as many batches at once as the engine takes."""
        call, at_once = infer

        def encode(numbers, ids, mask, segments):
            real = mask.astype(bool)
            lines = np.repeat(numbers, mask.sum(1))
            return lines, ids[real], *(layer[real] for layer in call(ids, mask, segments))

        with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
            begun: collections.deque[concurrent.futures.Future] = collections.deque()
            for batch in batches:
                begun.append(threads.submit(encode, *batch))
                if len(begun) > at_once:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()

    def seconds(infer: Infer, texts: list[str], batch_tokens: int) -> float:
        """Of the encoder alone."""
        prepared = list(batches(texts, batch_tokens))
        started = time.perf_counter()
        for _ in encoded(infer, prepared):
            pass
        return time.perf_counter() - started

    sample = texts[:: max(len(texts) // SAMPLE, 1)]
    tried = []
    for name, infer in load(folder, dtype, [each[1:] for each in batches(sample, 512)]):
        if mode in ("", name):
            seconds(infer, sample, 1024)
            for size in [int(batch)] if batch else BATCH_TOKENS:
                tried.append((seconds(infer, sample, size), name, size, infer))
    _, mode, batch_tokens, infer = min(tried, key=lambda one: one[0])
    alone = seconds(infer, texts, batch_tokens)
    started = time.perf_counter()
    count = write_parquet(encoded(infer, batches(texts, batch_tokens)), output)
    written = time.perf_counter() - started
    return {"seconds": written, "encoder_seconds": alone, "tokens": count, "mode": mode, "batch": batch_tokens}


def write_parquet(batches, output: str) -> int:
    """Writes the batches; returns how many tokens they have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("line", pa.int64()), ("token_id", pa.int64())])
    writer, waiting, count = None, [], 0

    def write() -> None:
        nonlocal writer
        columns = [np.concatenate(parts) for parts in zip(*waiting, strict=True)]
        vectors = [pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1]) for values in columns[2:]]
        arrays = [pa.array(columns[0]), pa.array(columns[1]), *vectors]
        table = pa.Table.from_arrays(arrays, names=[*schema.names, *(f"layer_{k}" for k in LAYERS)])
        writer = writer or pq.ParquetWriter(
            output, table.schema, compression="zstd", compression_level=1, use_dictionary=False
        )
        writer.write_table(table)
        waiting.clear()

    for batch in batches:
        waiting.append(batch)
        count += len(batch[0])
        if sum(len(part[0]) for part in waiting) >= ROW_GROUP_SIZE:
            write()
    if waiting:
        write()
    writer.close()
    return count


def onnx_qint8(model, sample: list[str]):
    """What sentence-transformers calls onnx-qint8."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        export_dynamic_quantized_onnx_model(model, "avx512_vnni", folder)
        file_name = {"file_name": "model_qint8_avx512_vnni.onnx"}
        return SentenceTransformer(folder, device="cpu", backend="onnx", model_kwargs=file_name)


def openvino_qint8(model, sample: list[str]):
    """What sentence-transformers calls openvino-qint8, with ranges of the sample instead of a set that it downloads."""
    encoder = model[0].auto_model
    inputs = [model.tokenize([text]) for text in sample]
    names = [each.get_any_name() for each in encoder.model.inputs]
    encoder.model = in_int8(encoder.model, [tuple(each[name].numpy() for name in names) for each in inputs])
    encoder.request = None
    encoder.compile()
    return model


def text_vectors(
    backend: str, folder: str, texts: list[str], dtype: str, output: str, mode: str = "", batch: str = ""
) -> dict[str, float | str]:
    """Mean-pooled vectors from sentence-transformers' `encode`."""
    import torch
    from sentence_transformers import SentenceTransformer

    settings = {
        "torch": {"dtype": getattr(torch, "float32" if dtype == "int8" else dtype)},
        "onnx": {"export": True},
        "openvino": {"export": True, "ov_config": {"INFERENCE_PRECISION_HINT": OPENVINO_PRECISION[dtype]}},
    }[backend]
    model = SentenceTransformer(folder, device="cpu", backend=backend, model_kwargs=settings)
    sample = texts[:: max(len(texts) // SAMPLE, 1)]
    if dtype == "int8":
        model = {"onnx": onnx_qint8, "openvino": openvino_qint8}[backend](model, sample)

    def seconds(batch_size: int, texts: list[str]) -> float:
        started = time.perf_counter()
        model.encode(texts, batch_size=batch_size, show_progress_bar=False)
        return time.perf_counter() - started

    seconds(32, sample)
    batch_size = min([int(batch)] if batch else BATCH_SIZES, key=lambda size: seconds(size, sample))
    started = time.perf_counter()
    vectors = model.encode(texts, batch_size=batch_size, show_progress_bar=False)
    took = time.perf_counter() - started
    np.save(output, vectors.astype(np.float32))
    return {"seconds": took, "mode": backend, "batch": batch_size}


if __name__ == "__main__":
    kind, which, encoder_folder, path, number_type, result, *choice = sys.argv[1:]
    with open(path) as texts_file:
        loaded = json.load(texts_file)
    run = {"tokens": tokens, "texts": text_vectors}[kind]
    print(json.dumps(run(which, encoder_folder, loaded, number_type, result, *choice)))
