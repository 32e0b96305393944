"""layerbeam compared with the usual alternatives on this machine, for docs/tuning.md: medians of interleaved rounds.

python speed.py BASELINES_PYTHON TFHUB_PACKAGES [--rounds N] [--lines N] [--write]

Needs Debian's package bible-kjv. Start-up is not counted: layerbeam's time runs from its first block to the end, the
baselines' time starts after their warm-up. Each round also compares the vectors of both.
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
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from command import layerbeam, run_json, run_program, run_record
from corpus import long_tail, read_bible
from random_encoder import BASE, make_weights, write_huggingface

from layerbeam import open_run
from layerbeam.transforms.encoders import open_encoder

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LAYERS = (-1, -2, -3, -4)
MAX_SEQ_LENGTH = 512
DTYPES = ("float32", "bfloat16")
# BERT-base's size takes eight times as long as MiniLM, so it gets every fourth line.
BASE_STEP = 4
INFERENCE_LINES = 500
BEGIN, END = "<!-- speed: written by make bench -->", "<!-- end of speed -->"
MAX_ERROR = 2e-5
MIN_COSINE = 0.998


class Bench:
    """All results, by the name of the case."""

    def __init__(self, folder: Path, baselines_python: str, tfhub: str, lines: int) -> None:
        self.folder = folder
        self.baselines_python = baselines_python
        self.tfhub = tfhub
        code = (
            "import json, torch, transformers as t; "
            "print(json.dumps({'versions': f'PyTorch {torch.__version__}, transformers {t.__version__}'}))"
        )
        self.versions = run_json(baselines_python, "-c", code)["versions"]
        self.results: dict[str, list[dict[str, float]]] = {}
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

    def note(self, name: str, result: dict[str, float]) -> None:
        self.results.setdefault(name, []).append(result)
        print(f"{name:58} {json.dumps({key: round(value, 2) for key, value in result.items()})}", flush=True)

    def median(self, name: str, figure: str = "seconds") -> float:
        return statistics.median(result[figure] for result in self.results[name])

    def input_of(self, encoder: str, corpus: str) -> tuple[Path, Path]:
        """The texts as JSON Lines for layerbeam and as JSON for the baselines."""
        step = 1 if encoder == "MiniLM" else BASE_STEP
        texts = self.texts[corpus][::step]
        lines, plain = (self.folder / f"{corpus}-{step}.{ending}" for ending in ("jsonl", "json"))
        write_lines(lines, texts)
        plain.write_text(json.dumps(texts))
        return lines, plain

    def configure(self, encoder: str, corpus: str, dtype: str, view: dict[str, Any]) -> Path:
        settings = {
            "input": {"files": [str(self.input_of(encoder, corpus)[0])], "format": "jsonl"},
            "encoder": {
                "handle": self.encoders[encoder],
                "compute_dtype": dtype,
                "max_seq_length": MAX_SEQ_LENGTH,
            },
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

    def run_baseline(self, kind: str, encoder: str, corpus: str, dtype: str) -> dict[str, float]:
        texts = self.input_of(encoder, corpus)[1]
        output = self.folder / ("baseline.npy" if kind == "texts" else "baseline.parquet")
        arguments = [kind, self.encoders[encoder], str(texts), dtype, str(output)]
        script = str(HERE / "baselines.py")
        return run_json(self.baselines_python, script, *arguments, environment={"HF_HUB_OFFLINE": "1"})

    def run_encoder_alone(self, path: Path) -> dict[str, float]:
        return run_json(sys.executable, str(HERE / "encoder_alone.py"), str(path))

    def compare_tokens(self, dtype: str) -> None:
        """Check that both have the same vectors for the same tokens."""
        ours = open_run(str(self.folder / "out")).view("v").to_arrow()
        theirs = pq.read_table(self.folder / "baseline.parquet").sort_by([("line", "ascending")])
        assert ours["token_id"].to_pylist() == theirs["token_id"].to_pylist(), "tokens differ from the baseline's"
        names = [name for name in ours.column_names if name.startswith("layer_")]
        for name, number in zip(names, LAYERS, strict=True):
            compare(rows_of(ours[name]), rows_of(theirs[f"layer_{number}"]), dtype)

    def tokens(self, encoder: str, corpus: str, dtype: str) -> None:
        name = f"{encoder}, {dtype}, {corpus}"
        path = self.configure(encoder, corpus, dtype, {"level": "token", "layers": list(LAYERS)})
        self.note(f"{name}: layerbeam", self.run_layerbeam(path))
        if encoder != "MiniLM":
            self.note(f"{name}: our encoder alone", self.run_encoder_alone(path))
            self.note(f"{name}: PyTorch's products", self.run_baseline("products", encoder, corpus, dtype))
        self.note(f"{name}: transformers", self.run_baseline("tokens", encoder, corpus, dtype))
        self.compare_tokens(dtype)

    def text_vectors(self, dtype: str) -> None:
        name = f"MiniLM, {dtype}, verses, text vectors"
        view = {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True}
        self.note(f"{name}: layerbeam", self.run_layerbeam(self.configure("MiniLM", "verses", dtype, view)))
        self.note(f"{name}: sentence-transformers", self.run_baseline("texts", "MiniLM", "verses", dtype))
        ours = open_run(str(self.folder / "out")).view("v").to_numpy("layer_6")
        compare(ours, np.load(self.folder / "baseline.npy"), dtype)

    def run_inference(self) -> None:
        saved, texts = self.folder / "tfhub", self.folder / "few.json"
        folder, script = self.encoders["MiniLM"], str(HERE / "run_inference.py")
        if not saved.exists():
            export = [sys.executable, script, "export", f"{folder}/config.json", str(saved)]
            run_program(export, environment={"PYTHONPATH": self.tfhub})
        texts.write_text(json.dumps(self.texts["verses"][::5][:INFERENCE_LINES]))
        result = run_json(sys.executable, script, "run", str(saved), f"{folder}/vocab.txt", str(texts))
        self.note("MiniLM's size, float32, verses: RunInference", result)

    def growth(self) -> None:
        """One run over a tenth of the lines and one over all lines."""
        verses = read_bible()
        for name, texts in (("tenth", verses[::10]), ("all", verses)):
            path = self.configure("MiniLM", "verses", "bfloat16", {"level": "token", "layers": list(LAYERS)})
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
        assert error <= MAX_ERROR, f"error {error:.2g}"
    else:
        products = (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
        assert products.min() >= MIN_COSINE, f"smallest cosine {products.min():.5f}"


def table(bench: Bench, rounds: int) -> list[str]:
    """The lines between the two markers of docs/tuning.md."""
    return [
        f"{datetime.date.today().isoformat()}, {processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"Python {platform.python_version()}, TensorFlow {metadata.version('tensorflow')}, {bench.versions}; "
        f"medians of {rounds} interleaved rounds.",
        "",
        *token_table(bench),
        "",
        *text_table(bench),
        "",
        *encoder_table(bench),
        "",
        *growth_lines(bench),
    ]


def token_table(bench: Bench) -> list[str]:
    lines = [
        "| four layers of every token to Parquet | tokens | layerbeam | transformers | ratio |",
        "|---|---|---|---|---|",
    ]
    for case in (name.removesuffix(": transformers") for name in bench.results if name.endswith(": transformers")):
        ours, theirs = bench.median(f"{case}: layerbeam"), bench.median(f"{case}: transformers")
        tokens = bench.median(f"{case}: layerbeam", "tokens")
        rates = [f"{seconds:.1f} s, {tokens / seconds:,.0f} tokens/s" for seconds in (ours, theirs)]
        lines.append(f"| {case} | {tokens:,.0f} | {' | '.join(rates)} | {theirs / ours:.2f} |")
    return lines


def text_table(bench: Bench) -> list[str]:
    lines = ["| one vector per text | layerbeam | sentence-transformers | ratio |", "|---|---|---|---|"]
    for dtype in DTYPES:
        case = f"MiniLM, {dtype}, verses, text vectors"
        ours, theirs = (bench.median(f"{case}: {who}") for who in ("layerbeam", "sentence-transformers"))
        texts = f"{len(bench.texts['verses']):,} verses"
        lines.append(f"| MiniLM, {dtype}, {texts} | {ours:.1f} s | {theirs:.1f} s | {theirs / ours:.2f} |")
    return lines


def encoder_table(bench: Bench) -> list[str]:
    lines = [
        "| encoder alone, BERT-base size | layerbeam | transformers | ratio | of TensorFlow's products | whole run |",
        "|---|---|---|---|---|---|",
    ]
    for dtype in DTYPES:
        case = f"BERT-base size, {dtype}, verses"
        alone, loop, run = (f"{case}: {who}" for who in ("our encoder alone", "transformers", "layerbeam"))
        ours = bench.median(alone, "tokens") / bench.median(alone)
        theirs = bench.median(loop, "tokens") / bench.median(loop, "encoder_seconds")
        limit, torch = bench.median(alone, "product_gflops"), bench.median(f"{case}: PyTorch's products", "gflops")
        share = statistics.median(found["gflops"] / found["product_gflops"] for found in bench.results[alone])
        pairs = zip(bench.results[run], bench.results[alone], strict=True)
        whole = statistics.median(one["seconds"] / other["seconds"] for one, other in pairs)
        limits = f"{share:.2f} of {limit:,.0f} GFLOP/s (PyTorch's: {torch:,.0f})"
        rates = f"{ours:,.0f} tokens/s | {theirs:,.0f} tokens/s | {ours / theirs:.2f}"
        lines.append(f"| {dtype} | {rates} | {limits} | {whole:.2f} times as long |")
    return lines


def growth_lines(bench: Bench) -> list[str]:
    median = bench.median
    inference = "MiniLM's size, float32, verses: RunInference"
    theirs = median(inference, "lines") / median(inference)
    ours = len(bench.texts["verses"]) / median("MiniLM, float32, verses: layerbeam")
    small, large = (name for name in bench.results if name.startswith("growth"))
    tokens, time = (median(large, figure) / median(small, figure) for figure in ("tokens", "seconds"))
    peaks = [f"{median(name, 'peak_mb') / 1000:.2f}" for name in (small, large)]
    first = [f"{median(f'{name}, float32, verses: layerbeam', 'to_first_block'):.1f} s" for name in bench.encoders]
    return [
        f"Beam's RunInference with a TF Hub graph of MiniLM's size, its vectors thrown away: {theirs:,.0f} lines/s; "
        f"layerbeam, to Parquet: {ours:,.0f}.",
        f"From {median(small, 'lines'):,.0f} to {median(large, 'lines'):,.0f} lines, {tokens:.1f} times the tokens, "
        f"time grows {time:.1f} times and peak memory from {peaks[0]} to {peaks[1]} GB (MiniLM, bfloat16).",
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
    parser.add_argument("baselines_python")
    parser.add_argument("tfhub_packages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=6000)
    parser.add_argument("--write", action="store_true", help="write the table to docs/tuning.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), options.baselines_python, options.tfhub_packages, options.lines)
        for _ in range(options.rounds):
            for encoder in bench.encoders:
                for dtype in DTYPES:
                    bench.tokens(encoder, "verses", dtype)
            for dtype in DTYPES:
                bench.tokens("MiniLM", "long tail", dtype)
                bench.text_vectors(dtype)
            bench.run_inference()
        bench.growth()
        lines = table(bench, options.rounds)
        (ROOT / "out").mkdir(exist_ok=True)
        (ROOT / "out/speed.json").write_text(json.dumps(bench.results, indent=1))
    print("\n".join(["", *lines]))
    if options.write:
        page = ROOT / "docs/tuning.md"
        before, rest = page.read_text().split(BEGIN)
        page.write_text("\n".join([before + BEGIN, *lines, END + rest.split(END)[1]]))


if __name__ == "__main__":
    main()
