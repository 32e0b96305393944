"""`layerbeam init --from` with a late interaction model: lists of vectors, or the reason why not."""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense import IDENTITY, write_dense
from float_bounds import OF_TWO
from repository import DATA
from safetensors.numpy import load_file, save_file
from tables import cases

from layerbeam import encode
from layerbeam.pipeline.cli.main import main
from layerbeam.pipeline.config import load as configuration
from layerbeam.pipeline.init import template
from layerbeam.transforms.encoders import EncoderError, load_weights, open_encoder
from layerbeam.transforms.encoders.recipe import read_model
from layerbeam.transforms.reference import forward

PACKAGE = "sentence_transformers"
TRANSFORMER = {"path": "", "type": f"{PACKAGE}.base.modules.transformer.Transformer"}
DENSE = {"path": "1_Dense", "type": f"{PACKAGE}.base.modules.dense.Dense"}
MASK = {"path": "2_Mask", "type": f"{PACKAGE}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"}
NORMALIZE = {"path": "3_Normalize", "type": f"{PACKAGE}.base.modules.normalize.Normalize"}
TOKEN_LEVEL = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
# As sentence-transformers 6.2 saves a model, without what is the same as in other models.
MODEL: dict[str, Any] = {
    "modules.json": [TRANSFORMER, DENSE, MASK, NORMALIZE],
    "sentence_bert_config.json": {"document_length": 24},
    "1_Dense/config.json": {
        "in_features": 64,
        "out_features": 16,
        "bias": False,
        "activation_function": IDENTITY,
        **TOKEN_LEVEL,
    },
    "2_Mask/config.json": {
        "skiplist_words": [".", ",", "no entry", ",", "##s"],
        "skiplist_tasks": ["document"],
        "keep_only_token_ids": None,
    },
    "3_Normalize/config.json": TOKEN_LEVEL,
    "config_sentence_transformers.json": {
        "model_type": "MultiVectorEncoder",
        "prompts": {"query": "[Q] ", "document": "[D] "},
        "default_prompt_name": None,
    },
}
# As PyLate does.
PYLATE: dict[str, Any] = {
    "modules.json": [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ],
    "sentence_bert_config.json": {"max_seq_length": 47, "do_lower_case": False},
    "1_Dense/config.json": {
        "in_features": 64,
        "out_features": 16,
        "bias": False,
        "activation_function": IDENTITY,
        "use_residual": False,
    },
    "config_sentence_transformers.json": {
        "model_type": "ColBERT",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 32,
        "document_length": 40,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [".", "?"],
        "prompts": {},
        "default_prompt_name": None,
    },
}


@pytest.fixture
def make(tmp_path):
    """A function that writes a model, changed by {file: its fields, its whole content, or None}; returns its path."""
    folder = tmp_path / "model"
    shutil.copytree(DATA / "hf_uncased", folder)
    write_dense(folder, "1_Dense", 64, 16, activation=IDENTITY, bias=False)

    def write(changes: dict[str, Any] | None = None, model: dict[str, Any] = MODEL) -> str:
        files = dict(model)
        for name, change in (changes or {}).items():
            files[name] = {**files.get(name, {}), **change} if isinstance(change, dict) else change
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).unlink(missing_ok=True)
            if content is not None:
                (folder / name).write_text(json.dumps(content))
        return str(folder)

    return write


def refused(folder: str) -> str:
    """Why a folder is refused, without its path."""
    with pytest.raises(EncoderError) as error:
        read_model(folder)
    return str(error.value).replace(f"{folder}/", "").replace(folder, "FOLDER")


LISTS = {"level": "text", "layers": [-1], "pooling": "none", "normalize": True, "dense": ["1_Dense"]}


def test_model(make):
    model = read_model(make())
    assert model.encoder == {"handle": make(), "max_seq_length": 24, "prompt": "[D] "}
    assert model.view == {**LISTS, "skip_tokens": [".", ",", "##s"]}
    assert not model.is_plain


def test_model_of_pylate(make):
    model = read_model(make(model=PYLATE))
    assert model.encoder == {"handle": make(model=PYLATE), "max_seq_length": 40, "prompt": "[D] "}
    assert model.view == {**LISTS, "skip_tokens": [".", "?"]}
    settings = {"skiplist_words": None, "document_length": None, "prompts": {"document": "[D] text: "}}
    model = read_model(make({"config_sentence_transformers.json": settings}, PYLATE))
    assert model.encoder == {"handle": make(model=PYLATE), "max_seq_length": 47, "prompt": "[D] text: "}
    assert set(model.view["skip_tokens"]) == set(string.punctuation)


@pytest.mark.parametrize(
    ("changes", "view"),
    [
        ({"modules.json": [TRANSFORMER, DENSE, NORMALIZE]}, LISTS),
        ({"modules.json": [TRANSFORMER, DENSE]}, {**LISTS, "normalize": False}),
        ({"2_Mask/config.json": {"skiplist_words": []}}, LISTS),
        ({"2_Mask/config.json": {"skiplist_words": ["no entry"]}}, LISTS),
        ({"2_Mask/config.json": {"skiplist_tasks": ["query"]}}, LISTS),
        ({"2_Mask/config.json": {"skiplist_tasks": "document"}}, {**LISTS, "skip_tokens": [".", ",", "##s"]}),
    ],
)
def test_modules(make, changes, view):
    assert read_model(make(changes)).view == view


@pytest.mark.parametrize(
    ("changes", "encoder"),
    [
        ({"sentence_bert_config.json": {"document_length": None}}, {"max_seq_length": 128, "prompt": "[D] "}),
        ({"sentence_bert_config.json": {"document_length": 9000}}, {"max_seq_length": 128, "prompt": "[D] "}),
        ({"config_sentence_transformers.json": {"prompts": {"document": ""}}}, {"max_seq_length": 24}),
        # `encode_document` takes the first of document, passage and corpus, and the first is always there.
        ({"config_sentence_transformers.json": {"prompts": {"passage": "p: "}}}, {"max_seq_length": 24}),
        (
            {"config_sentence_transformers.json": {"prompts": {"document": "bank "}}},
            {"max_seq_length": 24, "prompt": "bank "},
        ),
    ],
)
def test_length_and_prompt(make, changes, encoder):
    found = read_model(make(changes)).encoder
    del found["handle"]
    assert found == encoder


EXPANSION = {"strategy": "fixed", "attend": False, "length": 32, "token": None}


@pytest.mark.parametrize(
    ("model", "changes", "expands"),
    [
        (MODEL, {}, False),
        (MODEL, {"sentence_bert_config.json": {"query_expansion": EXPANSION}}, True),
        (PYLATE, {}, True),
        (PYLATE, {"config_sentence_transformers.json": {"do_query_expansion": False}}, False),
    ],
)
def test_the_file_says_how_to_encode_queries(make, model, changes, expands):
    written = template.text(model=read_model(make(changes, model)))
    assert "one view: for each line the list of vectors of sentence-transformers' `encode_document`" in written
    comment = " ".join(written.replace("\n# ", " ").split())
    if expands:
        assert (
            "Queries are encoded by sentence-transformers' `encode_query`, which fills them up with [MASK]." in comment
        )
    else:
        assert 'with layerbeam.encode with `prompt: "[Q] "` and without `skip_tokens`.' in comment
    loaded = configuration.check(configuration.parse_yaml(written), source="test")
    assert loaded.encoder.prompt == "[D] "
    assert "," not in loaded.views["sentences"].skip_tokens or model is MODEL


def test_a_run_with_it_passes_verify(make, workplace, capsys):
    folder = make()
    assert main(["init", "--from", folder, "c.yaml"], version="test") == 0
    workplace.write("texts/a.txt", "The bank, by the river.\n")
    workplace.drive()
    assert workplace.rows("sentences", "out/c").schema.field("layer_3").type.value_type.list_size == 16
    assert main(["verify", "out/c"], version="test") == 0


OTHER_VECTORS = r"""
{"modules.json": [<transformer>, <mask>, <dense>]}
    modules.json: the modules are Transformer + MultiVectorMask + Dense; allowed: Transformer, then any number of
    Dense, then MultiVectorMask or nothing, then Normalize or nothing: ELSEWHERE
{"modules.json": [<transformer>, {"path": "1_P", "type": "sentence_transformers.x.HierarchicalTokenPooling"}]}
    the modules are Transformer + HierarchicalTokenPooling; allowed:
{"1_Dense/config.json": {"module_input_name": "sentence_embedding"}}
    1_Dense/config.json: module_input_name is "sentence_embedding"; it must be "token_embeddings": ELSEWHERE
{"1_Dense/config.json": {"use_residual": true}}
    1_Dense/config.json: use_residual is true; it must be false
{"3_Normalize/config.json": []}
    3_Normalize/config.json: is []; it must be an object
{"3_Normalize/config.json": {"module_input_name": "sentence_embedding"}}
    3_Normalize/config.json: module_input_name is "sentence_embedding"; it must be "token_embeddings": ELSEWHERE
{"2_Mask/config.json": {"keep_only_token_ids": [7]}}
    2_Mask/config.json: keep_only_token_ids is [7]; it must be null: ELSEWHERE
{"2_Mask/config.json": {"skiplist_words": ["a", 7]}}
    2_Mask/config.json: skiplist_words is ["a", 7]; it must be null or a list of words
{"2_Mask/config.json": {"skip": 1}}
    2_Mask/config.json: skip is unknown here; allowed: skiplist_words, skiplist_tasks, keep_only_token_ids: ELSEWHERE
{"2_Mask/config.json": null}
    2_Mask/config.json: No such file or directory; download the whole folder again
{"sentence_bert_config.json": {"document_length": "24"}}
    sentence_bert_config.json: document_length is "24"; it must be null or an integer from 3 up
{"config_sentence_transformers.json": {"prompts": {"document": 7}}}
    config_sentence_transformers.json: prompts.document is 7; it must be a text
{"config_sentence_transformers.json": {"document_prefix": 7}}
    config_sentence_transformers.json: document_prefix is 7; it must be null or a text
{"vocab.txt": null}
    vocab.txt
"""
NAMES = {"<transformer>": TRANSFORMER, "<mask>": MASK, "<dense>": DENSE}


@pytest.mark.parametrize(("changes", "reason"), cases(OTHER_VECTORS))
def test_other_vectors_are_refused(make, changes, reason):
    for name, value in NAMES.items():
        changes = changes.replace(name, json.dumps(value))
    reason = reason.replace("ELSEWHERE", "take another model, or encode with sentence-transformers")
    assert reason in refused(make(json.loads(changes)))


def with_markers(folder: str) -> str:
    """The folder with entries [unused0] and [unused1] in its vocabulary."""
    path = Path(folder, "vocab.txt")
    path.write_text("\n".join([*path.read_text().splitlines()[:-2], "[unused0]", "[unused1]"]))
    return folder


ADDED = {"7": {"content": "[unused1]", "normalized": False}}


@pytest.mark.parametrize(
    ("model", "settings", "added"),
    [
        # PyLate's prefix, an entry of the vocabulary, is added to the tokenizer by sentence-transformers.
        (PYLATE, {"document_prefix": "[unused1]"}, {}),
        (PYLATE, {"document_prefix": "[unused1] ", "prompts": {"document": "[unused1] river "}}, {}),
        (MODEL, {"prompts": {"document": "[unused1] "}}, ADDED),
        (MODEL, {"prompts": {"document": "[MASK] river "}}, {}),
    ],
)
def test_a_marker_is_a_token(make, model, settings, added):
    tokenizer = {"do_lower_case": True, "added_tokens_decoder": added}
    files = {"config_sentence_transformers.json": settings, "tokenizer_config.json": tokenizer}
    encoder = read_model(with_markers(make(files, model))).encoder
    expected = settings.get("prompts", {}).get("document") or settings["document_prefix"]
    assert encoder["prompt"] == expected
    views = {"tokens": {"level": "token", "layers": [0]}}
    tokens = encode(["the bank"], encoder=encoder, views=views)["tokens"]
    of_prompt = ["river"] if "river" in expected else []
    assert tokens["token"].tolist() == ["[CLS]", expected.split()[0], *of_prompt, "the", "bank", "[SEP]"]
    assert tokens["start"].tolist() == [-1, -1, *[-1] * len(of_prompt), 0, 4, -1]


@pytest.mark.parametrize(
    ("settings", "added", "reason"),
    [
        ({"prompts": {"document": "[unused1] "}}, {}, "is one to layerbeam, and sentence-transformers cuts into sev"),
        (
            {"prompts": {"document": "[unused1] "}},
            {"7": {"content": "[unused1]", "normalized": True}},
            '"[unused1]", which is one to layerbeam, and sentence-transformers cuts into several; it must be an added',
        ),
        (
            {"prompts": {"document": "<doc> text"}},
            {"7": {"content": "<doc>"}},
            'tokenizer_config.json: the token "<doc>" is not in vocab.txt',
        ),
        ({"document_prefix": "[D] "}, {"7": {"content": "[D]"}}, '"[D]", which layerbeam cuts into several'),
    ],
)
def test_a_marker_that_is_no_token_to_one_of_both_is_refused(make, settings, added, reason):
    tokenizer = {"do_lower_case": True, "added_tokens_decoder": added}
    folder = make({"config_sentence_transformers.json": settings, "tokenizer_config.json": tokenizer})
    assert reason in refused(with_markers(folder))


@pytest.fixture
def stanford(make):
    """A function that writes a model as Stanford's program saves it; returns its path and the linear layer [64, 16]."""

    def write(metadata: dict[str, Any]) -> tuple[str, np.ndarray]:
        config = json.loads((DATA / "hf_uncased/config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
        folder = with_markers(make(dict.fromkeys(MODEL) | {"config.json": config, "artifact.metadata": metadata}))
        weights = load_file(f"{folder}/model.safetensors")
        weights["linear.weight"] = load_file(f"{folder}/1_Dense/model.safetensors")["linear.weight"]
        save_file(weights, f"{folder}/model.safetensors")
        return folder, weights["linear.weight"].T

    return write


METADATA = {"doc_token_id": "[unused1]", "doc_maxlen": 12, "mask_punctuation": True, "dim": 16}


def test_the_form_of_stanford(stanford, workplace):
    folder, linear = stanford(METADATA)
    model = read_model(folder)
    assert model.encoder == {"handle": folder, "max_seq_length": 12, "prompt": "[unused1]"}
    skipped = [mark for mark in string.punctuation if mark in open_encoder(folder).vocabulary]
    assert model.view == {**LISTS, "dense": ["."], "skip_tokens": skipped}
    assert main(["init", "--from", folder, "c.yaml"], version="test") == 0
    assert "# Queries are encoded by sentence-transformers' `encode_query`, which" in Path("c.yaml").read_text()
    workplace.write("texts/a.txt", "The bank, by the river.\nbank\n" + "the river " * 20)
    workplace.drive()
    assert main(["verify", "out/c"], version="test") == 0
    lists = workplace.rows("sentences", "out/c")["layer_3"].to_pylist()
    source = open_encoder(folder)
    weights = load_weights(source)
    ids = {entry: number for number, entry in enumerate(source.vocabulary)}
    for found, text in zip(lists, ("the bank , by the river .", "bank", "the river " * 20), strict=True):
        tokens = ["[CLS]", "[unused1]", *text.split()[:9], "[SEP]"]
        layers, _ = forward(source.architecture, weights, [ids[token] for token in tokens], [0] * len(tokens))
        vectors = (layers[-1] @ linear)[[token not in skipped for token in tokens]]
        np.testing.assert_allclose(found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=OF_TWO)


def test_other_metadata_of_stanford(stanford):
    model = read_model(stanford({"mask_punctuation": False})[0])
    assert (model.encoder["max_seq_length"], model.encoder["prompt"]) == (128, "[unused1]")
    assert "skip_tokens" not in model.view
    for metadata, reason in (
        (
            {"doc_token_id": "[D]"},
            'artifact.metadata: doc_token_id is "[D]", which is no entry of the encoder\'s vocab',
        ),
        ({"doc_maxlen": "a"}, 'artifact.metadata: doc_maxlen is "a"; it must be null or an integer from 3 up'),
    ):
        assert reason in refused(stanford(metadata)[0])


def test_the_layer_among_the_weights_is_missing(make):
    encoder = {"handle": make()}
    views = {"v": {"level": "token", "layers": [-1], "dense": ["."]}}
    with pytest.raises(ValueError, match=r"model.safetensors: has no matrix linear.weight next to the encoder's weigh"):
        encode(["a"], encoder=encoder, views=views)


@pytest.mark.parametrize(
    ("tasks", "advice"),
    [
        (["query"], ' with `prompt: "[Q] "` and `skip_tokens: [".", ",", "##s"]`.'),
        (["query", "document"], ' with `prompt: "[Q] "`.'),
        (["document"], ' with `prompt: "[Q] "` and without `skip_tokens`.'),
    ],
)
def test_tokens_that_are_skipped_in_queries(make, tasks, advice):
    assert read_model(make({"2_Mask/config.json": {"skiplist_tasks": tasks}})).queries.endswith(advice)


def test_a_marker_of_a_model_with_one_vector_per_text(make):
    pooling = {"path": "1_Pooling", "type": f"{PACKAGE}.models.Pooling"}
    model = {
        "modules.json": [TRANSFORMER, pooling],
        "1_Pooling/config.json": {"pooling_mode": "mean"},
        "config_sentence_transformers.json": {"prompts": {"a": "[MASK] a", "b": "[unused1] b"}},
    }
    named = {"config_sentence_transformers.json": {"default_prompt_name": "a"}}
    assert read_model(with_markers(make(named, model))).encoder["prompt"] == "[MASK] a"
    named = {"config_sentence_transformers.json": {"default_prompt_name": "b"}}
    assert '"[unused1]", which is one to layerbeam' in refused(with_markers(make(named, model)))
