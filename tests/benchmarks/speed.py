"""layerbeam compared with its rivals on this machine, for tests/benchmarks/README.md: medians of interleaved rounds.

python speed.py RIVALS_PYTHON TFHUB_PACKAGES BACKENDS_PACKAGES [--engines ...] [--rounds N] [--lines N] [--write]

Needs Debian's package bible-kjv. Start-up is not counted: layerbeam's time runs from its first block to the end, the
rivals' time starts when they are loaded and have chosen their mode and batch size. Each round also compares the
vectors.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from command import layerbeam, run_json, run_program, run_record
from corpus import long_tail, read_bible
from page import write_table
from random_encoder import BASE, make_weights, write_huggingface

from layerbeam import open_run
from layerbeam.pipeline.verify.compare import cosines
from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.encoders.onednn import int8_problem
from layerbeam.transforms.hardware import slow_bfloat16

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LAYERS = (-1, -2, -3, -4)
MAX_SEQ_LENGTH = 512
ENGINES = ("transformers", "onnxruntime", "openvino")
BACKENDS = ("torch", "onnx", "openvino")
# Rivals that do not have a number type on x86: PyTorch's int8 is not what people use for encoders.
LACKING = {"float32": (), "bfloat16": ("onnxruntime", "onnx"), "int8": ("transformers", "torch")}
# BERT-base's size takes eight times as long as MiniLM, so it gets every fourth line.
BASE_STEP = 4
MAX_ERROR = 5e-5  # another order of sums, on any processor
MIN_COSINE = 0.998


class Bench:
    """All results, by the name of the case."""

    def __init__(
        self, folder: Path, rivals_python: str, tfhub: str, backends: str, engines: Sequence[str], lines: int
    ) -> None:
        self.folder = folder
        self.engines = engines
        self.rivals_python = rivals_python
        self.tfhub = tfhub
        self.backends = backends
        packages = ["torch", "transformers", "onnxruntime", "openvino", "sentence-transformers"]
        code = (
            "import json; from importlib.metadata import version; "
            f"print(json.dumps({{name: version(name) for name in {packages}}}))"
        )
        self.versions = ", ".join(f"{name} {version}" for name, version in run_json(rivals_python, "-c", code).items())
        has = {"float32": True, "bfloat16": not slow_bfloat16("bfloat16"), "int8": int8_problem() is None}
        self.dtypes = [dtype for dtype in has if has[dtype]]
        self.exact: dict[str, np.ndarray] = {}  # vectors in float32, by case
        self.results: dict[str, list[dict[str, Any]]] = {}
        verses = read_bible()
        self.texts = {"verses": verses[:: len(verses) // lines][:lines], "long tail": long_tail(verses, lines // 4)}
        self.encoders = {"MiniLM": str(open_encoder("minilm").folder), "BERT-base size": str(folder / "base")}
        self._make_base()

    def _make_base(self) -> None:
        base = Path(self.encoders["BERT-base size"])
        base.mkdir()
        write_huggingface(base, BASE, make_weights(BASE))
        for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            shutil.copy(Path(self.encoders["MiniLM"]) / name, base)

    def note(self, name: str, result: dict[str, Any]) -> None:
        self.results.setdefault(name, []).append(result)
        rounded = {key: round(value, 2) if isinstance(value, float) else value for key, value in result.items()}
        print(f"{name:58} {json.dumps(rounded)}", flush=True)

    def median(self, name: str, figure: str = "seconds") -> float:
        return statistics.median(result[figure] for result in self.results[name])

    def input_of(self, encoder: str, corpus: str) -> tuple[Path, Path]:
        """The texts as JSON Lines for layerbeam and as JSON for its rivals."""
        step = 1 if encoder == "MiniLM" else BASE_STEP
        texts = self.texts[corpus][::step]
        lines, plain = (self.folder / f"{corpus}-{step}.{ending}" for ending in ("jsonl", "json"))
        write_lines(lines, texts)
        plain.write_text(json.dumps(texts))
        return lines, plain

    def configure(self, encoder: str, corpus: str, dtype: str, view: dict[str, Any]) -> Path:
        settings = {
            "input": {"files": [str(self.input_of(encoder, corpus)[0])], "format": "jsonl"},
            "encoder": {"handle": self.encoders[encoder], "compute_dtype": dtype, "max_seq_length": MAX_SEQ_LENGTH},
            "views": {"v": view},
            "output": {"path": str(self.folder / "out")},
        }
        path = self.folder / "c.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def run_layerbeam(self, path: Path) -> dict[str, float]:
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        layerbeam(self.folder, "run", str(path))
        record = run_record(self.folder / "out")
        return {
            "seconds": record["seconds"] - record["seconds_to_first_block"],
            "to_first_block": record["seconds_to_first_block"],
            "peak_mb": record["peak_memory_bytes"] / 1e6,
            "tokens": record["counts"]["encoded_tokens"],
            "padding": record["padding_share"],
            **{f"share of {stage}": share for stage, share in record["stage_shares"].items()},
        }

    def run_rival(self, name: str, kind: str, which: str, encoder: str, corpus: str, dtype: str) -> None:
        """Run and note a rival, after the first round in the mode and with the batches that it chose then."""
        texts = self.input_of(encoder, corpus)[1]
        arguments = [kind, which, self.encoders[encoder], str(texts), dtype, str(self.rival_output(kind))]
        before = self.results.get(name)
        if before:
            arguments += [before[0]["mode"], str(before[0]["batch"])]
        environment = {"HF_HUB_OFFLINE": "1"}
        if kind == "texts" and which != "torch":
            environment["PYTHONPATH"] = self.backends
        self.note(name, run_json(self.rivals_python, str(HERE / "rivals.py"), *arguments, environment=environment))

    def rival_output(self, kind: str) -> Path:
        return self.folder / ("rival.npy" if kind == "texts" else "rival.parquet")

    def run_encoder_alone(self, path: Path) -> dict[str, float]:
        return run_json(sys.executable, str(HERE / "encoder_alone.py"), str(path))

    def compare_tokens(self, dtype: str) -> np.ndarray:
        """The rival's last layer, after a check that both have the same vectors for the same tokens."""
        ours = open_run(str(self.folder / "out")).view("v").to_arrow()
        theirs = pq.read_table(self.rival_output("tokens")).sort_by([("line", "ascending")])
        assert ours["token_id"].to_pylist() == theirs["token_id"].to_pylist(), "tokens differ from the rival's"
        names = [name for name in ours.column_names if name.startswith("layer_")]
        for name, number in zip(names, LAYERS, strict=True):
            compare(rows_of(ours[name]), rows_of(theirs[f"layer_{number}"]), dtype)
        return rows_of(theirs["layer_-1"])

    def note_cosine(self, name: str, case: str, dtype: str, vectors: np.ndarray) -> None:
        """Of int8, the mean cosine with our vectors in float32, of the same round."""
        if dtype == "int8":
            self.results[name][-1]["cosine"] = float(cosines(vectors, self.exact[case]).mean())

    def tokens(self, encoder: str, corpus: str, dtype: str) -> None:
        name = f"{encoder}, {dtype}, {corpus}"
        path = self.configure(encoder, corpus, dtype, {"level": "token", "layers": list(LAYERS)})
        case = f"{encoder}, {corpus}"
        self.note(f"{name}: layerbeam", self.run_layerbeam(path))
        ours = open_run(str(self.folder / "out")).view("v")
        last = ours.to_numpy(next(name for name in ours.schema.names if name.startswith("layer_")))
        if dtype == "float32":
            self.exact[case] = last
        self.note_cosine(f"{name}: layerbeam", case, dtype, last)
        self.note(f"{name}: our encoder alone", self.run_encoder_alone(path))
        for engine in self.engines:
            if engine not in LACKING[dtype]:
                self.run_rival(f"{name}: {engine}", "tokens", engine, encoder, corpus, dtype)
                self.note_cosine(f"{name}: {engine}", case, dtype, self.compare_tokens(dtype))

    def text_vectors(self, dtype: str) -> None:
        name = f"MiniLM, {dtype}, verses, text vectors"
        view = {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True}
        self.note(f"{name}: layerbeam", self.run_layerbeam(self.configure("MiniLM", "verses", dtype, view)))
        ours = open_run(str(self.folder / "out")).view("v").to_numpy("layer_6")
        if dtype == "float32":
            self.exact["text vectors"] = ours
        self.note_cosine(f"{name}: layerbeam", "text vectors", dtype, ours)
        for backend in BACKENDS:
            if backend not in LACKING[dtype]:
                self.run_rival(f"{name}: {backend}", "texts", backend, "MiniLM", "verses", dtype)
                theirs = np.load(self.rival_output("texts"))
                compare(ours, theirs, dtype)
                self.note_cosine(f"{name}: {backend}", "text vectors", dtype, theirs)

    def run_inference(self) -> None:
        """Every fifth verse in Beam's RunInference, with standard components and with our handler, and in a run."""
        saved, texts = self.folder / "tfhub", self.folder / "few.json"
        folder, script = self.encoders["MiniLM"], str(HERE / "run_inference.py")
        if not saved.exists():
            export = [sys.executable, script, "export", f"{folder}/config.json", str(saved)]
            run_program(export, environment={"PYTHONPATH": self.tfhub})
        few = self.texts["verses"][::5]
        texts.write_text(json.dumps(few))
        path = self.configure("MiniLM", "verses", "float32", {"level": "token", "layers": list(LAYERS)})
        write_lines(Path(yaml.safe_load(path.read_text())["input"]["files"][0]), few)
        own = {
            "standard": run_json(sys.executable, script, "standard", str(saved), f"{folder}/vocab.txt", str(texts)),
            "ModelHandler": run_json(sys.executable, script, "layerbeam", folder, str(texts)),
            "layerbeam run": self.run_layerbeam(path) | {"lines": len(few)},
        }
        for name, result in own.items():
            self.note(f"RunInference: {name}", result)

    def growth(self) -> None:
        """One run over a tenth of the lines and one over all lines."""
        verses = read_bible()
        for name, texts in (("tenth", verses[::10]), ("all", verses)):
            path = self.configure("MiniLM", "verses", self.dtypes[-1], {"level": "token", "layers": list(LAYERS)})
            settings = yaml.safe_load(path.read_text())
            write_lines(Path(settings["input"]["files"][0]), texts)
            self.note(f"growth, {len(texts):,} lines ({name})", self.run_layerbeam(path) | {"lines": len(texts)})


def write_lines(path: Path, texts: list[str]) -> None:
    """One JSON object per text."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def rows_of(column: Any) -> np.ndarray:
    array = column.combine_chunks()
    flat = array.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(array), -1)


def compare(ours: np.ndarray, theirs: np.ndarray, dtype: str) -> None:
    error = float(np.abs(ours - theirs).max())
    if dtype == "float32":
        largest = float(np.abs(theirs).max())  # of inner layers without a norm it is large, and so is the rounding
        assert error <= MAX_ERROR * max(1, largest / 10), f"error {error:.2g}, largest value {largest:.2g}"
    elif dtype == "bfloat16":
        smallest = float(cosines(ours, theirs).min())
        assert smallest >= MIN_COSINE, f"smallest cosine {smallest:.5f}"


def table(bench: Bench, rounds: int, lines: int) -> list[str]:
    """The lines between the two markers of tests/benchmarks/README.md."""
    return [
        f"{datetime.date.today().isoformat()}, {processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"Python {platform.python_version()}, TensorFlow {metadata.version('tensorflow')}, {bench.versions}; "
        f"medians of {rounds} interleaved rounds of {lines:,} lines (BERT-base's size: {-(-lines // BASE_STEP):,}).",
        "",
        *token_table(bench),
        "",
        *text_table(bench),
        "",
        *encoder_table(bench),
        "",
        *cosine_lines(bench),
        *growth_lines(bench),
    ]


def medians(bench: Bench, case: str, rivals: Sequence[str], figure: str = "seconds") -> dict[str, float]:
    """What each of the rivals that ran took."""
    return {name: bench.median(f"{case}: {name}", figure) for name in rivals if f"{case}: {name}" in bench.results}


def token_cases(bench: Bench) -> list[str]:
    suffix = ": our encoder alone"
    return [name.removesuffix(suffix) for name in bench.results if name.endswith(suffix)]


def token_table(bench: Bench) -> list[str]:
    lines = [
        "| four layers of every token to Parquet | tokens | layerbeam | fastest other | ratio | to encoder alone |",
        "|---|---|---|---|---|---|",
    ]
    for case in token_cases(bench):
        ours, tokens = bench.median(f"{case}: layerbeam"), bench.median(f"{case}: layerbeam", "tokens")
        theirs, rival = min((took, name) for name, took in medians(bench, case, bench.engines).items())
        rates = [f"{seconds:.1f} s, {tokens / seconds:,.0f} tokens/s" for seconds in (ours, theirs)]
        whole = ours / bench.median(f"{case}: our encoder alone")
        lines.append(
            f"| {case} | {tokens:,.0f} | {rates[0]} | {rival}: {rates[1]} | {theirs / ours:.2f} | {whole:.2f} |"
        )
    return lines


def text_table(bench: Bench) -> list[str]:
    rivals = " | ".join(f"with {backend}" for backend in BACKENDS)
    lines = [
        f"| one vector per text | layerbeam | sentence-transformers {rivals} | ratio to the best |",
        "|---" * 6 + "|",
    ]
    for dtype in bench.dtypes:
        case = f"MiniLM, {dtype}, verses, text vectors"
        ours = bench.median(f"{case}: layerbeam")
        took = medians(bench, case, BACKENDS)
        theirs = " | ".join(f"{took[name]:.1f} s" if name in took else "-" for name in BACKENDS)
        texts = f"{len(bench.texts['verses']):,} verses"
        lines.append(f"| MiniLM, {dtype}, {texts} | {ours:.1f} s | {theirs} | {min(took.values()) / ours:.2f} |")
    return lines


def encoder_table(bench: Bench) -> list[str]:
    columns = " | ".join(bench.engines)
    lines = [
        f"| encoder alone, tokens/s | layerbeam | {columns} | ratio to the best | of TensorFlow's products |",
        "|---" * (len(bench.engines) + 4) + "|",
    ]
    for case in token_cases(bench):
        alone = f"{case}: our encoder alone"
        ours, tokens = bench.median(alone), bench.median(alone, "tokens")
        took = medians(bench, case, bench.engines, "encoder_seconds")
        theirs = " | ".join(f"{tokens / took[name]:,.0f}" if name in took else "-" for name in bench.engines)
        ratio = min(took.values()) / ours
        limits = "-"
        if "product_gflops" in bench.results[alone][0]:
            share = statistics.median(found["gflops"] / found["product_gflops"] for found in bench.results[alone])
            limits = f"{share:.2f} of {bench.median(alone, 'product_gflops'):,.0f} GFLOP/s"
        lines.append(f"| {case} | {tokens / ours:,.0f} | {theirs} | {ratio:.2f} | {limits} |")
    return lines


def cosine_lines(bench: Bench) -> list[str]:
    """The mean cosines of int8 with float32."""
    noted = [name for name, results in bench.results.items() if "cosine" in results[0]]
    found = [f"{name} {bench.median(name, 'cosine'):.4f}" for name in noted]
    return [f"Mean cosines with float32, of the last layer: {'; '.join(found)}.", ""] if found else []


def growth_lines(bench: Bench) -> list[str]:
    median = bench.median
    names = ("standard", "ModelHandler", "layerbeam run")
    rates = [f"{median(f'RunInference: {name}', 'lines') / median(f'RunInference: {name}'):,.0f}" for name in names]
    small, large = (name for name in bench.results if name.startswith("growth"))
    tokens, time = (median(large, figure) / median(small, figure) for figure in ("tokens", "seconds"))
    peaks = [f"{median(name, 'peak_mb') / 1000:.2f}" for name in (small, large)]
    first = [f"{median(f'{name}, float32, verses: layerbeam', 'to_first_block'):.1f} s" for name in bench.encoders]
    return [
        f"Lines a second in Beam's RunInference, their vectors thrown away: {rates[0]} with a TF Hub graph of MiniLM's "
        f"size, {rates[1]} with `layerbeam.ModelHandler`; {rates[2]} in `layerbeam run`, to Parquet.",
        f"From {median(small, 'lines'):,.0f} to {median(large, 'lines'):,.0f} lines, {tokens:.1f} times the tokens, "
        f"time grows {time:.1f} times and peak memory from {peaks[0]} to {peaks[1]} GB (MiniLM, {bench.dtypes[-1]}).",
        f"The first block is encoded after {first[0]} with MiniLM and {first[1]} with BERT-base's size.",
    ]


def processor() -> str:
    """The processor's name and the instruction sets that decide the speed of matrix products."""
    description = Path("/proc/cpuinfo").read_text()
    name = next(line.split(":")[1].strip() for line in description.splitlines() if line.startswith("model name"))
    kinds = {"avx512f": "AVX-512", "avx512_bf16": "bfloat16", "amx_bf16": "AMX"}
    return f"{name} ({', '.join(kind for flag, kind in kinds.items() if f' {flag}' in description)})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rivals_python")
    parser.add_argument("tfhub_packages")
    parser.add_argument("backends_packages")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="only these rivals")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=6000)
    parser.add_argument("--write", action="store_true", help="write the table to tests/benchmarks/README.md")
    options = parser.parse_args()
    packages = (options.tfhub_packages, options.backends_packages)
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), options.rivals_python, *packages, options.engines, options.lines)
        for _ in range(options.rounds):
            for encoder in bench.encoders:
                for dtype in bench.dtypes:
                    bench.tokens(encoder, "verses", dtype)
            for dtype in bench.dtypes:
                bench.tokens("MiniLM", "long tail", dtype)
                bench.text_vectors(dtype)
            bench.run_inference()
        bench.growth()
        (ROOT / "out").mkdir(exist_ok=True)
        (ROOT / "out/speed.json").write_text(json.dumps(bench.results, indent=1))
        written = table(bench, options.rounds, options.lines)
    print("\n".join(["", *written]))
    if options.write:
        write_table("speed", written)


if __name__ == "__main__":
    main()
