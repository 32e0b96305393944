"""SavedModels as TF Hub exports them: what is read, and both engines."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from repository import DATA
from saved_models import CASED, UNCASED, WORDS, assert_engines_agree

from layerbeam.transforms.encoders import EncoderError, load_encoder, load_weights, open_encoder

pytestmark = pytest.mark.usefixtures("threads")


# What TF Hub's own exporter wrote.


@pytest.mark.parametrize(
    ("folder", "vocab_size", "lower_case"), [(UNCASED, 818, True), (CASED, 1445, False)], ids=["uncased", "cased"]
)
def test_what_is_in_the_folder(folder, vocab_size, lower_case):
    source = open_encoder(str(folder))
    described = source.describe()
    assert json.loads(json.dumps(described)) == described
    assert described | {"fingerprint": ""} == {
        "handle": str(folder),
        "architecture": "Bert",
        "tokenizer": "tensorflow_text",
        "kind": "savedmodel",
        "engine": "native",
        "engine_because": "variables and graph are plain BERT's",
        "fingerprint": "",
        "do_lower_case": lower_case,
        "casing_from": "do_lower_case of the SavedModel",
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
    assert source.folder == str(folder)
    assert [Path(file).name for file in source.weight_files] == [
        "saved_model.pb",
        "variables.data-00000-of-00001",
        "variables.index",
    ]
    assert pickle.loads(pickle.dumps(source)) == source


def test_the_other_engine_can_be_asked_for():
    native, called = open_encoder(str(UNCASED)), open_encoder(str(UNCASED), engine="savedmodel")
    assert (called.engine, called.engine_because) == ("savedmodel", "engine savedmodel was asked for")
    assert called.layers == (1, 2, 3)
    assert (called.architecture, called.fingerprint) == (native.architecture, native.fingerprint)
    assert (called.hidden_size, called.num_hidden_layers, called.max_position_embeddings) == (64, 3, 128)
    assert called.has_pooler
    assert pickle.loads(pickle.dumps(called)) == called
    assert native.unsupported_reason([0, 3], pooler=True) is None
    assert called.unsupported_reason([0, 3], pooler=True) == (
        "a SavedModel does not give layer 0, the embedding layer's output; it gives layers 1 to 3; engine native has it"
    )
    assert called.unsupported_reason([4], pooler=True) == "there is no layer 4; it gives layers 1 to 3"
    with pytest.raises(EncoderError, match="does not give layer 0"):
        load_encoder(called, layers=[0], pooler=False)


@pytest.mark.parametrize("folder", [UNCASED, CASED], ids=["uncased", "cased"])
def test_both_engines_agree(folder):
    assert_engines_agree(folder)


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_weights_are_those_of_the_same_encoder_in_googles_layout(casing):
    theirs = load_weights(open_encoder(str(DATA / f"google_{casing}")))
    weights = load_weights(open_encoder(str(DATA / f"tfhub_{casing}")))
    assert len(weights) == 55
    assert sorted(weights) == sorted(theirs)
    for name, values in weights.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, theirs[name])
    same = load_weights(open_encoder(str(DATA / f"tfhub_{casing}"), engine="savedmodel"))
    assert list(same) == list(weights)
    np.testing.assert_array_equal(same["bert/pooler/dense/bias"], weights["bert/pooler/dense/bias"])


def test_a_setting_goes_before_what_the_model_says():
    source = open_encoder(str(UNCASED), do_lower_case=False)
    assert (source.do_lower_case, source.casing_from) == (False, "the setting")


def test_other_files_than_when_it_was_opened(folder):
    source = open_encoder(str(folder))
    (folder / "assets" / "vocab.txt").write_text("\n".join(WORDS))
    with pytest.raises(EncoderError, match="has changed since the run was started"):
        load_encoder(source, layers=[1], pooler=False)
