from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from repository import DATA
from tampering import deny, edit, flip
from weights import in_float64, random_weights, refused, same_weights

from layerbeam.transforms.encoders import EncoderError, load_encoder, load_weights, open_encoder
from layerbeam.transforms.encoders.architectures import Bert
from layerbeam.transforms.encoders.source import lower_cases
from layerbeam.transforms.hardware import Hardware, import_tensorflow, load_tensorflow
from layerbeam.transforms.reference import forward

UNCASED = DATA / "google_uncased"
CASED = DATA / "google_cased"
CHECKPOINT = "bert_model.ckpt"


@pytest.fixture(autouse=True, scope="module")
def _threads():
    load_tensorflow(Hardware(2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the small encoder, to be spoiled."""
    return Path(shutil.copytree(UNCASED, tmp_path / "encoder"))


Weights = dict[str, np.ndarray]


def read(folder: Path, name: str = CHECKPOINT) -> Weights:
    """All that a checkpoint holds."""
    reader = import_tensorflow().train.load_checkpoint(str(folder / name))
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def write(folder: Path, weights: Weights, name: str = CHECKPOINT) -> None:
    tf = import_tensorflow()
    for file in folder.glob(f"{name}.*"):
        file.unlink()
    names = sorted(weights)
    tf.raw_ops.SaveV2(
        prefix=str(folder / name),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(weights[key]) for key in names],
    )


def rewrite(folder: Path, change: Callable[[Weights], Weights]) -> None:
    write(folder, change(read(folder)))


@pytest.mark.parametrize(
    ("folder", "vocab_size", "lower_case"), [(UNCASED, 818, True), (CASED, 1445, False)], ids=["uncased", "cased"]
)
def test_what_is_in_the_folder(folder, vocab_size, lower_case):
    source = open_encoder(str(folder))
    described = source.describe()
    assert json.loads(json.dumps(described)) == described
    assert re.fullmatch(r"[0-9a-f]{64}", described["fingerprint"])
    assert described | {"fingerprint": ""} == {
        "handle": str(folder),
        "architecture": "Bert",
        "tokenizer": "tensorflow_text",
        "kind": "google",
        "engine": "native",
        "engine_because": "bert_config.json says plain BERT",
        "fingerprint": "",
        "do_lower_case": lower_case,
        "casing_from": f"the name google_{'uncased' if lower_case else 'cased'}",
        "has_pooler": True,
        "vocabulary_size": vocab_size,
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "hidden_act": "gelu_tanh",
        "layer_norm_eps": 1e-12,
    }
    assert source.layers == (0, 1, 2, 3)
    assert source.vocabulary[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert [Path(file).name for file in source.weight_files] == [
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
    ]
    assert pickle.loads(pickle.dumps(source)) == source


def test_weights_are_those_of_the_checkpoint():
    source = open_encoder(str(UNCASED))
    theirs = read(UNCASED)
    weights = load_weights(source)
    assert {name: values.shape for name, values in weights.items()} == source.architecture.weight_shapes()
    assert len(weights) == 55
    # What is no part of the encoder is left where it is.
    assert sorted(set(theirs) - set(weights)) == ["cls/predictions/output_bias", "global_step"]
    for name, values in weights.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, theirs[name])


def test_forward_pass_agrees_with_the_plain_computation():
    source = open_encoder(str(UNCASED))
    encoder = load_encoder(source, layers=[0, 3], pooler=True)
    token_ids = np.array([[2, 40, 41, 3, 50, 3, 0, 0]], np.int32)
    segment_ids = np.array([[0, 0, 0, 0, 1, 1, 0, 0]], np.int32)
    given, pooled = encoder(token_ids, np.array([6], np.int32), segment_ids)
    exact, exact_pooled = forward(
        source.architecture, in_float64(load_weights(source)), token_ids[0, :6], segment_ids[0, :6]
    )
    for layer in (0, 3):
        np.testing.assert_allclose(given[layer], exact[layer], rtol=0, atol=1e-5)
    np.testing.assert_allclose(pooled[0], exact_pooled, rtol=0, atol=1e-5)


def test_heads_and_optimizer_are_left_out(folder):
    def fine_tuned(weights: Weights) -> Weights:
        slots = {f"{name}/adam_{slot}": np.ones_like(weights[name]) for name in weights for slot in "mv"}
        heads = {"output_weights": np.ones((3, 64), np.float32), "output_bias": np.ones(3, np.float32)}
        return {**weights, **slots, **heads, "global_step": np.int64(343)}

    rewrite(folder, fine_tuned)
    assert len(read(folder)) == 3 * 57 + 2
    assert open_encoder(str(folder)).has_pooler
    assert same_weights(folder, UNCASED)


@pytest.mark.parametrize("left", [(), ("bias",), ("kernel",)])
def test_no_pooler(folder, left):
    kept = {f"bert/pooler/dense/{part}" for part in left}
    rewrite(folder, lambda weights: {name: weights[name] for name in weights if "pooler" not in name or name in kept})
    source = open_encoder(str(folder))
    assert not source.has_pooler
    assert len(load_weights(source)) == 53
    assert load_encoder(source, layers=[1], pooler=False).layers == (1,)
    with pytest.raises(EncoderError, match=r"it has no pooled output \(no pooler among its weights or outputs\)"):
        load_encoder(source, layers=[1], pooler=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_number_types_become_float32(folder, dtype):
    name = "bert/encoder/layer_1/attention/self/key/kernel"
    rewrite(folder, lambda weights: weights | {name: weights[name].astype(dtype)})
    got, exact = (load_weights(open_encoder(str(path)))[name] for path in (folder, UNCASED))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, exact.astype(dtype).astype(np.float32))


def test_another_name_of_the_checkpoint(folder):
    for file in folder.glob(f"{CHECKPOINT}.*"):
        file.rename(folder / file.name.replace(CHECKPOINT, "model.ckpt-1000"))
    (folder / "model.ckpt-1000.meta").write_bytes(b"the graph, which nobody reads")
    source = open_encoder(str(folder))
    assert [Path(file).name for file in source.weight_files] == [
        "model.ckpt-1000.data-00000-of-00001",
        "model.ckpt-1000.index",
    ]
    assert same_weights(folder, UNCASED)
    write(folder, read(folder, "model.ckpt-1000"), "model.ckpt-900")
    assert refused(folder) == (
        f"{folder}: {folder} holds several checkpoints (model.ckpt-1000, model.ckpt-900) and none is bert_model.ckpt: "
        "keep one"
    )
    write(folder, random_weights(source.architecture), CHECKPOINT)
    assert "bert_model.ckpt.index" in [Path(file).name for file in open_encoder(str(folder)).weight_files]
    assert not same_weights(folder, UNCASED)


def test_no_checkpoint(folder):
    (folder / "bert_model.ckpt.index").unlink()
    assert refused(folder) == (
        f"{folder}: {folder} has no bert_model.ckpt.index, which lists the weights: download it too"
    )


def test_fingerprint_is_of_what_decides_vectors(folder):
    original = open_encoder(str(UNCASED)).fingerprint
    edit(folder / "bert_config.json", initializer_range=0.5, directionality="bidi")
    (folder / "bert_model.ckpt.meta").write_bytes(b"the graph, which nobody reads")
    assert open_encoder(str(folder)).fingerprint == original
    prints = {original}
    edit(folder / "bert_config.json", num_attention_heads=8)
    prints.add(open_encoder(str(folder)).fingerprint)
    (folder / "vocab.txt").write_text((folder / "vocab.txt").read_text().replace("\n!\n", "\n?!\n"))
    prints.add(open_encoder(str(folder)).fingerprint)
    name = "bert/embeddings/LayerNorm/beta"
    rewrite(folder, lambda weights: weights | {name: weights[name] + 1})
    prints.add(open_encoder(str(folder)).fingerprint)
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "relu"}, 'hidden_act is "relu"; it must be "gelu": take another encoder'),
        ({"hidden_act": None}, 'hidden_act is missing; it must be "gelu"'),
        ({"hidden_act": ["gelu"]}, 'hidden_act is ["gelu"]; it must be "gelu"'),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing; it must be a positive integer"),
        ({"vocab_size": "818"}, 'vocab_size is "818"; it must be a positive integer'),
        ({"intermediate_size": 128.0}, "intermediate_size is 128.0; it must be a positive integer"),
        ({"max_position_embeddings": True}, "max_position_embeddings is true; it must be a positive integer"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0; it must be a positive integer"),
        ({"num_attention_heads": 5}, "hidden_size is 64; it must be a multiple of num_attention_heads, 5"),
    ],
)
def test_configurations_that_cannot_be_used(folder, fields, message):
    edit(folder / "bert_config.json", **fields)
    assert f"{folder / 'bert_config.json'}: {message}" in refused(folder)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b""])
def test_corrupt_json(folder, content):
    (folder / "bert_config.json").write_bytes(content)
    assert f"{folder / 'bert_config.json'}: " in refused(folder)
    assert refused(folder).endswith("download it again")


def test_missing_variable(folder):
    name = "bert/encoder/layer_1/output/dense/bias"
    rewrite(folder, lambda weights: {key: weights[key] for key in weights if key != name})
    assert refused(folder) == (
        f"{folder}: {folder / CHECKPOINT}: no variable {name} among 56, such as bert/embeddings/LayerNorm/beta, "
        "bert/embeddings/LayerNorm/gamma, bert/embeddings/position_embeddings; bert_config.json and checkpoint do not "
        "belong together: download both again"
    )


def test_more_blocks_in_the_configuration_than_in_the_checkpoint(folder):
    edit(folder / "bert_config.json", num_hidden_layers=4)
    assert "no variable bert/encoder/layer_3/attention/self/query/kernel among 57" in refused(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"intermediate_size": 96},
            "bert/encoder/layer_0/intermediate/dense/kernel is float32 [64, 128]; by bert_config.json it must be "
            "floats [64, 96]: take the bert_config.json that belongs to the checkpoint",
        ),
        (
            {"max_position_embeddings": 512},
            "bert/embeddings/position_embeddings is float32 [128, 64]; by bert_config.json it must be floats [512, 64]",
        ),
        ({"vocab_size": 900}, "bert/embeddings/word_embeddings is float32 [818, 64]"),
        ({"type_vocab_size": 3}, "bert/embeddings/token_type_embeddings is float32 [2, 64]"),
    ],
)
def test_wrong_shape(folder, fields, message):
    edit(folder / "bert_config.json", **fields)
    assert f"{folder / CHECKPOINT}: {message}" in refused(folder)


def test_integers_for_weights(folder):
    name = "bert/embeddings/LayerNorm/beta"
    rewrite(folder, lambda weights: weights | {name: weights[name].astype(np.int32)})
    assert f"{name} is int32 [64]; by bert_config.json it must be floats [64]" in refused(folder)


@pytest.mark.parametrize("keep", [0, 10, 1000, -1])
def test_truncated_index(folder, keep):
    path = folder / "bert_model.ckpt.index"
    path.write_bytes(path.read_bytes()[:keep])
    message = refused(folder)
    assert f"{folder / CHECKPOINT}.*: not a complete checkpoint (" in message
    assert message.endswith("download it again")


@pytest.mark.parametrize("place", [0, 1000, -1])
def test_a_flipped_byte_in_the_index(folder, place):
    flip(folder / "bert_model.ckpt.index", place)
    assert f"{folder / CHECKPOINT}.*: not a complete checkpoint (" in refused(folder)


@pytest.mark.parametrize(
    ("keep", "name"),
    [
        (None, "bert/embeddings/word_embeddings"),
        (0, "bert/embeddings/word_embeddings"),
        (1000, "bert/embeddings/word_embeddings"),
        (300_000, "bert/encoder/layer_0/attention/self/value/kernel"),
    ],
)
def test_data_that_is_not_whole(folder, keep, name):
    path = folder / "bert_model.ckpt.data-00000-of-00001"
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    message = refused(folder)
    assert f"{folder / CHECKPOINT}: the variable {name} cannot be read (" in message
    assert message.endswith("download it again")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (0, "bert/embeddings/LayerNorm/beta"),
        (1000, "bert/embeddings/position_embeddings"),
        (-10_000, "bert/pooler/dense/kernel"),
    ],
)
def test_a_flipped_byte_in_the_data(folder, place, name):
    flip(folder / "bert_model.ckpt.data-00000-of-00001", place)
    message = refused(folder)
    assert f"{folder / CHECKPOINT}: the variable {name} cannot be read (" in message
    assert "Checksum does not match" in message
    assert message.endswith("download it again")


def test_damage_to_what_is_left_out_does_no_harm(folder):
    flip(folder / "bert_model.ckpt.data-00000-of-00001", -1)
    assert same_weights(folder, UNCASED)


def test_data_changed_after_opening(folder):
    source = open_encoder(str(folder))
    flip(folder / "bert_model.ckpt.data-00000-of-00001", 0)
    with pytest.raises(EncoderError, match="the variable bert/embeddings/LayerNorm/beta cannot be read"):
        dict(load_weights(source))
    shutil.copytree(UNCASED, folder, dirs_exist_ok=True)
    edit(folder / "bert_config.json", num_attention_heads=8)
    with pytest.raises(EncoderError, match="has changed since the run was started; start it again"):
        load_encoder(source, layers=[1], pooler=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "vocab.txt is missing; it holds the vocabulary"),
        (b"[PAD]\n[UNK]\n\xff", "vocab.txt: is not UTF-8 at byte 12"),
        (b"[PAD]\n[UNK]\n", "vocab.txt: no entry [CLS], [SEP] among 2"),
        (
            "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(815))]).encode(),
            "vocab.txt: has 819 entries, the word embedding (vocab_size) has 818 rows",
        ),
    ],
    ids=["missing", "not UTF-8", "not BERT's", "too long"],
)
def test_vocabularies_that_cannot_be_used(folder, content, message):
    (folder / "vocab.txt").unlink()
    if content is not None:
        (folder / "vocab.txt").write_bytes(content)
    assert f"{folder}/{message}" in refused(folder)


def test_embedding_longer_than_the_vocabulary(folder):
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
    source = open_encoder(str(folder))
    assert (len(source.vocabulary), source.architecture.vocab_size) == (4, 818)


@pytest.mark.parametrize(
    ("name", "setting", "expected"),
    [
        ("uncased_L-12_H-768_A-12", None, (True, "the name uncased_L-12_H-768_A-12")),
        ("uncased_L-12_H-768_A-12", False, (False, "the setting")),
        ("cased_L-24_H-1024_A-16", None, (False, "the name cased_L-24_H-1024_A-16")),
        ("cased_L-24_H-1024_A-16", True, (True, "the setting")),
        ("wwm_uncased_L-24_H-1024_A-16", None, (True, "the name wwm_uncased_L-24_H-1024_A-16")),
        ("wwm_cased_L-24_H-1024_A-16", None, (False, "the name wwm_cased_L-24_H-1024_A-16")),
        ("multi_cased_L-12_H-768_A-12", None, (False, "the name multi_cased_L-12_H-768_A-12")),
        ("multilingual_L-12_H-768_A-12", None, (True, "the name multilingual_L-12_H-768_A-12")),
        ("chinese_L-12_H-768_A-12", None, (True, "the name chinese_L-12_H-768_A-12")),
        ("my_bert", None, (True, "a guess from the vocabulary")),
    ],
)
def test_order_of_the_sources_of_casing(folder, name, setting, expected):
    source = open_encoder(str(folder.rename(folder.with_name(name))), do_lower_case=setting)
    assert (source.do_lower_case, source.casing_from) == expected


def test_casing_from_the_vocabulary(tmp_path):
    source = open_encoder(str(shutil.copytree(CASED, tmp_path / "my_bert")))
    assert (source.do_lower_case, source.casing_from) == (False, "a guess from the vocabulary")
    assert lower_cases(["model"], ["[CLS]", "[unused1]", "a", "##b"]) == (True, "a guess from the vocabulary")
    assert lower_cases(["model"], ["[CLS]", "a", "##B"]) == (False, "a guess from the vocabulary")


def test_other_numbers_of_segments_and_positions(folder):
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "type_vocab_size": 4,
    }
    config = Bert(vocab_size=818, hidden_act="gelu_tanh", layer_norm_eps=1e-12, **sizes)
    weights = random_weights(config)
    edit(folder / "bert_config.json", **sizes)
    write(folder, weights)
    source = open_encoder(str(folder))
    assert (source.architecture, source.max_position_embeddings) == (config, 512)
    token_ids = np.random.default_rng(0).integers(0, 818, (1, 512)).astype(np.int32)
    segment_ids = (np.arange(512, dtype=np.int32) % 4)[None]
    given, pooled = load_encoder(source, layers=[1], pooler=True)(token_ids, np.array([512], np.int32), segment_ids)
    exact, exact_pooled = forward(config, in_float64(weights), token_ids[0], segment_ids[0])
    np.testing.assert_allclose(given[1], exact[1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(pooled[0], exact_pooled, rtol=0, atol=1e-5)


def test_more_blocks_than_the_checkpoint_could_have(folder):
    edit(folder / "bert_config.json", num_hidden_layers=2_000_000_000)
    assert "num_hidden_layers is 2,000,000,000, and the weights have no more than " in refused(folder)


@pytest.mark.parametrize("name", ["bert_config.json", "vocab.txt"])
def test_file_that_may_not_be_read(folder, name, monkeypatch):
    deny(monkeypatch, folder / name)
    assert refused(folder) == f"{folder}: {folder / name}: cannot be read: Permission denied"


def test_checkpoint_that_may_not_be_read(folder, monkeypatch):
    tf = import_tensorflow()

    def refuse(prefix: str) -> None:
        raise tf.errors.OpError(None, None, f"{prefix}.index; Permission denied", tf.errors.UNKNOWN)

    monkeypatch.setattr(tf.train, "load_checkpoint", refuse)
    assert refused(folder) == f"{folder}: {folder}/bert_model.ckpt.index: cannot be read: Permission denied"
