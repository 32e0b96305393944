"""Compares `layerbeam init --from` and `layerbeam run` with the results of expect_sentence_transformers.py, to 2e-5.

Runs in the main environment: python compare_sentence_transformers.py MODELS; exit status 1 if they differ.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from compare import TOLERANCE, read_view
from texts import SENTENCES

from layerbeam.pipeline.cli.main import main as layerbeam


def encode(model: Path, folder: Path) -> dict[str, np.ndarray]:
    """The columns of the view that `layerbeam init --from` writes for a model."""
    config, output = str(folder / f"{model.name}.yaml"), folder / model.name
    for command in (
        ["init", "--from", str(model), config],
        ["run", config, "--input", str(SENTENCES), "--output", str(output)],
    ):
        with contextlib.redirect_stdout(io.StringIO()):
            status = layerbeam(command, version="test")
        if status:
            sys.exit(f"{model.name}: layerbeam {' '.join(command)}: failed")
    return read_view(output, "sentences")


def main(models: str) -> int:
    """Print the largest difference of each model; returns the exit status."""
    expected = {file.stem: np.load(file) for file in sorted(Path(models).glob("*.npy"))}
    assert len(expected) > 7, f"{models} holds {len(expected)} models"
    found, num_cut = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in expected:
            columns = encode(Path(models, name), Path(folder))
            found[name], num_cut[name] = columns["layer_6"], int((columns["num_dropped"] > 0).sum())
    assert num_cut["mean"], "no sentence is cut: the comparison says nothing about max_seq_length"
    differences = {name: np.abs(found[name] - vectors).max() for name, vectors in expected.items()}
    print(f"\n{'':13}  {'shape':>10}  {'cut':>4}  {'largest difference':>18}")
    for name, difference in differences.items():
        print(f"{name:13}  {found[name].shape!s:>10}  {num_cut[name]:4}  {difference:18.1e}")
    passed = all(difference <= TOLERANCE for difference in differences.values())  # NaN fails, too
    print(f"allowed {TOLERANCE:.0e}: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
