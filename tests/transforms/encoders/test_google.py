from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from float_bounds import bounded_layers
from repository import DATA
from tampering import edit, flip
from weights import random_weights, read_checkpoint, refused, same_weights, write_checkpoint

from layerbeam.transforms.encoders import EncoderError, load_encoder, load_weights, open_encoder
from layerbeam.transforms.encoders.architectures import Bert
from layerbeam.transforms.hardware import import_tensorflow

UNCASED = DATA / "google_uncased"
CHECKPOINT = "bert_model.ckpt"

pytestmark = pytest.mark.usefixtures("threads")


def test_weights_are_those_of_the_checkpoint():
    source = open_encoder(str(UNCASED))
    theirs = read_checkpoint(UNCASED)
    weights = load_weights(source)
    assert {name: values.shape for name, values in weights.items()} == source.architecture.weight_shapes()
    assert len(weights) == 55
    # What is no part of the encoder is left where it is.
    assert sorted(set(theirs) - set(weights)) == ["cls/predictions/output_bias", "global_step"]
    for name, values in weights.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, theirs[name])


def test_heads_and_optimizer_are_left_out(folder):
    weights = read_checkpoint(folder)
    slots = {f"{name}/adam_{slot}": np.ones_like(weights[name]) for name in weights for slot in "mv"}
    heads = {"output_weights": np.ones((3, 64), np.float32), "output_bias": np.ones(3, np.float32)}
    write_checkpoint(folder, {**weights, **slots, **heads, "global_step": np.int64(343)})
    assert len(read_checkpoint(folder)) == 3 * 57 + 2
    assert open_encoder(str(folder)).has_pooler
    assert same_weights(folder, UNCASED)


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
    write_checkpoint(folder, read_checkpoint(folder, "model.ckpt-1000"), "model.ckpt-900")
    assert refused(folder) == (
        f"{folder}: {folder} holds several checkpoints (model.ckpt-1000, model.ckpt-900) and none is bert_model.ckpt: "
        "keep one"
    )
    write_checkpoint(folder, random_weights(source.architecture), CHECKPOINT)
    assert "bert_model.ckpt.index" in [Path(file).name for file in open_encoder(str(folder)).weight_files]
    assert not same_weights(folder, UNCASED)


def test_no_checkpoint(folder):
    (folder / "bert_model.ckpt.index").unlink()
    assert refused(folder) == (
        f"{folder}: {folder} has no bert_model.ckpt.index, which lists the weights: download it too"
    )


@pytest.mark.parametrize("place", [0, 1000, -1])
def test_a_flipped_byte_in_the_index(folder, place):
    flip(folder / "bert_model.ckpt.index", place)
    assert f"{folder / CHECKPOINT}.*: not a complete checkpoint (" in refused(folder)


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
    write_checkpoint(folder, weights)
    source = open_encoder(str(folder))
    assert (source.architecture, source.max_position_embeddings) == (config, 512)
    token_ids = np.random.default_rng(0).integers(0, 818, (1, 512)).astype(np.int32)
    segment_ids = (np.arange(512, dtype=np.int32) % 4)[None]
    given, pooled = load_encoder(source, layers=[1], pooler=True)(token_ids, np.array([512], np.int32), segment_ids)
    (_, expected), expected_pooled = bounded_layers(config, weights, token_ids, np.array([512]), segment_ids)
    expected.assert_allows(given[1])
    expected_pooled.assert_allows(pooled)


def test_checkpoint_that_may_not_be_read(folder, monkeypatch):
    tf = import_tensorflow()

    def refuse(prefix: str) -> None:
        raise tf.errors.OpError(None, None, f"{prefix}.index; Permission denied", tf.errors.UNKNOWN)

    monkeypatch.setattr(tf.train, "load_checkpoint", refuse)
    assert refused(folder) == f"{folder}: {folder}/bert_model.ckpt.index: cannot be read: Permission denied"
