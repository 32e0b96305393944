"""Runs with a stand-in for a GPU: how fast is what is around the encoder, and how long does the device wait for it?

    python device.py [--rate TOKENS_PER_SECOND] [--latency SECONDS] [--lines N] [--rounds N] [--views ...]
                     [--threads ...] [--processes ...] [--one-encoder] [--set K=V ...] [--plain] [--gil]

The stand-in takes `latency + padded tokens / rate` for a batch, one batch at a time, without Python's lock; all
processes share one device. Its layers stay on it: only what a view takes or pools is copied, from random numbers that
do not compress. Needs Debian's package bible-kjv; `--gil` needs py-spy and prints where Python's lock is held.

Processor time is that of the whole run less that of one with a line. Stages are what their threads were busy with.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).parent
VIEWS = {
    "text": {"level": "text", "layers": [-1], "pooling": "mean"},
    "tokens": {"level": "token", "layers": [-1, -2, -3, -4], "dtype": "float16"},
    "tokens_int8": {"level": "token", "layers": [-1, -2, -3, -4], "dtype": "int8"},
    "words": {"level": "word", "layers": [-1], "pooling": "mean", "dtype": "float16"},
}
SETTINGS = {
    "batch_tokens": 16384,
    "length_buckets": [*range(4, 64, 4), *range(64, 129, 8), *range(144, 257, 16)],
    "max_seq_length": 256,
}
VALUES = np.random.default_rng(0).standard_normal((1 << 14, 384), np.float32)
LOCK = threading.Lock()
_SAMPLES = 200  # a second, of Python's lock


@dataclasses.dataclass(frozen=True)
class StandInLayer:
    """A layer of n tokens that stays on the device."""

    tokens: int
    width: int

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.take(np.arange(self.tokens))

    def take(self, positions: Any) -> Any:
        """As `DeviceLayer` has it."""
        return VALUES[: len(positions), : self.width]  # no more than a batch has

    def pool(self, positions: Any, splits: Any, pooling: str) -> Any:
        """As `DeviceLayer` has it."""
        return self.take(splits[1:])


@dataclasses.dataclass
class StandIn:
    """An encoder that only takes its time. `record`: a file with its seconds, batches, tokens, padded tokens."""

    layers: tuple[int, ...]
    width: int
    pad_id: int
    rate: float
    latency: float
    record: str

    @property
    def dense_modules(self) -> dict[Any, Any]:
        """None of them."""
        return {}

    def __call__(self, token_ids: Any, lengths: Any, segment_ids: Any) -> tuple[dict[int, StandInLayer], None]:
        tokens = int(lengths.sum())
        seconds = self.latency + token_ids.size / self.rate
        with LOCK, open(self.record, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # one device for all processes
            time.sleep(seconds)
            totals = np.fromfile(file) + np.array([seconds, 1, tokens, token_ids.size])
            file.seek(0)
            totals.tofile(file)
        return {layer: StandInLayer(tokens, self.width) for layer in self.layers}, None


@dataclasses.dataclass(frozen=True)
class Loader:
    """Gives a stand-in in the process that encodes."""

    layers: tuple[int, ...]
    width: int
    pad_id: int
    device: tuple[float, float, str]

    def __call__(self, job: Any) -> StandIn:
        return StandIn(self.layers, self.width, self.pad_id, *self.device)


def run(
    config: str, device: tuple[float, float, str], threads: int, processes: int | None, *, one_encoder: bool
) -> None:
    """Run a configuration with the stand-in in the place of its encoder."""
    from layerbeam.pipeline.config import load
    from layerbeam.pipeline.config.job import Job, resolve
    from layerbeam.pipeline.run import build, encoder_process
    from layerbeam.pipeline.run.engines import local_runner
    from layerbeam.pipeline.run.run import LocalRun
    from layerbeam.transforms.views.view import needed_layers

    job = resolve(load.load(config))
    loader = Loader(needed_layers(job.views), job.encoder.hidden_size, job.encoder.special.pad, device)

    build.load_encoder = loader  # type: ignore[assignment]
    Job.begin_to_load_encoder = lambda _: None  # type: ignore[method-assign]
    runner = local_runner([], workers=threads * (processes or 1), processes=processes)
    encoder_process.is_needed = lambda device: one_encoder
    LocalRun(job=job, local=runner).run()


def measure(folder: Path, options: argparse.Namespace, view: str, threads: int, processes: int, lines: int) -> Any:
    """The figures of one run."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    np.zeros(4).tofile(folder / "device")
    config = {
        "input": {"files": [str(folder / f"{lines}.txt")]},
        "encoder": {"handle": "minilm", **SETTINGS, **dict(yaml.safe_load(f"{{{', '.join(options.set)}}}") or {})},
        "views": {view: {**VIEWS[view], **({"compress": False} if options.plain else {})}},
        "output": {"path": str(folder / "out")},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    program = ["-c", f"import device; device.run({str(folder / 'c.yaml')!r}, "]
    device = (options.rate, options.latency, str(folder / "device"))
    program[1] += f"{device!r}, {threads}, {processes if processes > 1 else None}, one_encoder={options.one_encoder})"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *program]
    if options.gil and lines > 1:
        profiler = ["py-spy", "record", "--gil", "--format", "raw", "--rate", str(_SAMPLES), "--output"]
        command = [*profiler, str(folder / "gil.txt"), "--", *command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(HERE)
    subprocess.run(command, cwd=HERE, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = json.loads((folder / "out/_runs/1.json").read_text())
    seconds, batches, tokens, padded = np.fromfile(folder / "device").tolist()
    return {
        "run": record["seconds"] - (record["seconds_to_first_block"] or 0),
        "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "device": seconds,
        "batches": batches,
        "tokens": tokens,
        "padded": padded,
        "counts": record["counts"],
        "memory": record["peak_memory_bytes"],
    }


def main() -> None:
    from corpus import read_bible

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=7e6)
    parser.add_argument("--latency", type=float, default=0.001)
    parser.add_argument("--lines", type=int, default=240000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--views", nargs="+", default=list(VIEWS), choices=list(VIEWS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--processes", nargs="+", type=int, default=[1])
    parser.add_argument("--one-encoder", action="store_true", help="one process encodes for the others")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME: VALUE", help="settings of the encoder")
    parser.add_argument("--plain", action="store_true", help="Parquet without compression")
    parser.add_argument("--gil", action="store_true")
    options = parser.parse_args()
    verses = read_bible()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        numbered = (f"{number} {verses[number % len(verses)]}" for number in range(options.lines))
        (folder / f"{options.lines}.txt").write_text("\n".join(numbered))
        (folder / "1.txt").write_text(verses[0])
        cases = list(itertools.product(options.views, options.threads, options.processes))
        measure(folder, options, *cases[0], 1)  # so that all is compiled
        alone = {
            case: statistics.median(measure(folder, options, *case, 1)["processor"] for _ in range(3)) for case in cases
        }
        found: dict[Any, list[Any]] = {case: [] for case in cases}
        for _, case in itertools.product(range(options.rounds), cases):
            found[case].append(measure(folder, options, *case, options.lines))
            if options.gil:
                print_gil(folder / "gil.txt", found[case][-1]["tokens"])
        print(
            "| view | threads | processes | tokens/s | processor s per million tokens | device waits | padding |",
            end="",
        )
        print(" busy s per million tokens: read, tokenize, forward, pooling, write | memory |\n|" + "---|" * 9)
        for case, rounds in found.items():
            print_row(case, alone[case], rounds)


def print_row(case: tuple[str, int, int], alone: float, rounds: list[Any]) -> None:
    """The medians of a case as a row of the table."""

    def median(of: Any) -> float:
        return statistics.median(of(one) for one in rounds)

    view, threads, processes = case
    stages = (
        f"{median(lambda one, s=stage: one['counts'].get(f'{s}_microseconds', 0) / one['tokens']):.2f}"
        for stage in ("read", "tokenize", "forward", "pooling", "write")
    )
    cells = [
        *(view, threads, processes),
        f"{median(lambda one: one['tokens'] / one['run']):,.0f}",
        f"{median(lambda one: (one['processor'] - alone) / one['tokens'] * 1e6):.2f}",
        f"{median(lambda one: 1 - one['device'] / one['run']):.0%}",
        f"{median(lambda one: 1 - one['tokens'] / one['padded']):.0%}",
        " ".join(stages),
        f"{median(lambda one: one['memory']) / 1e6:,.0f} MB",
    ]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def print_gil(path: Path, tokens: int) -> None:
    """How long the product holds Python's lock, and where most: functions by themselves and with what they call."""
    inner, outer = dict[str, int](), dict[str, int]()
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if not any("process_bundle" in frame or "_run (transforms/encode" in frame for frame in frames):
            continue  # start and end of the run
        inner[frames[-1]] = inner.get(frames[-1], 0) + int(count)
        for frame in {*frames}:
            outer[frame] = outer.get(frame, 0) + int(count)
    total = sum(inner.values())
    print(f"\nPython's lock is held {total / _SAMPLES / tokens * 1e6:.3f} s per million tokens")
    for name, held in (("by itself", inner), ("with what it calls", outer)):
        print(f"\nPython's lock, {name}:")
        for frame, count in sorted(held.items(), key=lambda item: -item[1])[:40]:
            print(f"{count / total:6.1%}  {frame}")


if __name__ == "__main__":
    main()
