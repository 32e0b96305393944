"""Measures the inputs of `scale.py` on this machine and writes scale_measured.json.

python measure_scale.py [--rounds N] [--commits N]

Needs Debian's package bible-kjv. Each measurement has its own process; rounds are interleaved and medians taken. Rates
are per second of processor time, so that other users of the machine have little effect.

Shuffled bytes are the encoded bytes that Beam's local runner puts into the buffer of each GroupByKey. Element counts
are Beam's own counts of each PCollection.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import pickle
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from command import run_json, run_record

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULT = HERE / "scale_measured.json"
ENCODERS = ("MiniLM", "BERT-base size")
DTYPES = ("float32", "bfloat16")
LEVELS = ("token", "text")
# Every n-th verse is used: about 20 s of processor time for each encoder.
VERSE_STEPS = {"MiniLM": 12, "BERT-base size": 60}
BLOCK_BYTES = 170_000
BLOCKS_PER_FILE = 100
SLICE_BYTES = 1 << 20
MEMORY = "/dev/shm"
STORE_COMMITS = (100, 300)


# --- one run of the real pipeline ------------------------------------------------------------------------------------


class Watch:
    """Bytes and elements on each edge and shuffle of one run, and the times when the encoder was loaded and warm."""

    def __init__(self) -> None:
        self.elements: dict[str, int] = {}
        self.shuffles: dict[str, int] = {}
        self.began: tuple[float, float] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        from apache_beam.portability import common_urns
        from apache_beam.runners.portability.fn_api_runner import execution, fn_runner

        from layerbeam.transforms.encode import _EncodeBlock

        names: dict[int, str] = {}
        append, get_buffer = execution.GroupingBuffer.append, execution.BundleContextManager.get_buffer
        run, setup = fn_runner.FnApiRunner.run_via_runner_api, _EncodeBlock.setup

        def appended(buffer: Any, data: bytes) -> None:
            name = names[id(buffer)]
            self.shuffles[name] = self.shuffles.get(name, 0) + len(data)
            append(buffer, data)

        def named(manager: Any, buffer_id: bytes, transform_id: str) -> Any:
            buffer = get_buffer(manager, buffer_id, transform_id)
            names[id(buffer)] = execution.split_buffer_id(buffer_id)[1]
            return buffer

        def ran(runner: Any, pipeline: Any, options: Any) -> Any:
            result = run(runner, pipeline, options)
            counts = {
                info.labels["PCOLLECTION"]: metric_value(info)
                for info in result.monitoring_infos()
                if info.urn == common_urns.monitoring_info_specs.ELEMENT_COUNT.spec.urn
            }
            transforms = pipeline.components.transforms
            for transform in transforms.values():
                for tag, collection in transform.outputs.items():
                    if not transform.subtransforms and collection in counts:
                        tag = "" if tag in ("None", "0") else f" {tag}"
                        self.elements[transform.unique_name + tag] = counts[collection]
            known = {name: transform.unique_name for name, transform in transforms.items()}
            self.shuffles = {known.get(name, name): size for name, size in self.shuffles.items()}
            return result

        def set_up(stage: Any) -> None:
            setup(stage)
            warm_up(stage._forward)
            self.began = self.began or (time.process_time(), time.perf_counter())

        execution.GroupingBuffer.append = appended
        execution.BundleContextManager.get_buffer = named
        fn_runner.FnApiRunner.run_via_runner_api = ran
        _EncodeBlock.setup = set_up
        yield


def metric_value(info: Any) -> int:
    from apache_beam.metrics.monitoring_infos import extract_counter_value

    return int(extract_counter_value(info))


def warm_up(forward: Any) -> None:
    """One small batch: the first batch traces and optimizes the graph."""
    import numpy as np

    from layerbeam.transforms.encode.forward import EncodeCost

    ids = np.full((8, 32), 1000, np.int32)
    for _ in forward([(ids, np.full(8, 32, np.int32), np.zeros_like(ids))], EncodeCost()):
        pass


def run_once(path: str) -> dict[str, Any]:
    """`layerbeam run` in this process."""
    from layerbeam.pipeline.cli.main import main

    watch = Watch()
    with watch():
        status = main(["run", path], version="benchmark")
    assert status == 0, status
    assert watch.began is not None
    busy, wall = time.process_time() - watch.began[0], time.perf_counter() - watch.began[1]
    import yaml

    out = Path(yaml.safe_load(Path(path).read_text())["output"]["path"])
    manifest = json.loads((out / "manifest.json").read_text())
    record = run_record(out)
    lines = (out / "parts.jsonl").read_bytes().splitlines()
    return {
        "elements": watch.elements,
        "shuffled_bytes": watch.shuffles,
        "blocks": len(lines),
        "commit_bytes": sum(map(len, lines)) / len(lines),
        "views": {
            name: {key: view[key] for key in ("level", "rows", "bytes", "parts", "width", "dtype")}
            for name, view in manifest["views"].items()
        },
        "texts": manifest["counts"]["embedded"],
        "encoded_tokens": record["counts"]["encoded_tokens"],
        "text_bytes": sum(entry["size"] for entry in manifest["inputs"]),
        "files": len(manifest["inputs"]),
        "processor_seconds": busy,
        "wall_seconds": wall,
        "seconds_to_first_block": record["seconds_to_first_block"],
        "peak_memory_bytes": record["peak_memory_bytes"],
        "stage_microseconds": {
            name: count for name, count in record["counts"].items() if name.endswith("_microseconds")
        },
    }


def load_once(path: str) -> dict[str, Any]:
    """From process start to the first batch: the cost that each worker process pays once."""
    started = time.perf_counter()
    from layerbeam.pipeline.config import load as configuration
    from layerbeam.pipeline.config.job import resolve
    from layerbeam.transforms.encode.forward import Forward

    config = configuration.load(path)
    import tensorflow  # noqa: F401

    imported = time.perf_counter()
    job = resolve(config)
    warm_up(Forward(job.load_encoder(), 1))
    files = [file for file in Path(job.encoder.folder).rglob("*") if file.is_file()] if job.encoder.folder else []
    weights = sum(file.stat().st_size for file in files if file.suffix == ".safetensors")
    return {
        "import_seconds": imported - started,
        "load_seconds": time.perf_counter() - imported,
        "memory_bytes": memory("VmHWM"),
        "weight_bytes": weights,
    }


# --- the two ends of a run, with synthetic commits -------------------------------------------------------------------


def memory(which: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(which)


class Ends:
    """An output folder as it is before a run's last stage: parts (empty bytes, in memory) and commits."""

    def __init__(self, folder: Path, commits: int, blocks_per_file: int, *, store: bool = False) -> None:
        from layerbeam.transforms.parts.part_format import Output
        from layerbeam.transforms.views import View

        self.folder, self.count, self.blocks_per_file = folder, commits, blocks_per_file
        scheme = "faulty://" if store else ""
        self.output = Output(f"{scheme}{folder}/out", "0123456789abcdef")
        self.input = f"{scheme}{folder}/corpus"
        self.views = (View(name="tokens", level="token", layers=(12,), hidden_size=768),)
        (folder / "corpus").mkdir()
        for number in range(-(-commits // blocks_per_file)):
            path = folder / "corpus" / f"part-{number:05d}.txt"
            path.touch()
            os.truncate(path, min(blocks_per_file, commits - number * blocks_per_file) * BLOCK_BYTES)
            os.utime(path, (1_700_000_000, 1_700_000_000))

    def _commits(self) -> Iterator[Any]:
        from layerbeam.transforms.commits import BlockId, Commit, InputFile, Part
        from layerbeam.transforms.parts import part_path

        counts = dict.fromkeys(("blank_skipped", "filtered", "rejected", "unknown_tokens"), 0)
        counts |= {"records_read": 1285, "embedded": 1285, "tokens": 41_000, "truncated_texts": 7, "dropped_tokens": 90}
        for number in range(self.count):
            of_file, block = divmod(number, self.blocks_per_file)
            size = min(self.blocks_per_file, self.count - of_file * self.blocks_per_file) * BLOCK_BYTES
            file = InputFile(f"{self.input}/part-{of_file:05d}.txt", size, 1_700_000_000.0)
            begin = block * BLOCK_BYTES
            identity = BlockId(file, block * 1285, 1285, begin, begin + BLOCK_BYTES, f"{number:064x}")
            part = Part(part_path(self.views[0], identity.name), 43_570, 10, f"{number:064x}")
            yield Commit(self.output.fingerprint, identity, counts, {"tokens": part})

    def write(self) -> None:
        out = self.folder / "out"
        (out / "tokens").mkdir(parents=True)
        (out / "_commits").mkdir()
        with open(self.folder / "shuffled", "wb") as shuffled:
            for commit in self._commits():
                part = out / commit.parts["tokens"].path
                part.touch()
                os.truncate(part, 10)
                text = json.dumps(commit.to_json(), sort_keys=True)
                (out / "_commits" / f"{commit.block.name}.json").write_text(text)
                pickle.dump(commit, shuffled)

    def commits(self) -> Iterator[Any]:
        """Each commit is parsed from its own bytes, as after a shuffle: no two share a string."""
        with open(self.folder / "shuffled", "rb") as shuffled:
            for _ in range(self.count):
                yield pickle.load(shuffled)

    def groups(self) -> list[Any]:
        from layerbeam.pipeline.output.find import list_groups

        return list_groups([f"{self.input}/*"], self.output.path)

    def finish(self) -> dict[str, Any]:
        from layerbeam.pipeline.output.finish import Finish, finish_group
        from layerbeam.pipeline.output.groups import Boundaries, Gathered, GroupWork
        from layerbeam.pipeline.output.manifest import RunIdentity
        from layerbeam.transforms.settings import RecordFormat

        head = RunIdentity(
            schema_version=1, fingerprint=self.output.fingerprint, identity={}, encoder={}, settings={}, versions={}
        )
        groups = self.groups()
        boundaries = Boundaries(tuple(group.first for group in groups))
        gathered = [Gathered(GroupWork(group, frozenset(), (), ())) for group in groups]
        for commit in self.commits():
            gathered[boundaries.number_of(commit.block.file.path)].add(commit)
        gc.collect()
        before, started = memory("VmRSS"), time.process_time()
        reports = [finish_group(self.output, of_group, RecordFormat()) for of_group in gathered]
        end = Finish(self.output, self.views, head, 1.0, RecordFormat())
        end.finish_run(end.write_index(reports))
        listings = [self.folder / "out/parts.jsonl", *(self.folder / "out/_index").glob("*.jsonl")]
        return {
            "seconds": time.process_time() - started,
            "memory_bytes": memory("VmHWM") - before,
            "parts_jsonl_bytes": sum(path.stat().st_size for path in listings if path.exists()),
        }

    def find(self) -> dict[str, Any]:
        """`find` with the commits of a run that was killed just before its end."""
        from layerbeam.pipeline.output.find import compare_group

        gc.collect()
        before, started = memory("VmRSS"), time.process_time()
        largest = files = 0
        for group in self.groups():
            _, to_read, _ = compare_group(self.output.path, group, fingerprint=self.output.fingerprint)
            files += len(to_read)
            largest = max([largest, *(len(pickle.dumps(file)) for file in to_read)])
        seconds = time.process_time() - started
        assert files == -(-self.count // self.blocks_per_file)
        return {
            "seconds": seconds,
            "memory_bytes": memory("VmHWM") - before,
            "largest_file_element_bytes": largest,
        }


def ends_once(stage: str, commits: int, blocks_per_file: int) -> dict[str, Any]:
    # In memory where such a folder exists: the disk of this machine is shared.
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as name:
        ends = Ends(Path(name), commits, blocks_per_file)
        ends.write()
        return getattr(ends, stage)()


def store_once() -> dict[str, Any]:
    """Requests that one more commit costs on an object store when a run is resumed."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import flaky_filesystem

    class RequestCounter(flaky_filesystem.Plan):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.calls: Counter[str] = Counter()

        def step(self, kind: str, path: str) -> None:
            self.calls[kind] += 1

    found = []
    for commits in STORE_COMMITS:
        with tempfile.TemporaryDirectory() as name:
            ends = Ends(Path(name), commits, commits, store=True)
            ends.write()
            plan = flaky_filesystem.FaultyFileSystem.plan = RequestCounter()
            ends.find()
            # Reading a file in pieces costs no further requests.
            found.append(Counter({kind: count for kind, count in plan.calls.items() if kind != "read"}))
    few, many = found
    more = STORE_COMMITS[1] - STORE_COMMITS[0]
    return {"find": {kind: (many[kind] - few[kind]) / more for kind in sorted(many) if many[kind] != few[kind]}}


def words_once(path: str) -> dict[str, Any]:
    """The sums of a `word_type` view: one key for each form of each block."""
    from layerbeam.pipeline.config.load import load
    from layerbeam.pipeline.output.index import load_index

    parts = load_index(load(path).output.path).parts("v")
    return {
        "parts": len(parts),
        "keys": sum(part.rows for part in parts),
        "part_bytes": sum(part.bytes for part in parts),
    }


# --- all measurements ------------------------------------------------------------------------------------------------


def child(*arguments: str) -> dict[str, Any]:
    """The result of one measurement, made in its own process."""
    result = run_json(sys.executable, __file__, "--child", *arguments)
    numbers = {key: value for key, value in result.items() if isinstance(value, int | float)}
    print(" ".join(arguments), numbers, flush=True)
    return result


CHILDREN = {
    "run": run_once,
    "load": load_once,
    "ends": lambda stage, commits, per_file: ends_once(stage, int(commits), int(per_file)),
    "store": store_once,
    "words": words_once,
}


class Bench:
    def __init__(self, folder: Path) -> None:
        from corpus import read_bible
        from random_encoder import BASE, make_weights, write_huggingface

        from layerbeam.transforms.encoders import open_encoder

        self.folder = folder
        minilm = open_encoder("minilm").folder
        base = folder / "base_uncased"
        base.mkdir()
        write_huggingface(base, BASE, make_weights(BASE))
        for name in ("vocab.txt", "tokenizer_config.json"):
            shutil.copy(Path(str(minilm)) / name, base)
        self.handles = {"MiniLM": str(minilm), "BERT-base size": str(base)}
        self.verses = read_bible()

    def configure(self, encoder: str, level: str, *, layer: int, dtype: str = "float32", share: int = 1) -> str:
        import yaml

        text = self.folder / f"verses-{share}.txt"
        if not text.exists():
            text.write_text("\n".join(self.verses[::share]) + "\n")
        settings = {
            "input": {"files": [str(text)], "format": "text"},
            "encoder": {"handle": self.handles[encoder], "compute_dtype": dtype},
            "views": {"v": {"level": level, "layers": [layer]}},
            "output": {"path": str(self.folder / "out")},
        }
        path = self.folder / "c.yaml"
        path.write_text(yaml.safe_dump(settings))
        return str(path)

    def run(self, encoder: str, level: str, **settings: Any) -> dict[str, Any]:
        path = self.configure(encoder, level, **settings)
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        return child("run", path)

    def small(self) -> dict[str, Any]:
        """Three files of a few lines: the cost of a file itself."""
        import yaml

        settings = {
            "input": {"files": [str(ROOT / "configs/demo/*.txt")], "format": "text"},
            "views": {"v": {"level": "text", "layers": [0]}},
            "output": {"path": str(self.folder / "out")},
        }
        path = self.folder / "c.yaml"
        path.write_text(yaml.safe_dump(settings))
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        return child("run", str(path))


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number; for constants and other values, the first."""
    return {
        key: statistics.median(result[key] for result in results)
        if isinstance(value, int | float)
        else medians([result[key] for result in results])
        if isinstance(value, dict)
        else value
        for key, value in results[0].items()
    }


def machine() -> dict[str, Any]:
    from speed import processor

    packages = ("apache-beam", "tensorflow", "numpy", "pyarrow")
    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages},
        "command": "make bench-scale",
        "load_average": os.getloadavg()[1],
    }


def main(rounds: int, commits: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        flow = {f"{encoder}, {level}": bench.run(encoder, level, layer=0) for encoder in ENCODERS for level in LEVELS}
        types = bench.run("BERT-base size", "word_type", layer=0)
        words = child("words", str(bench.folder / "c.yaml"))
        small = bench.small()
        ends = {
            f"{stage}, {number}": child("ends", stage, str(number), str(BLOCKS_PER_FILE))
            for number in (commits // 10, commits)
            for stage in ("find", "finish")
        }
        store = child("store")
        speed: dict[str, list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for encoder in ENCODERS:
                for dtype in DTYPES:
                    for level in LEVELS:
                        case = {"layer": -1, "dtype": dtype, "share": VERSE_STEPS[encoder]}
                        speed.setdefault(f"{encoder}, {dtype}, {level}", []).append(bench.run(encoder, level, **case))
        load: dict[str, list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for encoder in ENCODERS:
                for dtype in DTYPES:
                    path = bench.configure(encoder, "text", layer=-1, dtype=dtype)
                    load.setdefault(f"{encoder}, {dtype}", []).append(child("load", path))
    measured = {
        "machine": machine() | {"rounds": rounds, "commits": commits},
        "flow": flow,
        "small": small,
        "word_types": words | {"blocks": types["blocks"]},
        "ends": ends,
        "store_requests": store,
        "speed": {name: medians(results) for name, results in speed.items()},
        "load": {name: medians(results) for name, results in load.items()},
    }
    RESULT.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        found = CHILDREN[sys.argv[2]](*sys.argv[3:])
        print(json.dumps(found))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--commits", type=int, default=100_000)
        options = parser.parse_args()
        main(options.rounds, options.commits)
