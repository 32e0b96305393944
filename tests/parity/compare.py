"""Compares the pipeline with the results of expect.py: equal ids; layers and pooled output as near as in float32.

Also compares configs/sentences.yaml with sentence-transformers on 1,000 texts, and `encoder.context: record` with the
tokens of documents, pooled.

Runs in the main environment: python compare.py EXPECTED.npz; exit status 1 if they differ.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import yaml
from texts import SENTENCES, make_documents, make_texts

from layerbeam.transforms.encoders import load_weights, open_encoder

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
from float_bounds import bounded_layers  # noqa: E402

MAX_SEQ_LENGTH = 128
BATCH_TOKENS = 1_000  # several batches
TOLERANCE = 2e-5  # of means of the last layer


def run(folder: Path) -> Path:
    """`layerbeam run` on the sentences; returns the output folder."""
    settings = {
        "input": {"files": [str(SENTENCES)]},
        "encoder": {"handle": "minilm", "max_seq_length": MAX_SEQ_LENGTH, "batch_tokens": BATCH_TOKENS},
        "views": {"tokens": {"level": "token", "layers": "all"}, "pooled": {"level": "text", "pooling": "pooler"}},
        "output": {"path": str(folder / "out")},
    }
    config = folder / "parity.yaml"
    config.write_text(yaml.safe_dump(settings))
    layerbeam_run(str(config))
    return folder / "out"


def run_sentences(folder: Path) -> np.ndarray:
    """configs/sentences.yaml on the 1,000 texts; returns [1000, 384]."""
    (folder / "texts.txt").write_text("\n".join(make_texts()), encoding="utf-8")
    output = folder / "sentences"
    layerbeam_run(
        str(ROOT / "configs" / "sentences.yaml"), "--input", str(folder / "texts.txt"), "--output", str(output)
    )
    return read_view(output, "sentences")["layer_6"]


def run_in_documents(folder: Path, expected: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The sentences' vectors in their documents, and the expected ones: [n, 384] each."""
    (folder / "documents.txt").write_text("\n".join(make_documents()), encoding="utf-8")
    settings = {
        "input": {"files": [str(folder / "documents.txt")], "unit": "sentence"},
        "encoder": {"handle": "minilm", "max_seq_length": MAX_SEQ_LENGTH, "window_overlap": 32, "context": "record"},
        "views": {"sentences": {"level": "text", "layers": [-1], "special_tokens": False}},
        "output": {"path": str(folder / "documents")},
    }
    config = folder / "documents.yaml"
    config.write_text(yaml.safe_dump(settings))
    layerbeam_run(str(config))
    rows = ds.dataset(folder / "documents" / "sentences", format="parquet").to_table()
    document, start, vectors = (expected[f"documents_{name}"] for name in ("document", "start", "vectors"))
    pooled = [
        vectors[(document == row["line"]) & (start >= row["start"]) & (start < row["end"])].mean(axis=0)
        for row in rows.select(["line", "start", "end"]).to_pylist()
    ]
    assert len(pooled) > len(make_documents()), "no document has two sentences"
    assert np.bincount(document).max() > 2 * MAX_SEQ_LENGTH, "no document has three windows"
    return np.stack(rows["layer_6"].to_numpy()), np.stack(pooled)


def layerbeam_run(*arguments: str) -> None:
    command = [sys.executable, "-m", "layerbeam", "run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"layerbeam run ended with status {done.returncode}\n{done.stdout}{done.stderr}")


def read_view(output: Path, view: str) -> dict[str, np.ndarray]:
    """{column: [n] or [n, W]} of a view, in line order."""
    table = ds.dataset(output / view, format="parquet").to_table()
    table = table.sort_by([(name, "ascending") for name in ("line", "token_index") if name in table.column_names])
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name.startswith("layer_") or name == "pooled_output":
            column = column.combine_chunks()
            columns[name] = column.flatten().to_numpy().reshape(-1, column.type.list_size)
        elif name in ("line", "token_id", "num_dropped"):
            columns[name] = column.to_numpy()
    return columns


def smallest_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The smallest cosine between the rows of two float32 [n, W]."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def bounds_of(texts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """How far two computations in float32 of a layer of all tokens, [n, 1], and of the pooled output, may be apart."""
    source, token_ids = open_encoder("minilm"), padded(texts)
    lengths, segment_ids = np.array([len(ids) for ids in texts]), np.zeros_like(token_ids)
    layers, pooled = bounded_layers(source.architecture, load_weights(source), token_ids, lengths, segment_ids)
    return [2 * bounded.bound for bounded in (*layers, pooled)]


def padded(texts: Sequence[np.ndarray]) -> np.ndarray:
    """[texts, longest] of [length] each."""
    found = np.zeros((len(texts), max(map(len, texts))), int)
    for row, values in zip(found, texts, strict=True):
        row[: len(values)] = values
    return found


def main(expected_path: str) -> int:
    """Print the largest differences; returns the exit status."""
    expected = np.load(expected_path)
    row_splits, hidden = expected["row_splits"], expected["hidden"]
    num_texts = len(row_splits) - 1
    with tempfile.TemporaryDirectory() as folder:
        output = run(Path(folder))
        tokens, pooled = read_view(output, "tokens"), read_view(output, "pooled")
        sentence_vectors = run_sentences(Path(folder))
        in_documents = run_in_documents(Path(folder), expected)
        padded = json.loads((output / "_runs" / "1.json").read_text())["counts"]["padded_tokens"]

    if pooled["line"].tolist() != list(range(num_texts)):
        sys.exit(f"{num_texts} sentences were expected, and these lines came out: {pooled['line'].tolist()}")
    ids = np.split(tokens["token_id"], np.flatnonzero(np.diff(tokens["line"])) + 1)
    expected_ids = np.split(expected["ids"], row_splits[1:-1])
    other = [line for line in range(num_texts) if ids[line].tolist() != expected_ids[line].tolist()]
    if other:
        print(*(f"line {n}:\n  {ids[n].tolist()}\n  {expected_ids[n].tolist()}" for n in other), sep="\n")
        sys.exit(f"other token ids in {len(other)} of {num_texts} sentences (ours first)")

    num_tokens, num_cut = int(row_splits[-1]), int((pooled["num_dropped"] > 0).sum())
    assert padded > num_tokens > 2 * BATCH_TOKENS, "one batch, or nothing padded: the comparison shows little"
    assert num_cut, f"no sentence is longer than {MAX_SEQ_LENGTH} tokens"
    print(f"{num_texts} sentences ({num_cut} cut to {MAX_SEQ_LENGTH} tokens), {num_tokens:,} tokens: the same ids\n")
    bounds = bounds_of(expected_ids)
    pairs = {f"layer {n}": (tokens[f"layer_{n}"], hidden[n], bounds[n]) for n in range(len(hidden))}
    pairs["pooler"] = (pooled["pooled_output"], expected["pooler"], bounds[-1])
    assert sentence_vectors.shape == (1000, 384), sentence_vectors.shape
    pairs["encode"] = (sentence_vectors, expected["sentence_vectors"], TOLERANCE)
    pairs["context"] = (*in_documents, TOLERANCE)
    print(f"{'':8}  {'largest difference':>18}  {'of allowed':>10}  {'smallest cosine':>15}")
    shares = []
    for name, (ours, theirs, allowed) in pairs.items():
        off = np.abs(ours - theirs)
        shares.append(np.max(off / allowed))
        print(f"{name:8}  {off.max():18.1e}  {shares[-1]:10.0%}  {smallest_cosine(ours, theirs):15.13f}")
    passed = bool(np.max(shares) <= 1)  # written so that NaN fails, too
    print(f"\n{'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
