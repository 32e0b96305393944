"""What Hugging Face's, Google's and TF Hub's formats have in common; what only one has is in its own file."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from repository import DATA
from safetensors.numpy import load_file, save_file
from saved_models import WORDS, save
from tampering import deny, edit
from weights import Weights, read_checkpoint, refused, same_weights, write_checkpoint

from layerbeam.transforms.encoders import EncoderError, load_encoder, load_weights, open_encoder

pytestmark = pytest.mark.usefixtures("threads")

# {kind: encoder in tests/data, its configuration, its weights as messages name them, its vocabulary}
FORMATS = {
    "huggingface": ("hf_uncased", "config.json", "model.safetensors", "vocab.txt"),
    "google": ("google_uncased", "bert_config.json", "bert_model.ckpt", "vocab.txt"),
    "savedmodel": ("tfhub_uncased", "saved_model.pb", "variables/variables", "assets/vocab.txt"),
}
JSON_FORMATS = ["huggingface", "google"]


class Encoder:
    """A copy of the small encoder, to be spoiled."""

    def __init__(self, kind: str, folder: Path) -> None:
        original, *files = FORMATS[kind]
        self.kind, self.original, self.folder = kind, DATA / original, folder
        self.config, self.weights, self.vocabulary = (folder / file for file in files)
        shutil.copytree(self.original, folder)

    def rewrite(self, change: Callable[[Weights], Weights]) -> None:
        if self.kind == "google":
            write_checkpoint(self.folder, change(read_checkpoint(self.folder)))
        else:
            save_file(change(load_file(self.weights)), self.weights)


@pytest.fixture
def encoder(kind: str, tmp_path: Path) -> Encoder:
    return Encoder(kind, tmp_path / "encoder")


PLAIN = {
    "huggingface": ("config.json says plain BERT", "gelu", "model.safetensors"),
    "google": (
        "bert_config.json says plain BERT",
        "gelu_tanh",
        "bert_model.ckpt.data-00000-of-00001 bert_model.ckpt.index",
    ),
    "savedmodel": (
        "variables and graph are plain BERT's",
        "gelu_tanh",
        "saved_model.pb variables.data-00000-of-00001 variables.index",
    ),
}


@pytest.mark.parametrize(
    ("name", "kind", "casing"),
    [
        ("hf_uncased", "huggingface", "tokenizer_config.json"),
        ("google_uncased", "google", "the name google_uncased"),
        ("google_cased", "google", "the name google_cased"),
        ("tfhub_uncased", "savedmodel", "do_lower_case of the SavedModel"),
        ("tfhub_cased", "savedmodel", "do_lower_case of the SavedModel"),
    ],
)
def test_description(name, kind, casing):
    because, activation, weight_files = PLAIN[kind]
    folder = str(DATA / name)
    source = open_encoder(folder)
    described = source.describe()
    assert json.loads(json.dumps(described)) == described
    assert re.fullmatch(r"[0-9a-f]{64}", described["fingerprint"])
    vocab_size = 818 if "uncased" in name else 1445
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "hidden_act": activation,
        "layer_norm_eps": 1e-12,
    }
    assert dataclasses.asdict(source.architecture) == sizes
    assert described | {"fingerprint": ""} == {
        "handle": folder,
        "architecture": "Bert",
        "tokenizer": "tensorflow_text",
        "tokenizer_because": "it does WordPiece as Google's code",
        "kind": kind,
        "engine": "native",
        "engine_because": because,
        "fingerprint": "",
        "do_lower_case": "uncased" in name,
        "casing_from": casing,
        "has_pooler": True,
        "vocabulary_size": vocab_size,
        **sizes,
    }
    assert (source.folder, source.layers) == (folder, (0, 1, 2, 3))
    assert source.vocabulary[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert " ".join(Path(file).name for file in source.weight_files) == weight_files
    assert pickle.loads(pickle.dumps(source)) == source


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in JSON_FORMATS for dtype in (np.float16, ml_dtypes.bfloat16, np.float64)],
)
def test_other_number_types_become_float32(encoder, dtype):
    encoder.rewrite(lambda weights: {name: values.astype(dtype) for name, values in weights.items()})
    name = "bert/encoder/layer_1/attention/self/key/kernel"
    got, exact = (load_weights(open_encoder(str(path)))[name] for path in (encoder.folder, encoder.original))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, exact.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("kind", "left"), [("huggingface", ()), ("google", ()), ("google", ("bias",)), ("google", ("kernel",))]
)
def test_no_pooler(encoder, left):
    kept = {f"bert/pooler/dense/{part}" for part in left}
    encoder.rewrite(lambda weights: {name: weights[name] for name in weights if "pooler" not in name or name in kept})
    source = open_encoder(str(encoder.folder))
    assert not source.has_pooler
    assert len(load_weights(source)) == 53
    assert load_encoder(source, layers=[1], pooler=False).layers == (1,)
    with pytest.raises(EncoderError, match=r"it has no pooled output \(no pooler among its weights or outputs\)"):
        load_encoder(source, layers=[1], pooler=True)


@pytest.mark.parametrize(
    ("kind", "norm", "ignored", "decisive"),
    [
        ("huggingface", "embeddings.LayerNorm.bias", {"transformers_version": "9"}, {"hidden_act": "gelu_new"}),
        ("google", "bert/embeddings/LayerNorm/beta", {"directionality": "bidi"}, {"num_attention_heads": 8}),
    ],
)
def test_fingerprint_is_of_what_decides_vectors(encoder, norm, ignored, decisive):
    def fingerprint() -> str:
        return open_encoder(str(encoder.folder)).fingerprint

    prints = {open_encoder(str(encoder.original)).fingerprint}
    edit(encoder.config, initializer_range=0.5, architectures=None, **ignored)
    (encoder.folder / "bert_model.ckpt.meta").write_bytes(b"the graph, which nobody reads")
    assert {fingerprint()} == prints
    edit(encoder.config, **decisive)
    prints.add(fingerprint())
    encoder.vocabulary.write_text(encoder.vocabulary.read_text().replace("\n!\n", "\n?!\n"))
    prints.add(fingerprint())
    encoder.rewrite(lambda weights: weights | {norm: weights[norm] + 1})
    prints.add(fingerprint())
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            "huggingface",
            {"model_type": "t5"},
            'model_type is "t5"; it must be one of bert, distilbert, albert, electra, roberta, xlm-roberta, '
            "camembert, mpnet, deberta-v2, modernbert, nomic_bert, gte, new, jina_embeddings_v3, eurobert, qwen3, "
            "gemma3_text (BERT, DistilBERT, ALBERT, ELECTRA, RoBERTa, XLM-R, CamemBERT, MPNet, DeBERTa-v2, ModernBERT, "
            "NomicBERT, GTE, jina-embeddings-v3, EuroBERT, Qwen3 and Gemma 3)",
        ),
        ("huggingface", {"model_type": None, "architectures": None}, "model_type is missing"),
        ("huggingface", {"hidden_act": "relu"}, 'hidden_act is "relu"; it must be one of gelu, gelu_python, gelu_new,'),
        ("huggingface", {"hidden_act": "quick_gelu"}, 'hidden_act is "quick_gelu"'),
        ("huggingface", {"hidden_act": ["gelu"]}, 'hidden_act is ["gelu"]'),
        (
            "huggingface",
            {"position_embedding_type": "relative_key"},
            'position_embedding_type is "relative_key"; it must be "absolute"',
        ),
        ("huggingface", {"is_decoder": True}, "is_decoder is true; it must be false"),
        ("huggingface", {"layer_norm_eps": "1e-12"}, "layer_norm_eps is"),
        ("google", {"hidden_act": "relu"}, 'hidden_act is "relu"; it must be "gelu": take another encoder'),
        ("google", {"hidden_act": None}, 'hidden_act is missing; it must be "gelu"'),
        ("google", {"hidden_act": ["gelu"]}, 'hidden_act is ["gelu"]; it must be "gelu"'),
        ("google", {"intermediate_size": 128.0}, "intermediate_size is 128.0; it must be a positive integer"),
        ("google", {"max_position_embeddings": True}, "max_position_embeddings is true; it must be a positive integer"),
        *(
            (kind, fields, message)
            for kind in JSON_FORMATS
            for fields, message in [
                ({"num_hidden_layers": None}, "num_hidden_layers is missing; it must be a positive integer"),
                ({"vocab_size": "818"}, 'vocab_size is "818"; it must be a positive integer'),
                ({"type_vocab_size": 0}, "type_vocab_size is 0; it must be a positive integer"),
                ({"num_attention_heads": 5}, "hidden_size is 64; it must be a multiple of num_attention_heads, 5"),
                (
                    {"num_hidden_layers": 2_000_000_000},
                    "says 2,000,000,000 blocks with weights of their own, and the weights have no more than "
                    f"{55 if kind == 'huggingface' else 57} tensors; they do not belong together: download both again",
                ),
            ]
        ),
    ],
)
def test_configurations_that_compute_something_else(encoder, fields, message):
    edit(encoder.config, **fields)
    assert f"{encoder.config}: {message}" in refused(encoder.folder)


@pytest.mark.parametrize("kind", JSON_FORMATS)
@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b""])
def test_corrupt_json(encoder, content):
    encoder.config.write_bytes(content)
    assert f"{encoder.config}: " in refused(encoder.folder)
    assert refused(encoder.folder).endswith("download it again")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            "huggingface",
            "encoder.layer.1.output.dense.bias",
            "no tensor encoder.layer.1.output.dense.bias among 54, such as embeddings.",
        ),
        (
            "google",
            "bert/encoder/layer_1/output/dense/bias",
            "no variable bert/encoder/layer_1/output/dense/bias among 56, such as bert/embeddings/LayerNorm/beta, "
            "bert/embeddings/LayerNorm/gamma, bert/embeddings/position_embeddings; bert_config.json and checkpoint do "
            "not belong together: download both again",
        ),
    ],
)
def test_missing_weights(encoder, name, message):
    encoder.rewrite(lambda weights: {key: weights[key] for key in weights if key != name})
    assert f"{encoder.weights}: {message}" in refused(encoder.folder)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            "huggingface",
            {"intermediate_size": 96},
            "encoder.layer.0.intermediate.dense.weight is F32 [128, 64]; by config.json it must be one of F32, F16, "
            "BF16, F64 [96, 64]: take the config.json that belongs to the weights",
        ),
        (
            "google",
            {"intermediate_size": 96},
            "bert/encoder/layer_0/intermediate/dense/kernel is float32 [64, 128]; by bert_config.json it must be "
            "floats [64, 96]: take the bert_config.json that belongs to the checkpoint",
        ),
        (
            "google",
            {"max_position_embeddings": 512},
            "bert/embeddings/position_embeddings is float32 [128, 64]; by bert_config.json it must be floats [512, 64]",
        ),
        ("google", {"vocab_size": 900}, "bert/embeddings/word_embeddings is float32 [818, 64]"),
        ("google", {"type_vocab_size": 3}, "bert/embeddings/token_type_embeddings is float32 [2, 64]"),
        ("google", {"num_hidden_layers": 4}, "no variable bert/encoder/layer_3/attention/self/query/kernel among 57"),
    ],
)
def test_weights_of_another_configuration(encoder, fields, message):
    edit(encoder.config, **fields)
    assert f"{encoder.weights}: {message}" in refused(encoder.folder)


@pytest.mark.parametrize(
    ("kind", "name", "dtype", "message"),
    [
        ("huggingface", "embeddings.LayerNorm.bias", np.int8, "is I8 [64]"),
        (
            "google",
            "bert/embeddings/LayerNorm/beta",
            np.int32,
            "is int32 [64]; by bert_config.json it must be floats [64]",
        ),
    ],
)
def test_integers_for_weights(encoder, name, dtype, message):
    encoder.rewrite(lambda weights: weights | {name: weights[name].astype(dtype)})
    assert f"{name} {message}" in refused(encoder.folder)


def cut_off(path: Path, keep: int | None) -> None:
    """Leave the first bytes of a file, or with None no file."""
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])


@pytest.mark.parametrize(
    ("kind", "keep"),
    [*(("google", keep) for keep in (0, 10, 1000, -1)), *(("savedmodel", keep) for keep in (None, 0, 1000, -1))],
)
def test_index_that_is_not_whole(encoder, keep):
    cut_off(encoder.weights.with_name(f"{encoder.weights.name}.index"), keep)
    message = refused(encoder.folder)
    assert f"{encoder.weights}.*: not a complete checkpoint (" in message
    assert message.endswith("download it again")


@pytest.mark.parametrize(
    ("kind", "engine", "keep", "name"),
    [
        *(("google", "auto", keep, "bert/embeddings/word_embeddings") for keep in (None, 0, 1000)),
        ("google", "auto", 300_000, "bert/encoder/layer_0/attention/self/value/kernel"),
        *(
            ("savedmodel", engine, keep, "_CHECKPOINTABLE_OBJECT_GRAPH")
            for engine in ("native", "savedmodel")
            for keep in (None, 0, 1000, -1)
        ),
    ],
)
def test_data_that_is_not_whole(encoder, engine, keep, name):
    cut_off(encoder.weights.with_name(f"{encoder.weights.name}.data-00000-of-00001"), keep)
    message = refused(encoder.folder, engine=engine)
    assert f"{encoder.weights}: the variable {name} cannot be read (" in message
    assert message.endswith("download it again")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing; it holds the vocabulary"),
        (b"[PAD]\n[UNK]\n\xff", ": is not UTF-8 at byte 12"),
        (b"[PAD]\n[UNK]\n", ": no entry [CLS], [SEP] among 2"),
        (b"", ": no entry [PAD], [UNK], [CLS], [SEP] among 0"),
        (
            "\n".join([*WORDS, *map(str, range(809))]).encode(),
            ": has 819 entries, the word embedding (vocab_size) has 818 rows",
        ),
    ],
    ids=["missing", "not UTF-8", "not BERT's", "empty", "too long"],
)
def test_vocabularies_that_cannot_be_used(encoder, content, message):
    path = encoder.vocabulary
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert f"{path}{' ' if content is None else ''}{message}" in refused(encoder.folder)


@pytest.mark.parametrize("kind", FORMATS)
def test_embedding_longer_than_the_vocabulary(encoder, kind):
    encoder.vocabulary.write_text("\n".join(WORDS))
    source = open_encoder(str(encoder.folder))
    assert (len(source.vocabulary), source.architecture.vocab_size) == (10, 818)
    assert same_weights(encoder.folder, encoder.original)
    if kind == "savedmodel":
        assert open_encoder(str(encoder.folder), engine="savedmodel").vocabulary == source.vocabulary


CONFIG, GUESS, SAVED = "tokenizer_config.json", "a guess from the vocabulary", "do_lower_case of the SavedModel"


@pytest.mark.parametrize(
    ("kind", "name", "said", "setting", "expected"),
    [
        ("huggingface", "bert-cased", True, False, (False, "the setting")),
        ("huggingface", "bert-uncased", False, None, (False, CONFIG)),
        ("huggingface", "bert", None, None, (True, GUESS)),
        ("huggingface", "my-bert-cased", None, None, (False, "the name my-bert-cased")),
        ("huggingface", "my-bert-cased", "no file", None, (False, "the name my-bert-cased")),
        ("google", "uncased_L-12_H-768_A-12", None, None, (True, "the name uncased_L-12_H-768_A-12")),
        ("google", "uncased_L-12_H-768_A-12", None, False, (False, "the setting")),
        ("google", "cased_L-24_H-1024_A-16", None, True, (True, "the setting")),
        ("google", "my_bert", None, None, (True, GUESS)),
        ("savedmodel", "bert-cased", True, None, (True, SAVED)),
        ("savedmodel", "bert-uncased", False, None, (False, SAVED)),
        ("savedmodel", "bert-cased", None, None, (False, "the name bert-cased")),
        ("savedmodel", "bert", None, None, (True, GUESS)),
        ("savedmodel", "bert-uncased", True, False, (False, "the setting")),
    ],
)
def test_order_of_the_sources_of_casing(tmp_path, kind, name, said, setting, expected):
    folder = save(tmp_path / name, lower_case=said) if kind == "savedmodel" else Encoder(kind, tmp_path / name).folder
    if said == "no file":
        (folder / CONFIG).unlink()
    elif kind == "huggingface":
        edit(folder / CONFIG, do_lower_case=said)
    source = open_encoder(str(folder), do_lower_case=setting)
    assert (source.do_lower_case, source.casing_from) == expected


def test_casing_guessed_from_a_cased_vocabulary(tmp_path):
    source = open_encoder(str(shutil.copytree(DATA / "google_cased", tmp_path / "my_bert")))
    assert (source.do_lower_case, source.casing_from) == (False, GUESS)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("huggingface", name) for name in ("config.json", "model.safetensors", "vocab.txt", CONFIG)),
        *(("google", name) for name in ("bert_config.json", "vocab.txt")),
        ("savedmodel", "saved_model.pb"),
    ],
)
def test_file_that_may_not_be_read(encoder, name, monkeypatch):
    deny(monkeypatch, encoder.folder / name)
    path = encoder.folder / name
    assert refused(encoder.folder) == f"{encoder.folder}: {path}: cannot be read: Permission denied"
