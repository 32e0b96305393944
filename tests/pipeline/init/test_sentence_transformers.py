"""`layerbeam init --from`: a model of sentence-transformers becomes a configuration, or the reason why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tables import cases

from layerbeam.pipeline.cli.main import main
from layerbeam.pipeline.config import load as configuration
from layerbeam.pipeline.config import schema
from layerbeam.pipeline.init import template
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.encoders.recipe import read_model

IDENTITY = "torch.nn.modules.linear.Identity"
CONFIG = {"model_type": "bert", "max_position_embeddings": 512}
# As sentence-transformers 6.2 saves a model.
MODEL: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        },
    ],
    "config.json": CONFIG,
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    },
    "tokenizer_config.json": {"model_max_length": 256, "padding_side": "right", "truncation_side": "right"},
    "1_Pooling/config.json": {"embedding_dimension": 384, "pooling_mode": "mean", "include_prompt": True},
    "config_sentence_transformers.json": {
        "model_type": "SentenceTransformer",
        "prompts": {"document": "", "query": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    },
}
NORMALIZE = {
    "idx": 2,
    "name": "2",
    "path": "2_Normalize",
    "type": "sentence_transformers.base.modules.normalize.Normalize",
}
# As sentence-transformers 6.2 saves it.
DENSE: dict[str, Any] = {
    "in_features": 384,
    "out_features": 128,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
}
# As version 2 did, with the encoder in a folder of its own.
OLD_MODEL: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "0_Transformer/config.json": CONFIG,
    "0_Transformer/sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
    "1_Pooling/config.json": {
        "word_embedding_dimension": 384,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    },
    "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.0.0"}},
}


@pytest.fixture
def make(tmp_path):
    """A function that writes a model, changed by {file: its fields, its whole content, or None}; returns its path."""

    def write(changes: dict[str, Any] | None = None, model: dict[str, Any] = MODEL) -> str:
        files = {**model}
        for name, change in (changes or {}).items():
            files[name] = {**files.get(name, {}), **change} if isinstance(change, dict) else change
        for name, content in files.items():
            path = tmp_path / "model" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is not None:
                path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(tmp_path / "model")

    return write


def refused(folder: str) -> str:
    """Why a folder is refused, without its path."""
    with pytest.raises(EncoderError) as error:
        read_model(folder)
    return str(error.value).replace(f"{folder}/", "").replace(folder, "FOLDER")


def test_model(make):
    model = read_model(make())
    assert model.encoder == {"handle": make(), "max_seq_length": 256}
    assert model.view == {"level": "text", "layers": [-1], "pooling": "mean", "normalize": False}
    assert not model.is_plain


def test_model_of_version_2(make):
    folder = make(model=OLD_MODEL)
    model = read_model(folder)
    assert model.encoder == {"handle": f"{folder}/0_Transformer", "max_seq_length": 128}
    assert model.view == {"level": "text", "layers": [-1], "pooling": "cls", "normalize": True}


@pytest.mark.parametrize("package", ["models", "sentence_transformer.modules", "base.modules.dense"])
def test_dense_modules(make, package):
    dense = [{"path": path, "type": f"sentence_transformers.{package}.Dense"} for path in ("2_Dense", "3_Dense")]
    files = {
        "2_Dense/config.json": DENSE,
        # As version 2 saved it.
        "3_Dense/config.json": {"in_features": 128, "out_features": 64, "bias": False, "activation_function": IDENTITY},
        "config_sentence_transformers.json": {"truncate_dim": 32},
    }
    model = read_model(make({**files, "modules.json": [*MODEL["modules.json"], *dense]}))
    assert model.view["dense"] == ["2_Dense", "3_Dense"]
    assert (model.view["truncate_dim"], model.view["normalize"]) == (32, False)
    written = template.text(model=model)
    assert "    dense: [2_Dense, 3_Dense]\n" in written
    assert configuration.check(configuration.parse_yaml(written), source="test").views["sentences"].dense == [
        "2_Dense",
        "3_Dense",
    ]
    files["config_sentence_transformers.json"] = {"truncate_dim": None}
    model = read_model(make({**files, "modules.json": [*MODEL["modules.json"], *dense, NORMALIZE]}))
    assert (model.view["dense"], model.view["normalize"]) == (["2_Dense", "3_Dense"], True)


def test_dense_modules_beside_the_folder_of_the_encoder(make):
    modules = [*OLD_MODEL["modules.json"][:2], module("Dense", "2_Dense")]
    folder = make({"modules.json": modules, "2_Dense/config.json": DENSE}, model=OLD_MODEL)
    assert refused(folder) == (
        "FOLDER: its encoder is in its folder 0_Transformer, and 2_Dense is next to that; `dense` needs it in the "
        "encoder's own folder: save the model again, SentenceTransformer('FOLDER').save(...), and give that"
    )


def test_minilm():
    assert read_model("minilm").encoder == {"handle": "minilm", "max_seq_length": 256}
    assert read_model("minilm").view == {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True}


@pytest.mark.parametrize(
    ("given", "pooling"),
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": ["mean", "max"]}, "mean_max"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len"),
        ({"pooling_mode": "weightedmean"}, "weighted_mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "lasttoken", "pooling_mode_cls_token": True}, "last"),
        ({"pooling_mode": None, "pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
        ({"pooling_mode": None, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode": None, "pooling_mode_cls_token": False}, "mean"),
        ({"include_prompt": False}, "mean"),
    ],
)
def test_poolings(make, given, pooling):
    assert read_model(make({"1_Pooling/config.json": given})).view["pooling"] == pooling


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"pooling_mode": "median"}, '"median"'),
        ({"pooling_mode": ["max", "mean"]}, '"max" + "mean"'),
        ({"pooling_mode": []}, "none"),
        ({"pooling_mode": {"cls": 1}}, '{"cls": 1}'),
        (
            {"pooling_mode": None, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            '"max" + "mean"',  # sentence-transformers puts the maximum first
        ),
    ],
)
def test_other_poolings(make, given, found):
    assert refused(make({"1_Pooling/config.json": given})) == (
        f"1_Pooling/config.json: the pooling is {found}; allowed: cls, max, mean, mean + max, mean_sqrt_len_tokens, "
        "weightedmean, lasttoken: take another model, or encode with sentence-transformers"
    )


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 512),
        ({"tokenizer_config.json": None}, 512),
        ({"sentence_bert_config.json": {"max_seq_length": 300}}, 300),
        ({"sentence_bert_config.json": {"max_seq_length": None}}, 256),
        ({"sentence_bert_config.json": {"max_seq_length": 1000}}, 512),
        ({"sentence_bert_config.json": None, "sentence_roberta_config.json": {"max_seq_length": 75}}, 75),
        ({"sentence_bert_config.json": None}, 256),
        ({"config.json": {"max_position_embeddings": 130}}, 130),
        # 514 rows of the position embedding, of which the first two are not used.
        (
            {
                "config.json": {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1},
                "tokenizer_config.json": None,
            },
            512,
        ),
        (
            {
                "config.json": {"model_type": "mpnet", "max_position_embeddings": 514},
                "sentence_bert_config.json": {"max_seq_length": 384},
            },
            384,
        ),
        ({"config.json": {"model_type": "xlm-roberta", "pad_token_id": 0}, "tokenizer_config.json": None}, 511),
    ],
)
def test_lengths(make, files, length):
    assert read_model(make(files)).encoder["max_seq_length"] == length


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ({"prompts": {"query": "query: "}, "default_prompt_name": "query"}, "query: "),
        ({"prompts": {"query": "query: "}}, None),
        ({"prompts": {"s": "Instruct: a\nQuery: "}, "default_prompt_name": "s"}, "Instruct: a\nQuery: "),
        ({"prompts": {}, "default_prompt_name": "document"}, None),
        ({"prompts": {"query": None}, "default_prompt_name": "query"}, None),
    ],
)
def test_default_prompt(make, given, prompt):
    model = read_model(make({"config_sentence_transformers.json": given}))
    assert model.encoder.get("prompt") == prompt
    loaded = configuration.check(configuration.parse_yaml(template.text(model=model)), source="test")
    assert loaded.encoder.prompt == prompt


def test_named_prompt(make):
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: ", "Clustering": "c: "}
    folder = make({"config_sentence_transformers.json": {"prompts": prompts}})
    assert "prompt" not in read_model(folder).encoder
    named = {name: read_model(folder, name) for name in prompts}
    assert {name: model.encoder["prompt"] for name, model in named.items()} == prompts
    assert "`encode(..., prompt_name='document')`" in template.text(model=named["document"])
    with pytest.raises(EncoderError, match=r'has no prompt "STS"; allowed: query, document, Clustering'):
        read_model(folder, "STS")
    Path(folder, "modules.json").unlink()
    with pytest.raises(EncoderError, match="is a plain encoder; leave --prompt out"):
        read_model(folder, "query")
    assert main(["init", "--prompt", "query"], version="test") == 2


@pytest.mark.parametrize("model_type", ["bert", "qwen3"])
def test_padding_on_the_left(make, model_type):
    files = {"config.json": {"model_type": model_type}, "tokenizer_config.json": {"padding_side": "left"}}
    if model_type == "qwen3":
        assert read_model(make(files)).encoder["max_seq_length"] == 256
    else:
        assert 'padding_side is "left"; it must be "right"' in refused(make(files))


def test_truncated_vectors(make):
    assert read_model(make({"config_sentence_transformers.json": {"truncate_dim": 64}})).view["truncate_dim"] == 64


def test_lowercased_texts(make):
    lowers = {"sentence_bert_config.json": {"do_lower_case": True}}
    keeps_case = (
        "sentence_bert_config.json: do_lower_case is true; it must be false, since the encoder's tokenizer keeps case: "
        "set it to false there and lowercase the texts yourself"
    )
    assert refused(make(lowers)) == keeps_case
    assert refused(make({**lowers, "tokenizer_config.json": {"do_lower_case": False}})) == keeps_case
    read_model(make({**lowers, "tokenizer_config.json": {"do_lower_case": True}}))
    fast = {"tokenizer.json": {"normalizer": {"type": "BertNormalizer", "lowercase": True}}}
    read_model(make({**lowers, **fast}))
    fast["tokenizer.json"]["normalizer"]["lowercase"] = False
    assert refused(make({**lowers, **fast, "tokenizer_config.json": {"do_lower_case": True}})) == keeps_case


def test_plain_encoder(make):
    folder = make({"modules.json": None})
    model = read_model(folder)
    assert model.is_plain
    assert model.encoder == {"handle": folder, "max_seq_length": 256}
    assert model.view == {"level": "text", "layers": [-1], "pooling": "mean", "normalize": False}


ELSEWHERE = "take another model, or encode with sentence-transformers"


def module(type_: str, path: str = "2_X") -> dict[str, str]:
    return {"name": path, "path": path, "type": f"sentence_transformers.models.{type_}"}


OTHER_VECTORS = r"""
{"modules.json": [{"path": "", "type": "my_code.Transformer"}]}
    the modules are my_code.Transformer; allowed
{"modules.json": []}
    modules.json: the modules are none; allowed:
{"modules.json": ["x"]}
    modules.json: a module is "x"; it must have a type and a path: download it again
{"modules.json": [{"path": 1, "type": "x"}]}
    it must have a type and a path
{"config.json": null}
    config.json: No such file or directory; download the whole folder again
{"config.json": []}
    config.json: is []; it must be an object: download it again
{"config.json": {"max_position_embeddings": "512"}}
    config.json: max_position_embeddings is "512"; it must be an integer from 3 up
{"tokenizer_config.json": {"model_max_length": true}}
    tokenizer_config.json: model_max_length is true; it must be null or an integer from 3 up
{"tokenizer_config.json": {"truncation_side": "left"}}
    tokenizer_config.json: truncation_side is "left"; it must be "right": ELSEWHERE
{"sentence_bert_config.json": {"max_seq_length": 2}}
    sentence_bert_config.json: max_seq_length is 2; it must be null or an integer from 3 up
{"sentence_bert_config.json": {"transformer_task": "fill-mask"}}
    sentence_bert_config.json: transformer_task is "fill-mask"; it must be "feature-extraction": ELSEWHERE
{"sentence_bert_config.json": {"model_args": {"dtype": "float16"}}}
    sentence_bert_config.json: model_args is {"dtype": "float16"}; it must be {}: ELSEWHERE
{"sentence_bert_config.json": {"pre": 1}}
    sentence_bert_config.json: pre is unknown here; allowed:
{"adapter_config.json": {}}
    adapter_config.json: is an adapter; merge it into the encoder and save that
{"1_Pooling/config.json": null}
    1_Pooling/config.json: No such file or directory; download the whole
{"1_Pooling/config.json": {"pooling_mode_median": true}}
    pooling_mode_median is unknown here; allowed:
{"config_sentence_transformers.json": {"default_prompt_name": "passage"}}
    default_prompt_name is "passage"; it must be null or one of prompts: query, document
{"config_sentence_transformers.json": {"default_prompt_name": ["query"]}}
    default_prompt_name is ["query"];
{"config_sentence_transformers.json": {"prompts": ["x"], "default_prompt_name": "x"}}
    default_prompt_name is "x"; it must be null or one of prompts: query, document
{"config_sentence_transformers.json": {"prompts": {"a": 7}, "default_prompt_name": "a"}}
    config_sentence_transformers.json: prompts.a is 7; it must be a text
{"config_sentence_transformers.json": {"prompts": {"a": "\ud800"}, "default_prompt_name": "a"}}
    config_sentence_transformers.json: prompts.a is "\ud800"; it must be a text
{"config_sentence_transformers.json": {"model_type": "SparseEncoder"}}
    model_type is "SparseEncoder"; it must be "SentenceTransformer": ELSEWHERE
{"config_sentence_transformers.json": {"truncate_dim": 0}}
    config_sentence_transformers.json: truncate_dim is 0; it must be null or an integer from 1 up
{"modules.json": null, "config.json": {"architectures": ["RobertaForCausalLM"]}}
    config.json: architectures is ["RobertaForCausalLM"]; it must be an encoder's: ELSEWHERE
{"modules.json": null, "config.json": null}
    FOLDER: has neither modules.json nor config.json; give the folder of a sentence-transformers model, or of an encoder
    from Hugging Face
"""


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        *((json.loads(files), reason.replace("ELSEWHERE", ELSEWHERE)) for files, reason in cases(OTHER_VECTORS)),
        (
            {"modules.json": [*MODEL["modules.json"], NORMALIZE, module("Dense")]},
            "modules.json: the modules are Transformer + Pooling + Normalize + Dense; allowed: Transformer + Pooling, "
            f"then any number of Dense, then Normalize or nothing: {ELSEWHERE}",
        ),
        (
            {"modules.json": [*MODEL["modules.json"], module("Dense", "2_Dense")]},
            "2_Dense/config.json: No such file or directory; download the whole folder again",
        ),
        *(
            (
                {
                    "modules.json": [*MODEL["modules.json"], module("Dense", "2_Dense")],
                    "2_Dense/config.json": {**DENSE, **given},
                },
                reason,
            )
            for given, reason in (
                ({"activation_function": "torch.nn.modules.activation.Mish"}, "it must be Identity, Tanh, ReLU, GELU"),
                ({"use_residual": True}, "2_Dense/config.json: use_residual is true; it must be false"),
                ({"in_features": None}, "in_features is null; it must be a positive integer"),
                (
                    {"module_input_name": "token_embeddings"},
                    'module_input_name is "token_embeddings"; it must be "sentence_embedding": ' + ELSEWHERE,
                ),
                ({"module_output_name": "x"}, 'module_output_name is "x"; it must be "sentence_embedding"'),
                ({"dropout": 0.5}, "2_Dense/config.json: dropout is unknown here; allowed: in_features, out_feature"),
            )
        ),
        (
            {"modules.json": [module("WordEmbeddings"), module("LSTM")]},
            "the modules are WordEmbeddings + LSTM; allowed",
        ),
        ({"modules.json": [MODEL["modules.json"][0], NORMALIZE, MODEL["modules.json"][1]]}, "+ Normalize + Pooling; "),
        ({"modules.json": b"{}"}, "modules.json: is {}; it must be a list of modules: download it again"),
        ({"modules.json": [module("Transformer", "../a")]}, 'a module\'s path is "../a"; it must be a folder next to'),
        ({"modules.json": [module("Transformer", "/etc")]}, 'a module\'s path is "/etc"; it must be a folder next to'),
        ({"modules.json": b"[{"}, "modules.json: is not JSON ("),
        ({"modules.json": b"[" * 100_000}, "modules.json: is not JSON ("),
        ({"modules.json": b"\xff\xfe["}, "modules.json: is not JSON ("),
        (
            {
                "1_Pooling/config.json": {"include_prompt": False},
                "config_sentence_transformers.json": {"prompts": {"a": "a: "}, "default_prompt_name": "a"},
            },
            "1_Pooling/config.json: include_prompt is false; it must be true, because the model has a default prompt: "
            + ELSEWHERE,
        ),
        (
            {
                "modules.json": [*MODEL["modules.json"], NORMALIZE],
                "config_sentence_transformers.json": {"truncate_dim": 64},
            },
            "truncate_dim is 64; it must be null: it would cut vectors after Normalize has scaled them",
        ),
        (
            {
                "modules.json": [*MODEL["modules.json"], NORMALIZE],
                "2_Normalize/config.json": {"module_input_name": "token_embeddings"},
            },
            'module_input_name is "token_embeddings"; it must be "sentence_embedding": ' + ELSEWHERE,
        ),
    ],
)
def test_models_with_other_vectors(make, files, reason):
    assert reason in refused(make(files))


def test_folders_that_are_none(tmp_path):
    file = tmp_path / "model.zip"
    file.write_bytes(b"")
    for handle in (str(file), str(tmp_path / "nowhere"), "gs://bucket/model", ""):
        with pytest.raises(EncoderError, match=r"is not a folder on this machine; give the folder of a sentence-"):
            read_model(handle)


def test_repository_at_hugging_face(make, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    folder, asked = make(), []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **given: asked.append(given) or folder)
    assert read_model("hf://org/name").encoder["handle"] == "hf://org/name"
    assert {"modules.json", "config_sentence_transformers.json"} < set(asked[0]["allow_patterns"])
    assert {f"[0-9]*_Dense/{name}" for name in ("config.json", "model.safetensors", "pytorch_model.bin")} < set(
        asked[0]["allow_patterns"]
    )
    modules = [*MODEL["modules.json"], module("Dense", "2_Dense"), module("Dense", "3_Dense_[32]")]
    dense = {"2_Dense/config.json": DENSE, "3_Dense_[32]/config.json": DENSE}
    make({"modules.json": modules, **dense})
    assert read_model("hf://org/name").view["dense"] == ["2_Dense", "3_Dense_[32]"]
    files = ("config.json", "model.safetensors", "pytorch_model.bin")
    assert asked[-1]["allow_patterns"] == [f"3_Dense_[[]32]/{name}" for name in files]
    make({"modules.json": b"[7]"})
    assert "modules.json: a module is 7" in refused("hf://org/name")
    make(model=OLD_MODEL)
    assert refused("hf://org/name") == (
        "FOLDER: its encoder is in its folder 0_Transformer; download it all and give its local folder"
    )


def test_the_file_has_the_values_and_explains_every_setting(make):
    written = template.text(model=read_model(make()))
    loaded = configuration.check(configuration.parse_yaml(written), source="test")
    assert loaded.encoder == schema.EncoderConfig(handle=make(), max_seq_length=256)
    assert {name: (view.level, view.pooling) for name, view in loaded.views.items()} == {"sentences": ("text", "mean")}
    assert "one view: for each line the vector of sentence-transformers' `encode`" in written
    assert max(map(len, written.splitlines())) <= 110 + len(make())
    for name in ("long_text", "truncate_dim", "compress", "target_part_bytes"):
        assert f"#{name}: " in written


def test_the_command(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = Path(make({"modules.json": None})).name
    assert main(["init", "--from", folder, "a.yaml"], version="test") == 0
    error = capsys.readouterr().err
    assert "model: has no modules.json: a plain encoder, whose tokens sentence-transformers averages\n" in error
    assert "a.yaml: written; it reads texts/*.txt" in error
    assert "  handle: model\n" in (tmp_path / "a.yaml").read_text()
    assert main(["init", "--from", "nowhere", "b.yaml"], version="test") == 2
    assert "nowhere: is not a folder on this machine" in capsys.readouterr().err
    assert not (tmp_path / "b.yaml").exists()
