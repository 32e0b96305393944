"""Plain BERT, recognized by its graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from float_bounds import OF_TWO
from saved_models import (
    INPUTS,
    WORDS,
    PlainBert,
    assert_engines_agree,
    batch,
    gelu,
    gelu_tanh,
    quick_gelu,
    save,
    save_bert,
    tf,
)
from weights import refused

from layerbeam.transforms.encoders import load_encoder, open_encoder

pytestmark = pytest.mark.usefixtures("threads")


@pytest.mark.parametrize(
    ("differences", "hidden_act", "epsilon"),
    [
        ({"activations": [gelu_tanh, gelu_tanh], "epsilons": [1e-6]}, "gelu_tanh", 1e-6),
        ({"heads": True}, "gelu", 1e-12),
        ({"epsilons": [1e-2], "fused": True, "pooler": None}, "gelu", 1e-2),
    ],
    ids=["tanh", "erf", "fused"],
)
def test_plain_bert_is_told_by_its_graph(tmp_path, differences, hidden_act, epsilon):
    differences = {"activations": [gelu]} | differences
    folder = save_bert(tmp_path / "bert", **differences)
    source = open_encoder(str(folder))
    assert (source.engine, source.engine_because) == ("native", "variables and graph are plain BERT's")
    blocks = len(differences["activations"])
    assert source.architecture is not None
    assert (source.architecture.hidden_act, source.architecture.layer_norm_eps) == (hidden_act, epsilon)
    assert (source.architecture.num_hidden_layers, source.architecture.num_attention_heads) == (blocks, 2)
    assert (source.architecture.vocab_size, source.architecture.max_position_embeddings) == (10, 32)
    assert source.has_pooler == ("pooler" not in differences)
    assert_engines_agree(folder, pooler=source.has_pooler)


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        (
            {"activations": [tf.nn.relu]},
            "the activation in transformer/layer_0 is neither GELU (its graph has Relu there)",
        ),
        (
            {"activations": [gelu, quick_gelu]},
            "the activation in transformer/layer_1 is neither GELU (its graph has Mul, Sigmoid there)",
        ),
        ({"activations": [gelu, gelu_tanh]}, "its blocks have different activations"),
        (
            {"norm_first": True},
            "transformer/layer_0/self_attention/query does not read the output of embeddings/layer_norm (layer norm "
            "first?)",
        ),
        ({"epsilons": [1e-12, 1e-6]}, "its layer norms have the epsilons [1e-12, 1e-06], not one"),
        ({"pooler": tf.nn.relu}, "its pooler has no tanh"),
        ({"relative": True}, "the variable relative_attention_bias is none of plain BERT's"),
        ({"scale": 1.0}, "transformer/layer_0/self_attention does not show the scale 1/sqrt(8)"),
    ],
    ids=["relu", "quick gelu", "mixed", "norm first", "epsilons", "relu pooler", "relative", "scale"],
)
def test_near_berts_are_told_by_their_graph(tmp_path, differences, reason):
    differences = {"activations": [gelu]} | differences
    numbers = range(1, len(differences["activations"]) + 1)
    folder = save_bert(tmp_path / "bert", **differences)
    source = open_encoder(str(folder))
    assert (source.engine, source.engine_because, source.architecture) == ("savedmodel", reason, None)
    assert (source.layers, source.hidden_size, source.has_pooler) == (tuple(numbers), 16, True)
    assert source.max_position_embeddings == 32


def test_near_berts_are_called_as_they_are(tmp_path):
    differences = {"activations": [quick_gelu, tf.nn.relu], "epsilons": [1e-2, 1e-6], "pooler": tf.nn.relu}
    differences |= {"norm_first": True, "relative": True, "scale": 1.0}
    folder = save_bert(tmp_path / "bert", **differences)
    source = open_encoder(str(folder))
    assert refused(folder, engine="native") == (
        f"{folder}: engine native runs plain BERT only, and {source.engine_because}; take engine savedmodel"
    )
    encoder = load_encoder(source, layers=[1, 2], pooler=True)
    inputs = batch([3, 8], longest=8, vocab_size=len(WORDS))
    layers, pooled = encoder(*inputs)
    bert = PlainBert(**differences)
    for row, (start, length) in enumerate(((0, 3), (3, 8))):
        token_ids, segment_ids = inputs[0][row : row + 1, :length], inputs[2][row : row + 1, :length]
        alone = bert.call(dict(zip(INPUTS, (token_ids, np.ones_like(token_ids), segment_ids), strict=True)))
        for layer in (1, 2):
            exact = np.asarray(alone["encoder_outputs"][layer - 1])[0]
            np.testing.assert_allclose(layers[layer][start : start + length], exact, rtol=0, atol=OF_TWO)
        np.testing.assert_allclose(pooled[row], np.asarray(alone["pooled_output"])[0], rtol=0, atol=OF_TWO)


def test_fewer_outputs_than_blocks(tmp_path):
    def call(bert: PlainBert, inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = bert.call(inputs)
        return outputs | {"encoder_outputs": outputs["encoder_outputs"][1:]}

    source = open_encoder(str(save(tmp_path / "bert", call, toy=PlainBert(activations=[gelu] * 2))))
    assert (source.engine, source.engine_because) == ("savedmodel", "it has 2 blocks and 1 encoder_outputs")


def test_dropout_in_the_function_for_training(tmp_path):
    dropping = {"now": False}

    def drop(x: Any) -> Any:
        if not dropping["now"]:
            return gelu(x)
        return tf.nn.relu(tf.nn.experimental.stateless_dropout(tf.nn.dropout(x, 0.5), 0.5, [1, 2]))

    def call(self: PlainBert, inputs: dict[str, Any], training: bool = False) -> Any:
        dropping["now"] = training
        return self.call(inputs)

    bert = PlainBert(activations=[drop])
    folder = save(tmp_path / "bert", call, toy=bert, traced_with=[{"training": True}, {"training": False}])
    source = open_encoder(str(folder))
    assert (source.engine, source.engine_because) == ("native", "variables and graph are plain BERT's")
    assert source.architecture.hidden_act == "gelu"


# Damage.


def test_operations_that_tensorflow_does_not_have(folder):
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    path = folder / "saved_model.pb"
    saved = SavedModel.FromString(path.read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            node.op = "MySoftmax" if node.op == "Softmax" else node.op
    path.write_bytes(saved.SerializeToString())
    assert refused(folder, engine="savedmodel") == (
        f"{folder}: {path}: needs the operation MySoftmax, which TensorFlow does not have; take an encoder of "
        "TensorFlow's own operations"
    )
