"""Where a forward pass spends its time: milliseconds by type of TensorFlow operation, on one thread.

python operations.py [--dtype bfloat16] [--rows 32] [--length 32]
"""

from __future__ import annotations

import argparse
import collections
import tempfile
from pathlib import Path

import numpy as np
from random_encoder import BASE, make_weights

from layerbeam import load_encoder, open_encoder
from layerbeam.transforms.encode.forward import Encoder
from layerbeam.transforms.encoders.network import Network
from layerbeam.transforms.hardware import Hardware, load_tensorflow

CALLS = 20
SHOWN = 12
WHOLE = "all"


def milliseconds(encoder: Encoder, rows: int, length: int) -> collections.Counter[str]:
    """{type of operation: ms of one call} for batches [rows, length] without padding, and `all` of the call."""
    tf = load_tensorflow(Hardware(1))
    ids = np.random.default_rng(0).integers(1000, 20_000, (rows, length)).astype(np.int32)
    batch = (ids, np.full(rows, length, np.int32), np.zeros_like(ids))
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(CALLS):
            encoder(*batch)
        with tf.profiler.experimental.Profile(folder, options=options):
            for _ in range(CALLS):
                encoder(*batch)
        return read_profile(next(Path(folder).rglob("*.xplane.pb")))


def read_profile(path: Path) -> collections.Counter[str]:
    """Events of operations are named `<name>:<type>`; those of the executor around them are not counted."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    found: collections.Counter[str] = collections.Counter()
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            operation, _, kind = plane.event_metadata[event.metadata_id].name.partition(":")
            if operation == "TFE_Py_ExecuteCancelable":
                found[WHOLE] += event.duration_ps
            elif kind and not kind.startswith((":", " ")):
                found[kind] += event.duration_ps
    return collections.Counter({kind: total / 1e9 / CALLS for kind, total in found.items()})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=32)
    options = parser.parse_args()
    load_tensorflow(Hardware(1))
    encoders = {
        "MiniLM": load_encoder(open_encoder("minilm"), layers=(3, 4, 5, 6), pooler=False, compute_dtype=options.dtype),
        "BERT-base size": Network(BASE, make_weights(BASE), layers=(9, 10, 11, 12), compute_dtype=options.dtype),
    }
    for name, encoder in encoders.items():
        found = milliseconds(encoder, options.rows, options.length)
        print(f"{name}, {options.dtype}, {options.rows} texts of {options.length} tokens")
        for kind, took in found.most_common(SHOWN):
            print(f"  {took:9.2f} ms  {took / found[WHOLE]:6.1%}  {kind}")


if __name__ == "__main__":
    main()
