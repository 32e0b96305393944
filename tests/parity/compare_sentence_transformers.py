"""Compares `init --from`, `run` and `encode` with the results of expect_sentence_transformers.py, to 2e-5.

Runs in the main environment: python compare_sentence_transformers.py MODELS; exit status 1 if they differ.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml
from compare import TOLERANCE, read_view
from texts import QUERIES, SENTENCES

from layerbeam import encode as encode_texts
from layerbeam import open_run
from layerbeam.pipeline.cli.main import main as layerbeam

# Late interaction models, and what is before a query; None: sentence-transformers encodes queries.
LATE_INTERACTION = {"late_interaction": "[Q] ", "stanford": None, "stanford_again": "[unused0] ", "pylate": "[Q] "}


# {a model: the prompt that is compared}, where it is not the default one.
PROMPTS = {"qwen3_embedding": ["--prompt", "query"], "embedding_gemma": ["--prompt", "document"]}


def run(model: Path, folder: Path) -> tuple[Path, Path]:
    """(the configuration that `layerbeam init --from` writes for a model, its output for the sentences)."""
    config, output = folder / f"{model.name}.yaml", folder / model.name
    for command in (
        ["init", "--from", str(model), *PROMPTS.get(model.name, []), str(config)],
        ["run", str(config), "--input", str(SENTENCES), "--output", str(output)],
    ):
        with contextlib.redirect_stdout(io.StringIO()):
            status = layerbeam(command, version="test")
        if status:
            sys.exit(f"{model.name}: layerbeam {' '.join(command)}: failed")
    return config, output


def compare_late_interaction(model: Path, folder: Path) -> dict[str, float]:
    """The largest differences of the documents' vectors, and of the scores of queries."""
    expected = np.load(model.with_suffix(".npz"))
    config, output = run(model, folder)
    documents = list(open_run(output)["sentences"].to_numpy("layer_6"))
    lengths = [len(document) for document in documents]
    if lengths != expected["lengths"].tolist():
        sys.exit(f"{model.name}: the lists have other lengths: {lengths}, and {expected['lengths'].tolist()} expected")
    settings = yaml.safe_load(config.read_text())
    view = {name: value for name, value in settings["views"]["sentences"].items() if name != "skip_tokens"}
    queries = np.split(expected["queries"], np.cumsum(expected["query_lengths"])[:-1])
    if LATE_INTERACTION[model.name]:
        encoder = {**settings["encoder"], "prompt": LATE_INTERACTION[model.name]}
        queries = encode_texts(QUERIES, encoder=encoder, views={"queries": view})["queries"]["layer_6"]
    scores = np.stack([[(document @ query.T).max(axis=0).sum() for document in documents] for query in queries])
    assert np.ptp(scores) > 0.5, "the documents have much the same scores"
    return {
        f"{model.name}: documents": np.abs(np.concatenate(documents) - expected["vectors"]).max(),
        f"{model.name}: MaxSim": np.abs(scores - expected["scores"]).max(),
    }


def compare_calls(model: Path) -> dict[str, float]:
    """The largest differences of `encode` and of `encode(as_query=True)`, which take the model's own settings."""
    expected = np.load(model.with_name(f"{model.name}_calls.npz"))
    if model.name == "plain":  # layerbeam scales the mean of an encoder that says nothing
        expected = {name: unit(vectors) for name, vectors in expected.items()}
    found = {
        "encode": encode_texts(QUERIES, encoder=str(model)),
        "encode_query": encode_texts(QUERIES, encoder=str(model), as_query=True),
    }
    return {f"{model.name}: {name}": np.abs(vectors - expected[name]).max() for name, vectors in found.items()}


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main(models: str) -> int:
    """Print the largest difference of each model; returns the exit status."""
    expected = {file.stem: np.load(file) for file in sorted(Path(models).glob("*.npy"))}
    assert len(expected) > 7, f"{models} holds {len(expected)} models"
    found, num_cut = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in expected:
            columns = read_view(run(Path(models, name), Path(folder))[1], "sentences")
            found[name], num_cut[name] = columns["layer_6"], int((columns["num_dropped"] > 0).sum())
        late_interaction: dict[str, float] = {}
        for name in LATE_INTERACTION:
            late_interaction |= compare_late_interaction(Path(models, name), Path(folder))
    assert num_cut["mean"], "no sentence is cut: the comparison says nothing about max_seq_length"
    differences = {name: np.abs(found[name] - vectors).max() for name, vectors in expected.items()}
    print(f"\n{'':15}  {'shape':>10}  {'cut':>4}  {'largest difference':>18}")
    for name, difference in differences.items():
        print(f"{name:15}  {found[name].shape!s:>10}  {num_cut[name]:4}  {difference:18.1e}")
    for name, difference in late_interaction.items():
        print(f"{name:31}  {difference:18.1e}")
    calls = {call: largest for name in expected for call, largest in compare_calls(Path(models, name)).items()}
    for name, difference in calls.items():
        print(f"{name:31}  {difference:18.1e}")
    worst = [*differences.values(), *late_interaction.values(), *calls.values()]
    passed = all(difference <= TOLERANCE for difference in worst)  # NaN fails, too
    print(f"allowed {TOLERANCE:.0e}: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
