"""Models of sentence-transformers with each of its poolings, or Dense, and what their `encode` gives for the sentences.

And a late interaction model, with what its `encode_document` and `encode_query` give.

Runs in its own environment, made from requirements.txt: python expect_sentence_transformers.py ENCODER_FOLDER OUTPUT
"""

from __future__ import annotations

import shutil
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from texts import QUERIES, read_sentences

MAX_SEQ_LENGTH = 32  # cuts some sentences
# Pooling, whether Normalize follows, and other arguments of SentenceTransformer.
MODELS: dict[str, tuple[Any, bool, dict[str, Any]]] = {
    "cls": ("cls", False, {}),
    "max": ("max", True, {}),
    "mean": ("mean", False, {"truncate_dim": 100}),
    "mean_max": (("mean", "max"), True, {}),
    "mean_sqrt_len": ("mean_sqrt_len_tokens", False, {}),
    "weighted_mean": ("weightedmean", True, {}),
    "last": ("lasttoken", False, {}),
    "prompt": ("mean", True, {"prompts": {"query": "query: "}, "default_prompt_name": "query"}),
    "labse": ("cls", True, {}),
    "distiluse": ("mean", False, {}),
    "two_dense": ("mean", True, {}),
}
# Of Dense modules after the pooling: output features, and what differs from tanh with a bias.
DENSE: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "labse": [(384, {})],
    "distiluse": [(128, {})],
    "two_dense": [
        (1536, {"activation_function": torch.nn.Identity(), "bias": False}),
        (384, {"activation_function": torch.nn.Identity(), "bias": False}),
    ],
}


def save_late_interaction(encoder: str, folder: Path) -> None:
    """Save a model as ColBERT's, without query expansion."""
    tokens, identity = "token_embeddings", torch.nn.Identity()
    modules = [
        Transformer(encoder, max_seq_length=2 * MAX_SEQ_LENGTH, document_length=MAX_SEQ_LENGTH),
        Dense(384, 32, bias=False, activation_function=identity, module_input_name=tokens),
        MultiVectorMask(list(string.punctuation)),
        Normalize(module_input_name=tokens),
    ]
    prompts = {"query": "[Q] ", "document": "[D] "}
    MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts).save(str(folder), create_model_card=False)


def main(encoder: str, output: str) -> None:
    """Write a folder OUTPUT/NAME for each model, and its vectors [200, W] to OUTPUT/NAME.npy."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # batches are small, and threads wait for each other
    torch.manual_seed(0)  # of Dense modules
    shutil.rmtree(output, ignore_errors=True)
    root = Path(output).resolve()
    weights = Path(encoder) / "model.safetensors"
    for name, (pooling, is_normalized, given) in MODELS.items():
        transformer = Transformer(encoder, max_seq_length=MAX_SEQ_LENGTH)
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
        for features, options in DENSE.get(name, []):
            modules.append(Dense(modules[-1].get_embedding_dimension(), features, **options))
        modules += [Normalize()] if is_normalized else []
        SentenceTransformer(modules=modules, device="cpu", **given).save(str(root / name), create_model_card=False)
        # The same weights for all.
        (root / name / "model.safetensors").unlink()
        (root / name / "model.safetensors").symlink_to(weights)
    # Without the files of sentence-transformers; and as its version 2 saved it.
    (root / "plain").mkdir()
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(root / "mean" / file, root / "plain")
    (root / "plain" / "model.safetensors").symlink_to(weights)
    (root / "version_2").symlink_to(encoder)
    for name in (*MODELS, "plain", "version_2"):
        vectors = SentenceTransformer(str(root / name), device="cpu").encode(read_sentences(), show_progress_bar=False)
        np.save(root / f"{name}.npy", vectors)
        print(f"{name}: {vectors.shape}")
    save_late_interaction(encoder, root / "late_interaction")
    model = MultiVectorEncoder(str(root / "late_interaction"), device="cpu")
    documents = model.encode_document(read_sentences(), show_progress_bar=False, convert_to_numpy=True)
    queries = model.encode_query(QUERIES, show_progress_bar=False, convert_to_numpy=True)
    scores = np.stack([[(document @ query.T).max(axis=0).sum() for document in documents] for query in queries])
    np.savez(
        root / "late_interaction.npz",
        lengths=[len(document) for document in documents],
        vectors=np.concatenate(documents),
        scores=scores,
    )
    print(f"late_interaction: {len(documents)} lists, {scores.shape}")


if __name__ == "__main__":
    main(*sys.argv[1:])
