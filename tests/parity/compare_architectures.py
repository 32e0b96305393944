"""Compares every architecture and tokenizer with the results of expect_architectures.py.

Token ids, tokens and offsets of hostile texts must be equal; through the pipeline, ids must be equal, and every layer
and the pooled output within 2e-5. `layerbeam verify` must agree with the output, too.

Runs in the main environment: python compare_architectures.py FOLDER; exit status 1 if anything differs.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from compare import TOLERANCE, read_view

from layerbeam import __version__
from layerbeam.pipeline.cli.main import main
from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.tokenize.tokenizer import load_text_tokenizer

MAX_SEQ_LENGTH = 300
BATCH_TOKENS = 1_000  # several batches, with padding


def tokenizer_differences(folder: Path, expected: np.lib.npyio.NpzFile) -> int:
    """The number of hostile texts that are cut into other tokens, or have them at other places."""
    source = open_encoder(str(folder / "encoder"))
    texts = json.loads((folder / "hostile.json").read_text())
    pieces = load_text_tokenizer(source).tokenize(pa.array(texts, pa.string()))
    entries = np.array(source.vocabulary)
    names = ("splits", "offsets", "ids", "tokens")
    splits, offsets, ids, tokens = (expected[f"hostile_{name}"] for name in names)
    different = []
    for number, text in enumerate(texts):
        ours = slice(*pieces.row_splits[number : number + 2])
        theirs = slice(*splits[number : number + 2])
        same = (
            np.array_equal(pieces.ids[ours], ids[theirs])
            and np.array_equal(entries[pieces.ids[ours]], tokens[theirs])
            and np.array_equal(np.stack([pieces.start, pieces.end], axis=1)[ours], offsets[theirs])
        )
        if not same:
            different.append(text)
    if different:
        print(f"{folder.name}: for example {different[0]!r}")
    return len(different)


def run(folder: Path, *, pooler: bool) -> Path:
    """`layerbeam run` and `layerbeam verify` on the texts; returns the output folder."""
    settings = {
        "input": {"files": [str(folder.parent / "texts.jsonl")], "format": "jsonl", "pair_field": "pair"},
        "encoder": {"handle": str(folder / "encoder"), "max_seq_length": MAX_SEQ_LENGTH, "batch_tokens": BATCH_TOKENS},
        "views": {"tokens": {"level": "token", "layers": "all"}},
        "output": {"path": str(folder / "out")},
    }
    if pooler:
        settings["views"]["pooled"] = {"level": "text", "pooling": "pooler"}
    config = folder / "parity.yaml"
    config.write_text(yaml.safe_dump(settings))
    shutil.rmtree(folder / "out", ignore_errors=True)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        statuses = [
            main(arguments, version=__version__)
            for arguments in (["run", str(config)], ["verify", str(folder / "out")])
        ]
    if any(statuses):
        sys.exit(f"{folder.name}: run and verify ended with status {statuses}\n{said.getvalue()}")
    return folder / "out"


def layer_differences(folder: Path, expected: np.lib.npyio.NpzFile) -> dict[str, float]:
    """{layer or pooler: the largest difference}. Exits if token ids differ."""
    numbers = sorted(int(name.removeprefix("ids_")) for name in expected.files if name.startswith("ids_"))
    pooler = "pooler_0" in expected.files
    output = run(folder, pooler=pooler)
    tokens = read_view(output, "tokens")
    lines = np.split(np.arange(len(tokens["line"])), np.flatnonzero(np.diff(tokens["line"])) + 1)
    differences: dict[str, float] = {}
    for number, rows in zip(numbers, lines, strict=True):
        ids, hidden = expected[f"ids_{number}"], expected[f"hidden_{number}"]
        if tokens["token_id"][rows].tolist() != ids.tolist():
            sys.exit(f"{folder.name}, text {number}: other ids\n{tokens['token_id'][rows].tolist()}\n{ids.tolist()}")
        for layer, values in enumerate(hidden):
            difference = float(np.abs(tokens[f"layer_{layer}"][rows] - values).max())
            differences[f"layer {layer}"] = max(differences.get(f"layer {layer}", 0.0), difference)
    if pooler:
        theirs = np.stack([expected[f"pooler_{number}"] for number in numbers])
        differences["pooler"] = float(np.abs(read_view(output, "pooled")["pooled_output"] - theirs).max())
    return differences


def compare(output: str) -> int:
    """Print the largest differences; returns the exit status."""
    failed = False
    print(f"{'encoder':18} {'hostile texts that differ':>26} {'largest difference':>19}  in")
    for folder in sorted(path.parent for path in Path(output).glob("*/expected.npz")):
        expected = np.load(folder / "expected.npz")
        other = tokenizer_differences(folder, expected) if "hostile_ids" in expected.files else None
        differences = layer_differences(folder, expected)
        worst = max(differences, key=lambda name: differences[name])
        print(
            f"{folder.name:18} {'WordPiece' if other is None else other:>26} {differences[worst]:19.1e}  {worst}",
            flush=True,
        )
        failed |= bool(other) or not max(differences.values()) <= TOLERANCE  # written so that NaN fails, too
    print(f"allowed: 0 texts and {TOLERANCE:.0e}: {'FAILED' if failed else 'passed'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(compare(*sys.argv[1:]))
