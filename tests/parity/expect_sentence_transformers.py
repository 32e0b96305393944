"""Models of sentence-transformers with each of its poolings, or Dense, and what their `encode` gives for the sentences.

And late interaction models in the forms of sentence-transformers, PyLate and Stanford's ColBERT, with what
`encode_document` and `encode_query` give, or for the last ColBERT's own computation.

Runs in its own environment, made from requirements.txt:

    python expect_sentence_transformers.py ENCODER_FOLDER OUTPUT
"""

from __future__ import annotations

import json
import shutil
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from expect_architectures import CASES
from safetensors.torch import load_file, save_file
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
    "qwen3_embedding": ("lasttoken", True, {"prompts": {"query": "Instruct: find it\nQuery:", "document": ""}}),
    "embedding_gemma": (
        "mean",
        True,
        {"prompts": {"query": "task: search result | query: ", "document": "title: none | text: "}},
    ),
}
# Of six blocks with random weights, and the prompt that is compared: (a case of expect_architectures.py, the prompt).
DECODERS = {"qwen3_embedding": ("qwen3", "query"), "embedding_gemma": ("gemma3", "document")}
# Of Dense modules after the pooling: output features, and what differs from tanh with a bias.
DENSE: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "labse": [(384, {})],
    "distiluse": [(128, {})],
    "embedding_gemma": [
        (384, {"activation_function": torch.nn.Identity(), "bias": False}),
        (96, {"activation_function": torch.nn.Identity(), "bias": False}),
    ],
    "two_dense": [
        (1536, {"activation_function": torch.nn.Identity(), "bias": False}),
        (384, {"activation_function": torch.nn.Identity(), "bias": False}),
    ],
}


def save_decoder(case: str, folder: Path) -> None:
    """Save a decoder with random weights and its tokenizer."""
    make_tokenizer, make_config = CASES[case]
    tokenizer = make_tokenizer()
    config = make_config(len(tokenizer))
    fields = {**config.to_dict(), "num_hidden_layers": 6, "layer_types": None}
    model = transformers.AutoModel.from_config(type(config)(**fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.05
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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


def save_stanford(encoder: Path, folder: Path) -> None:
    """Save a model as Stanford's ColBERT does: [unused1] begins a document."""
    shutil.copytree(encoder, folder, ignore=shutil.ignore_patterns("modules.json", "*sentence*", "1_*", "model.*"))
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {f"bert.{name}": weight for name, weight in load_file(encoder / "model.safetensors").items()}
    weights["linear.weight"] = torch.randn(32, 384) / 20
    save_file(weights, folder / "model.safetensors")
    metadata = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_token": "[Q]", "doc_token": "[D]"}
    metadata |= {"doc_maxlen": MAX_SEQ_LENGTH, "query_maxlen": 24, "mask_punctuation": True, "dim": 32}
    metadata |= {"attend_to_mask_tokens": False, "similarity": "cosine"}
    (folder / "artifact.metadata").write_text(json.dumps(metadata))


def stanford_documents(folder: Path) -> list[np.ndarray]:
    """What `docFromText` of ColBERT 0.2 gives: the marker takes the place of a token that is put before the text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    linear = weights.pop("linear.weight")
    bert = transformers.BertModel(transformers.AutoConfig.from_pretrained(folder), add_pooling_layer=False).eval()
    bert.load_state_dict({name.removeprefix("bert."): weight for name, weight in weights.items()}, strict=False)
    skipped = tokenizer.convert_tokens_to_ids(list(string.punctuation))
    documents = []
    for text in read_sentences():
        ids = tokenizer(". " + text, truncation=True, max_length=MAX_SEQ_LENGTH, return_tensors="pt")["input_ids"]
        ids[:, 1] = tokenizer.convert_tokens_to_ids("[unused1]")
        with torch.no_grad():
            vectors = bert(ids).last_hidden_state[0] @ linear.T
        kept = torch.tensor([number not in skipped for number in ids[0].tolist()])
        documents.append(torch.nn.functional.normalize(vectors, dim=-1)[kept].numpy())
    return documents


def save_pylate(encoder: str, folder: Path) -> None:
    """Save a model as PyLate does, with markers that are added to the tokenizer, without query expansion."""
    tokenizer, bert = (auto.from_pretrained(encoder) for auto in (transformers.AutoTokenizer, transformers.AutoModel))
    tokenizer.add_tokens(["[Q] ", "[D] "])
    bert.resize_token_embeddings(len(tokenizer))
    bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "1_Dense").mkdir()
    Dense(384, 32, bias=False, activation_function=torch.nn.Identity()).save(str(folder / "1_Dense"))
    dense = json.loads((folder / "1_Dense/config.json").read_text())
    dense = {name: value for name, value in dense.items() if not name.startswith("module_")}
    settings = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "prompts": {}}
    settings |= {"document_length": MAX_SEQ_LENGTH, "do_query_expansion": False}
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
        ],
        "1_Dense/config.json": dense | {"use_residual": False},
        "config_sentence_transformers.json": settings,
        "sentence_bert_config.json": {"max_seq_length": MAX_SEQ_LENGTH - 1, "do_lower_case": False},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def save_results(folder: Path, documents: list[np.ndarray] | None = None) -> None:
    """Write what a late interaction model gives to FOLDER.npz."""
    model = MultiVectorEncoder(str(folder), device="cpu")
    encoded = model.encode_document(read_sentences(), show_progress_bar=False, convert_to_numpy=True)
    for ours, theirs in zip(documents or encoded, encoded, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    documents = documents or encoded
    queries = model.encode_query(QUERIES, show_progress_bar=False, convert_to_numpy=True)
    np.savez(
        folder.with_suffix(".npz"),
        lengths=[len(document) for document in documents],
        vectors=np.concatenate(documents),
        query_lengths=[len(query) for query in queries],
        queries=np.concatenate(queries),
        scores=[[(document @ query.T).max(axis=0).sum() for document in documents] for query in queries],
    )
    print(f"{folder.name}: {len(documents)} lists, {len(queries)} queries")


def main(encoder: str, output: str) -> None:
    """Write a folder OUTPUT/NAME for each model, and its vectors [200, W] to OUTPUT/NAME.npy."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # batches are small, and threads wait for each other
    torch.manual_seed(0)  # of Dense modules
    shutil.rmtree(output, ignore_errors=True)
    root = Path(output).resolve()
    weights = Path(encoder) / "model.safetensors"
    for name, (pooling, is_normalized, given) in MODELS.items():
        if name in DECODERS:
            save_decoder(DECODERS[name][0], root / "decoders" / name)
        own = str(root / "decoders" / name) if name in DECODERS else encoder
        transformer = Transformer(own, max_seq_length=MAX_SEQ_LENGTH)
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
        for features, options in DENSE.get(name, []):
            modules.append(Dense(modules[-1].get_embedding_dimension(), features, **options))
        modules += [Normalize()] if is_normalized else []
        SentenceTransformer(modules=modules, device="cpu", **given).save(str(root / name), create_model_card=False)
        if name in DECODERS:
            continue
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
        model = SentenceTransformer(str(root / name), device="cpu")
        prompt_name = DECODERS[name][1] if name in DECODERS else None
        vectors = model.encode(read_sentences(), prompt_name=prompt_name, show_progress_bar=False)
        np.save(root / f"{name}.npy", vectors)
        calls = {"encode": model.encode(QUERIES), "encode_query": model.encode_query(QUERIES)}
        np.savez(root / f"{name}_calls.npz", **calls)
        print(f"{name}: {vectors.shape}")
    save_late_interaction(encoder, root / "late_interaction")
    save_results(root / "late_interaction")
    save_stanford(Path(encoder), root / "stanford")
    save_results(root / "stanford", stanford_documents(root / "stanford"))
    # The same model as sentence-transformers saves it, without query expansion.
    model = MultiVectorEncoder(str(root / "stanford"), device="cpu")
    model[0].query_expansion = None
    model.save(str(root / "stanford_again"), create_model_card=False)
    save_results(root / "stanford_again")
    save_pylate(encoder, root / "pylate")
    save_results(root / "pylate")


if __name__ == "__main__":
    main(*sys.argv[1:])
