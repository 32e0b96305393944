"""Compares every architecture and tokenizer with the results of expect_architectures.py.

Token ids, tokens and offsets of hostile texts must be equal, but for what the library gives to no token; through the
pipeline, ids must be equal, and every layer and the pooled output as near as two computations in float32 are.
`layerbeam verify` must agree with the output, too.

Runs in the main environment: python compare_architectures.py FOLDER [NAME ...]; exit status 1 if anything differs.
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
from compare import padded, read_view
from float_bounds import DRAWS, Bounded, bounded_layers

from layerbeam import __version__
from layerbeam.pipeline.cli.main import main
from layerbeam.transforms.encoders import load_weights, open_encoder
from layerbeam.transforms.tokenize.tokenizer import load_text_tokenizer

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
            and are_places(text, pieces.start[ours], pieces.end[ours], offsets[theirs])
        )
        if not same:
            different.append(text)
    if different:
        print(f"{folder.name}: for example {different[0]!r}")
    return len(different)


def are_places(text: str, start: np.ndarray, end: np.ndarray, offsets: np.ndarray) -> bool:
    """Whether places are the library's, but for letters and marks of the text that it gives to no piece."""
    covered = {place for first, last in offsets.tolist() for place in range(first, last)}
    for own, (first, last) in zip(zip(start.tolist(), end.tolist(), strict=True), offsets.tolist(), strict=True):
        more = [*range(own[0], first), *range(last, own[1])]
        if own[0] > first or own[1] < last or any(place in covered or text[place].isspace() for place in more):
            return False
    return True


def run(folder: Path, max_seq_length: int, *, pooler: bool) -> Path:
    """`layerbeam run` and `layerbeam verify` on the texts; returns the output folder."""
    settings = {
        "input": {"files": [str(folder / "texts.jsonl")], "format": "jsonl", "pair_field": "pair"},
        "encoder": {"handle": str(folder / "encoder"), "max_seq_length": max_seq_length, "batch_tokens": BATCH_TOKENS},
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


def difference(ours: np.ndarray, theirs: np.ndarray, bounded: Bounded) -> tuple[float, float]:
    """(the largest difference of two computations in float32, the largest share of what is allowed)."""
    return float(np.abs(ours - theirs).max()), bounded._replace(values=theirs).share(ours) / 2


def layer_differences(folder: Path, expected: np.lib.npyio.NpzFile) -> dict[str, tuple[float, float]]:
    """{layer or pooler: its difference}. Exits if token ids differ."""
    numbers = sorted(int(name.removeprefix("ids_")) for name in expected.files if name.startswith("ids_"))
    pooler = "pooler_0" in expected.files
    output = run(folder, int(expected["max_seq_length"]), pooler=pooler)
    tokens = read_view(output, "tokens")
    lines = np.split(np.arange(len(tokens["line"])), np.flatnonzero(np.diff(tokens["line"])) + 1)
    source = open_encoder(str(folder / "encoder"))
    texts = [[expected[f"{name}_{number}"] for number in numbers] for name in ("ids", "segments")]
    for number, rows, ids in zip(numbers, lines, texts[0], strict=True):
        found = tokens["token_id"][rows].tolist()
        if found != ids.tolist():
            sys.exit(f"{folder.name}, text {number}: other ids\n{found}\n{ids.tolist()}")
    lengths = np.array([len(ids) for ids in texts[0]])
    segment_ids = padded(texts[1]) * source.has_segments
    weights = load_weights(source)
    draws = 2 if folder.name.endswith("-long") else DRAWS
    batch = (padded(texts[0]), lengths, segment_ids)
    bounded, bounded_pooled = bounded_layers(source.architecture, weights, *batch, draws)
    hidden = np.concatenate([expected[f"hidden_{number}"] for number in numbers], axis=1)
    differences = {
        f"layer {layer}": difference(tokens[f"layer_{layer}"], theirs, bounded[layer])
        for layer, theirs in enumerate(hidden)
    }
    if bounded_pooled is not None:
        theirs = np.stack([expected[f"pooler_{number}"] for number in numbers])
        differences["pooler"] = difference(read_view(output, "pooled")["pooled_output"], theirs, bounded_pooled)
    assert pooler == ("pooler" in differences)
    return differences


def compare(output: str, *names: str) -> int:
    """Print the largest differences of these encoders, of all without any; returns the exit status."""
    failed = False
    print(f"{'encoder':18} {'hostile texts that differ':>26} {'largest difference':>19} {'of allowed':>11}  in")
    found = sorted(path.parent for path in Path(output).glob("*/expected.npz"))
    for folder in (folder for folder in found if not names or folder.name in names):
        expected = np.load(folder / "expected.npz")
        other = tokenizer_differences(folder, expected) if "hostile_ids" in expected.files else None
        differences = layer_differences(folder, expected)
        worst = max(differences, key=lambda name: differences[name])
        largest, shares = differences[worst][0], [share for _, share in differences.values()]
        print(
            f"{folder.name:18} {'-' if other is None else other:>26} {largest:19.1e} {np.max(shares):11.0%}  {worst}",
            flush=True,
        )
        failed |= bool(other) or not np.max(shares) <= 1  # written so that NaN fails, too
    print(f"allowed: 0 texts, and what two computations in float32 may be off: {'FAILED' if failed else 'passed'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(compare(*sys.argv[1:]))
