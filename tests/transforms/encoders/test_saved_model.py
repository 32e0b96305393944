"""SavedModels as TF Hub exports them: what is read, and both engines."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from repository import DATA
from saved_models import UNCASED, WORDS, assert_engines_agree

from layerbeam.transforms.encoders import EncoderError, load_encoder, load_weights, open_encoder

pytestmark = pytest.mark.usefixtures("threads")


# What TF Hub's own exporter wrote.


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


def test_both_engines_agree():
    assert_engines_agree(UNCASED)


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


def test_other_files_than_when_it_was_opened(folder):
    source = open_encoder(str(folder))
    (folder / "assets" / "vocab.txt").write_text("\n".join(WORDS))
    with pytest.raises(EncoderError, match="has changed since the run was started"):
        load_encoder(source, layers=[1], pooler=False)
