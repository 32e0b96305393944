from __future__ import annotations

import json
import math
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, deny, flip, refused

from layerbeam.transforms.encoders import EncoderError, EncoderSource, load_encoder, load_weights, open_encoder
from layerbeam.transforms.hardware import Hardware, import_tensorflow, load_tensorflow

tf = import_tensorflow()

UNCASED = DATA / "tfhub_uncased"
CASED = DATA / "tfhub_cased"

INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##d", "e")


@pytest.fixture(autouse=True, scope="module")
def _threads():
    load_tensorflow(Hardware(2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the small encoder, to be spoiled."""
    return Path(shutil.copytree(UNCASED, tmp_path / "encoder"))


def batch(lengths: Sequence[int], *, longest: int, vocab_size: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Random token ids [B, S], lengths [B], and segment ids [B, S], the second half's 1.

    Padded with 3, and 0 is among the tokens: the lengths alone say what is real.
    """
    random = np.random.default_rng(seed)
    real = np.arange(longest) < np.array(lengths)[:, None]
    second = np.arange(longest) >= (np.array(lengths) // 2)[:, None]
    token_ids = np.where(real, random.integers(0, vocab_size, real.shape), 3)
    token_ids[0, 0] = 0
    return token_ids.astype(np.int32), np.array(lengths, np.int32), (second & real).astype(np.int32)


def assert_engines_agree(folder: Path, *, pooler: bool = True) -> None:
    """Both engines give the same on every layer and for the pooled output, to rounding."""
    native, called = (open_encoder(str(folder), engine=engine) for engine in ("native", "savedmodel"))
    assert (native.engine, called.engine) == ("native", "savedmodel")
    layers = range(1, native.num_hidden_layers + 1)
    assert called.layers == tuple(layers)
    one, other = (load_encoder(source, layers=layers, pooler=pooler) for source in (native, called))
    for lengths, longest in (([7], 7), ([3, 12, 1, 9], 12), ([5, 2], 16)):
        inputs = batch(lengths, longest=longest, vocab_size=len(native.vocabulary))
        (expected, pooled), (got, got_pooled) = one(*inputs), other(*inputs)
        assert list(got) == list(layers)
        for layer in layers:
            assert got[layer].dtype == np.float32
            assert got[layer].shape == (sum(lengths), native.hidden_size)
            np.testing.assert_allclose(got[layer], expected[layer], rtol=0, atol=1e-5)
        if pooler:
            assert got_pooled.shape == (len(lengths), native.hidden_size)
            np.testing.assert_allclose(got_pooled, pooled, rtol=0, atol=1e-5)
        else:
            assert (pooled, got_pooled) == (None, None)


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
    assert (called.config, called.fingerprint) == (native.config, native.fingerprint)
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
    same = load_weights(open_encoder(str(DATA / f"tfhub_{casing}"), engine="savedmodel"), ["bert/pooler/dense/bias"])
    assert list(same) == ["bert/pooler/dense/bias"]
    np.testing.assert_array_equal(same["bert/pooler/dense/bias"], weights["bert/pooler/dense/bias"])


def test_a_setting_goes_before_what_the_model_says():
    source = open_encoder(str(UNCASED), do_lower_case=False)
    assert (source.do_lower_case, source.casing_from) == (False, "the setting")


def test_other_files_than_when_it_was_opened(folder):
    source = open_encoder(str(folder))
    (folder / "assets" / "vocab.txt").write_text("\n".join(WORDS))
    with pytest.raises(EncoderError, match="has changed since the run was started"):
        load_encoder(source, layers=[1], pooler=False)


# Other SavedModels: a small module with a formula of its own, called as it is.

HIDDEN = 6
BLOCKS = 3
TABLE = np.random.default_rng(1).normal(0, 1, (len(WORDS), HIDDEN)).astype(np.float32)
TYPES = np.random.default_rng(2).normal(0, 1, (2, HIDDEN)).astype(np.float32)
KERNEL = np.random.default_rng(3).normal(0, 1, (HIDDEN, HIDDEN)).astype(np.float32)


def spec(name: str | None, dtype: str = "int32") -> Any:
    return tf.TensorSpec([None, None], dtype, name=name)


BY_NAME = [{name: spec(name) for name in INPUTS}]


class Toy(tf.Module):
    """Layer k is tanh(k * (word + type) + mean over the real tokens); pooled is the last one's first token @ kernel."""

    def __init__(self, *, blocks: int = BLOCKS, table_name: str = "table") -> None:
        super().__init__()
        self.blocks = blocks
        self.table = tf.Variable(TABLE, name=table_name)
        self.types = tf.Variable(TYPES, name="types")
        self.kernel = tf.Variable(KERNEL, name="kernel")

    def layers(self, inputs: dict[str, Any]) -> list[Any]:
        words, mask, types = (inputs[name] for name in INPUTS)
        both = tf.gather(self.table, words) + tf.gather(self.types, types)
        real = tf.cast(mask, tf.float32)[:, :, None]
        mean = tf.reduce_sum(both * real, 1, keepdims=True) / tf.reduce_sum(real, 1, keepdims=True)
        return [tf.tanh(index * both + mean) for index in range(1, self.blocks + 1)]

    def pool(self, layers: list[Any]) -> Any:
        return layers[-1][:, 0] @ self.kernel


def expected_layer(number: int, token_ids: np.ndarray, segment_ids: np.ndarray) -> np.ndarray:
    both = TABLE[token_ids] + TYPES[segment_ids]
    return np.tanh(number * both + both.mean(0))


def named(toy: Toy, inputs: dict[str, Any], encoder_outputs: Callable[[list[Any]], Any] = list) -> dict[str, Any]:
    layers = toy.layers(inputs)
    return {
        "sequence_output": layers[-1],
        "pooled_output": toy.pool(layers),
        "default": toy.pool(layers),
        "encoder_outputs": encoder_outputs(layers),
    }


def save(
    folder: Path,
    call: Callable[..., Any] = named,
    signature: Sequence[Any] = BY_NAME,
    *,
    toy: Toy | None = None,
    lower_case: bool | None = True,
    vocabulary: str | None = "vocab_file",
    traced_with: Sequence[dict[str, Any]] = (),
    only_signature: bool = False,
) -> Path:
    """Write a SavedModel whose call is `call(toy, *inputs)`.

    `traced_with`: keyword arguments for which it is traced, in this order, in place of a fixed signature.
    """
    toy = toy or Toy()

    def bound(*inputs: Any) -> Any:
        return call(toy, *inputs)

    # With its own parameters, after which TensorFlow names what is not named.
    own = call.__get__(toy) if traced_with or len(signature) > 1 else bound
    function = tf.function(own, input_signature=None if traced_with else signature, autograph=False)
    for arguments in traced_with:
        function.get_concrete_function(*signature, **arguments)
    if vocabulary is not None:
        path = folder.parent / ("vocab.txt" if vocabulary == "vocab_file" else "30k-clean.model")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(WORDS))
        setattr(toy, vocabulary, tf.saved_model.Asset(str(path)))
    if lower_case is not None:
        toy.do_lower_case = tf.Variable(lower_case, trainable=False, name="do_lower_case")
    if not only_signature:
        toy.__call__ = function
    signatures = {"serving_default": function.get_concrete_function()} if only_signature else None
    tf.saved_model.save(toy, str(folder), signatures=signatures)
    return folder


def assert_runs(folder: Path, *, layers: Sequence[int] = (1, 2, 3), pooler: bool = True) -> EncoderSource:
    """The model is taken as it is and gives what the formula gives, whatever the padding."""
    source = open_encoder(str(folder))
    assert (source.kind, source.engine, source.config) == ("savedmodel", "savedmodel", None)
    assert source.layers == tuple(layers)
    assert (source.hidden_size, source.num_hidden_layers) == (HIDDEN, max(layers))
    assert source.has_pooler == pooler
    assert source.vocabulary == WORDS
    assert pickle.loads(pickle.dumps(source)) == source
    wanted = list(reversed(layers))
    encoder = load_encoder(source, layers=wanted, pooler=pooler)
    assert encoder.pad_id == 0
    for lengths, longest in (([4], 4), ([3, 1, 6], 6), ([3, 1, 6], 20)):
        token_ids, sizes, segment_ids = batch(lengths, longest=longest, vocab_size=len(WORDS))
        rows = list(zip(token_ids, segment_ids, lengths, strict=True))
        assert any(segments.any() for _, segments, _ in rows)
        given, pooled = encoder(token_ids, sizes, segment_ids)
        assert list(given) == wanted
        for layer, got in given.items():
            number = BLOCKS if source.layers == (source.num_hidden_layers,) else layer
            exact = np.concatenate([expected_layer(number, ids[:n], segments[:n]) for ids, segments, n in rows])
            assert (got.dtype, got.shape) == (np.float32, exact.shape)
            np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5)
        if not pooler:
            assert pooled is None
            continue
        last = max(layers) if len(layers) > 1 else BLOCKS
        firsts = np.stack([expected_layer(last, ids[:n], segments[:n])[0] for ids, segments, n in rows])
        assert (pooled.dtype, pooled.shape) == (np.float32, (len(rows), HIDDEN))
        np.testing.assert_allclose(pooled, firsts @ KERNEL, rtol=0, atol=1e-5)
    return source


@pytest.mark.parametrize("form", [list, tuple], ids=["list", "tuple"])
def test_encoder_outputs_in_a_row(tmp_path, form):
    source = assert_runs(save(tmp_path / "toy", lambda toy, inputs: named(toy, inputs, form)))
    assert source.engine_because == "the variable table is none of plain BERT's"
    assert (source.do_lower_case, source.casing_from) == (True, "do_lower_case of the SavedModel")
    assert source.max_position_embeddings is None
    assert source.unsupported_reason([0], pooler=True) == (
        "a SavedModel does not give layer 0, the embedding layer's output; it gives layers 1 to 3"
    )
    with pytest.raises(EncoderError, match=r"the variable table is none of plain BERT's, so its weights have no names"):
        load_weights(source)


def test_encoder_outputs_by_number_not_by_alphabet(tmp_path):
    def call(toy: Toy, inputs: dict[str, Any]) -> dict[str, Any]:
        return named(toy, inputs, lambda layers: {f"layer_{number}": value for number, value in enumerate(layers, 1)})

    assert_runs(save(tmp_path / "toy", call, toy=Toy(blocks=12)), layers=range(1, 13))


def test_encoder_outputs_without_sequence_output(tmp_path):
    def call(toy: Toy, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in named(toy, inputs).items() if name != "sequence_output"}

    assert_runs(save(tmp_path / "toy", call))


def test_only_a_signature_with_flat_names(tmp_path):
    def call(toy: Toy, inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = named(toy, inputs)
        layers = outputs.pop("encoder_outputs")
        return outputs | {f"encoder_outputs_{index}": layer for index, layer in enumerate(layers)}

    folder = save(tmp_path / "toy", call, toy=Toy(blocks=12), only_signature=True)
    assert_runs(folder, layers=range(1, 13))


@pytest.mark.parametrize("form", [list, tuple], ids=["list", "tuple"])
def test_three_unnamed_inputs_and_two_unnamed_outputs(tmp_path, form):
    def call(toy: Toy, inputs: Sequence[Any]) -> Any:
        layers = toy.layers(dict(zip(INPUTS, inputs, strict=True)))
        return form([toy.pool(layers), layers[-1]])

    folder = save(tmp_path / "toy", call, [form([spec(None)] * 3)])
    source = assert_runs(folder, layers=[1])
    assert source.unsupported_reason([1, 2], pooler=True) == (
        "the SavedModel has no encoder_outputs: it gives its last layer, -1, and the pooled output, not layer 2"
    )


def test_inputs_one_after_the_other_go_by_their_names(tmp_path):
    def call(self: Toy, input_type_ids: Any, input_word_ids: Any, input_mask: Any) -> Any:
        return named(
            self, {"input_type_ids": input_type_ids, "input_word_ids": input_word_ids, "input_mask": input_mask}
        )

    assert_runs(save(tmp_path / "toy", call, [spec(None)] * 3))


def test_other_number_types(tmp_path):
    types = {"input_word_ids": "int64", "input_mask": "float32", "input_type_ids": "int64"}
    assert_runs(save(tmp_path / "toy", signature=[{name: spec(name, dtype) for name, dtype in types.items()}]))


@pytest.mark.parametrize("order", [(True, False), (False, True)])
@pytest.mark.parametrize("keyword_only", [False, True])
def test_the_function_for_training_is_left_alone(tmp_path, order, keyword_only):
    def scaled(toy: Toy, inputs: dict[str, Any], training: bool) -> Any:
        return tf.nest.map_structure(lambda value: value * (100.0 if training else 1.0), named(toy, inputs))

    def either(self: Toy, inputs: dict[str, Any], training: bool = False, mask: Any = None) -> Any:
        return scaled(self, inputs, training)

    def by_keyword(self: Toy, inputs: dict[str, Any], *, training: bool = False) -> Any:
        return scaled(self, inputs, training)

    call = by_keyword if keyword_only else either
    assert_runs(save(tmp_path / "toy", call, traced_with=[{"training": training} for training in order]))


def test_only_for_training(tmp_path):
    def call(self: Toy, inputs: dict[str, Any], training: bool) -> Any:
        return named(self, inputs)

    folder = save(tmp_path / "toy", call, traced_with=[{"training": True}])
    assert "does not speak TF Hub's interface for text encoders: __call__: it is the function for training" in refused(
        folder
    )


def test_without_encoder_outputs(tmp_path):
    def call(toy: Toy, inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = named(toy, inputs)
        return {name: outputs[name] for name in ("sequence_output", "pooled_output")}

    # The number of blocks is told by the names of the variables.
    folder = save(tmp_path / "toy", call, toy=Toy(table_name="transformer/layer_4/table"))
    source = assert_runs(folder, layers=[5])
    assert source.engine_because == "the variable transformer/layer_4/table is none of plain BERT's"
    reason = "the SavedModel has no encoder_outputs: it gives its last layer, -1, and the pooled output, not layer 3"
    assert source.unsupported_reason([3, 5], pooler=True) == reason
    with pytest.raises(EncoderError) as caught:
        load_encoder(source, layers=[3, 5], pooler=True)
    assert str(caught.value) == f"{folder}: {reason}"


def test_without_pooled_output(tmp_path):
    def call(toy: Toy, inputs: dict[str, Any]) -> dict[str, Any]:
        layers = toy.layers(inputs)
        return {"sequence_output": layers[-1], "encoder_outputs": layers}

    source = assert_runs(save(tmp_path / "toy", call), pooler=False)
    with pytest.raises(EncoderError, match="it has no pooled output"):
        load_encoder(source, layers=[1], pooler=True)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda layers, pooled: layers, "which of its outputs 0, 1, 2 is which cannot be seen; name them"),
        (
            lambda layers, pooled: {"one": layers[0], "other": layers[1]},
            "which of its outputs one, other is which cannot be seen; name them",
        ),
        (
            lambda layers, pooled: {"encoder_outputs": dict(zip(["first", "second", "third"], layers, strict=True))},
            "the order of its outputs encoder_outputs.first, encoder_outputs.second, encoder_outputs.third is not to "
            "be seen; number them",
        ),
        (
            lambda layers, pooled: {"default": pooled},
            "its outputs are default; needed is sequence_output or encoder_outputs, [batch, tokens, size]",
        ),
        (
            lambda layers, pooled: {
                "sequence_output": tf.raw_ops.PlaceholderWithDefault(input=layers[0], shape=[None, None, None])
            },
            "its output sequence_output has no fixed last dimension; export it with one",
        ),
        (
            lambda layers, pooled: {
                "sequence_output": tf.raw_ops.PlaceholderWithDefault(input=layers[0], shape=tf.TensorShape(None))
            },
            "its output sequence_output has no fixed last dimension; export it with one",
        ),
    ],
    ids=["list", "names", "unnumbered", "pooled only", "unknown size", "unknown rank"],
)
def test_outputs_that_cannot_be_used(tmp_path, outputs, message):
    def call(toy: Toy, inputs: dict[str, Any]) -> Any:
        layers = toy.layers(inputs)
        return outputs(layers, toy.pool(layers))

    folder = save(tmp_path / "toy", call)
    # The signature's names for a list are output_0, ...: only the call shows it as a list.
    assert (
        f"{folder / 'saved_model.pb'}: does not speak TF Hub's interface for text encoders: __call__: {message}"
    ) in refused(folder)


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (("ids", "mask"), "ids, mask"),
        # As transformers names them: three, but in a dict the order says nothing.
        (("input_ids", "attention_mask", "token_type_ids"), "attention_mask, input_ids, token_type_ids"),
        ((*INPUTS, "extra"), "extra, input_mask, input_type_ids, input_word_ids"),
    ],
)
def test_inputs_that_cannot_be_used(tmp_path, names, listed):
    def call(toy: Toy, inputs: dict[str, Any]) -> Any:
        return {"sequence_output": tf.gather(toy.table, inputs[names[0]])}

    folder = save(tmp_path / "toy", call, [{name: spec(name) for name in names}])
    assert (
        f"{folder / 'saved_model.pb'}: does not speak TF Hub's interface for text encoders: __call__: its inputs are "
        f"{listed}; needed are input_word_ids, input_mask, input_type_ids"
    ) in refused(folder)


def test_text_in_place_of_ids(tmp_path):
    def call(toy: Toy, texts: Any) -> Any:
        return {"default": tf.gather(toy.table, tf.strings.length(texts))}

    folder = save(tmp_path / "toy", call, [tf.TensorSpec([None], tf.string, name="texts")])
    assert "__call__: its inputs are texts; needed are input_word_ids, input_mask, input_type_ids" in refused(folder)


def test_no_function(tmp_path):
    toy = Toy()
    tf.saved_model.save(toy, str(tmp_path / "toy"))
    assert "saved_model.pb: does not speak TF Hub's interface for text encoders: it has no function" in refused(
        tmp_path / "toy"
    )


def test_several_variables_of_one_name(tmp_path):
    toy = Toy()
    toy.kernel = tf.Variable(KERNEL, name="table")
    source = assert_runs(save(tmp_path / "toy", toy=toy))
    assert source.engine_because == "several of its variables are called table"


def test_sentencepiece_is_refused_by_name(tmp_path):
    message = refused(save(tmp_path / "toy", vocabulary="sp_model_file"))
    assert message.endswith(
        ": it has sp_model_file (assets/30k-clean.model), a SentencePiece model, as ALBERT has; only WordPiece "
        "(vocab_file) is known here: take a BERT"
    )


def test_no_vocabulary(tmp_path):
    folder = save(tmp_path / "toy", vocabulary=None)
    assert refused(folder) == (
        f"{folder}: {folder} has no vocabulary: neither an attribute vocab_file nor assets/vocab.txt; put the "
        "vocab.txt that the model was trained with into its assets folder"
    )
    (folder / "assets").mkdir(exist_ok=True)
    (folder / "assets" / "vocab.txt").write_text("\n".join(WORDS))
    assert_runs(folder)


def test_modules_of_tensorflow_1(tmp_path, folder):
    (folder / "tfhub_module.pb").write_bytes(b"\x08\x03")
    assert f"{folder} is a module of TensorFlow 1 (tfhub_module.pb); take a newer version" in refused(folder)


@pytest.mark.parametrize(
    ("name", "said", "setting", "expected"),
    [
        ("bert-cased", True, None, (True, "do_lower_case of the SavedModel")),
        ("bert-uncased", False, None, (False, "do_lower_case of the SavedModel")),
        ("bert-cased", None, None, (False, "the name bert-cased")),
        ("bert", None, None, (True, "a guess from the vocabulary")),
        ("bert-uncased", True, False, (False, "the setting")),
    ],
)
def test_order_of_the_sources_of_casing(tmp_path, name, said, setting, expected):
    source = open_encoder(str(save(tmp_path / name, lower_case=said)), do_lower_case=setting)
    assert (source.do_lower_case, source.casing_from) == expected


def test_engines_that_do_not_fit(tmp_path):
    folder = save(tmp_path / "toy")
    assert refused(folder, engine="native") == (
        f"{folder}: engine native runs plain BERT only, and the variable table is none of plain BERT's; take engine "
        "savedmodel"
    )
    assert refused(folder, engine="keras") == f"{folder}: engine is 'keras'; allowed: auto, native, savedmodel"
    for other in ("google_uncased", "hf_uncased"):
        assert refused(DATA / other, engine="savedmodel").endswith(
            f": engine savedmodel needs a SavedModel, and {DATA / other} has no saved_model.pb"
        )


# A plain BERT in TensorFlow, with the exporter's names for variables and nodes, and ways not to be one.

SIZE, HEADS, INNER, POSITIONS = 16, 2, 24, 32


class PlainBert(tf.Module):
    """Source: Devlin et al., https://arxiv.org/abs/1810.04805. Each argument is a way to differ."""

    def __init__(
        self,
        *,
        activations: Sequence[Callable[[Any], Any]],
        epsilons: Sequence[float] = (1e-12,),
        fused: bool = False,
        norm_first: bool = False,
        scale: float = 1 / math.sqrt(SIZE // HEADS),
        pooler: Callable[[Any], Any] | None = tf.tanh,
        relative: bool = False,
        heads: bool = False,
    ) -> None:
        super().__init__()
        self._activations, self._epsilons, self._fused = activations, list(epsilons), fused
        self._norm_first, self._scale, self._pooler = norm_first, scale, pooler
        random = np.random.default_rng(4)
        self.weights = {}
        per_head = SIZE // HEADS

        def add(name: str, *shape: int, around: float = 0.0) -> None:
            values = random.normal(around, 0.3, shape).astype(np.float32)
            self.weights[name] = tf.Variable(values, name=name)

        add("word_embeddings/embeddings", len(WORDS), SIZE)
        add("position_embedding/embeddings", POSITIONS, SIZE)
        add("type_embeddings/embeddings", 2, SIZE)
        norms = ["embeddings/layer_norm"]
        for index in range(len(activations)):
            block = f"transformer/layer_{index}"
            for part in ("query", "key", "value"):
                add(f"{block}/self_attention/{part}/kernel", SIZE, HEADS, per_head)
                add(f"{block}/self_attention/{part}/bias", HEADS, per_head)
            add(f"{block}/self_attention/attention_output/kernel", HEADS, per_head, SIZE)
            add(f"{block}/self_attention/attention_output/bias", SIZE)
            add(f"{block}/intermediate/kernel", SIZE, INNER)
            add(f"{block}/intermediate/bias", INNER)
            add(f"{block}/output/kernel", INNER, SIZE)
            add(f"{block}/output/bias", SIZE)
            norms += [f"{block}/self_attention_layer_norm", f"{block}/output_layer_norm"]
        for norm in norms:
            add(f"{norm}/gamma", SIZE, around=1.0)
            add(f"{norm}/beta", SIZE)
        if pooler:
            add("pooler_transform/kernel", SIZE, SIZE)
            add("pooler_transform/bias", SIZE)
        if relative:
            add("relative_attention_bias", HEADS, 1, 1)
        if heads:
            # No part of what encodes: another task's.
            add("predictions/transform/kernel", SIZE, SIZE)
        self._epsilon_of = {norm: self._epsilons[index % len(self._epsilons)] for index, norm in enumerate(norms)}

    def _dense(self, name: str, equation: str, x: Any) -> Any:
        with tf.name_scope(f"{name}/"):
            return tf.einsum(equation, x, self.weights[f"{name}/kernel"]) + self.weights[f"{name}/bias"]

    def _norm(self, name: str, x: Any) -> Any:
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        epsilon = self._epsilon_of[name]
        with tf.name_scope(f"{name}/"):
            if self._fused:
                rows = tf.reshape(x, [1, -1, SIZE, 1])
                ones = tf.ones([tf.shape(rows)[1]])
                normal, *_ = tf.compat.v1.nn.fused_batch_norm(
                    rows, ones, tf.zeros_like(ones), epsilon=epsilon, data_format="NCHW"
                )
                return tf.reshape(normal, tf.shape(x)) * gamma + beta
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)

    def _attend(self, attention: str, x: Any, mask: Any) -> Any:
        query, key, value = (
            self._dense(f"{attention}/{part}", "bsh,hnd->bsnd", x) for part in ("query", "key", "value")
        )
        with tf.name_scope(f"{attention}/"):
            scores = tf.einsum("bsnd,btnd->bnst", query * self._scale, key) + (1 - mask)[:, None, None] * -1e9
            if "relative_attention_bias" in self.weights:
                scores += self.weights["relative_attention_bias"] * tf.range(tf.shape(x)[1], dtype=tf.float32)
            context = tf.einsum("bnst,btnd->bsnd", tf.nn.softmax(scores), value)
        return self._dense(f"{attention}/attention_output", "bsnd,ndh->bsh", context)

    def _block(self, index: int, x: Any, mask: Any) -> Any:
        block = f"transformer/layer_{index}"

        def feed(x: Any) -> Any:
            inner = self._dense(f"{block}/intermediate", "bsh,hi->bsi", x)
            with tf.name_scope(f"{block}/activation/"):
                inner = self._activations[index](inner)
            return self._dense(f"{block}/output", "bsi,ih->bsh", inner)

        if self._norm_first:
            x += self._attend(f"{block}/self_attention", self._norm(f"{block}/self_attention_layer_norm", x), mask)
            return x + feed(self._norm(f"{block}/output_layer_norm", x))
        attended = self._attend(f"{block}/self_attention", x, mask)
        x = self._norm(f"{block}/self_attention_layer_norm", x + attended)
        return self._norm(f"{block}/output_layer_norm", x + feed(x))

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        words, mask, types = (inputs[name] for name in INPUTS)
        x = tf.gather(self.weights["word_embeddings/embeddings"], words)
        x += tf.gather(self.weights["type_embeddings/embeddings"], types)
        x += self.weights["position_embedding/embeddings"][: tf.shape(words)[1]]
        layers = [self._norm("embeddings/layer_norm", x)]
        for index in range(len(self._activations)):
            layers.append(self._block(index, layers[-1], tf.cast(mask, tf.float32)))
        outputs = {"sequence_output": layers[-1], "encoder_outputs": layers[1:]}
        if self._pooler:
            pooled = self._dense("pooler_transform", "bh,hk->bk", layers[-1][:, 0])
            with tf.name_scope("pooler_transform/"):
                outputs["pooled_output"] = self._pooler(pooled)
        return outputs


def gelu(x: Any) -> Any:
    return tf.nn.gelu(x, approximate=False)


def gelu_tanh(x: Any) -> Any:
    return tf.nn.gelu(x, approximate=True)


def quick_gelu(x: Any) -> Any:
    return x * tf.sigmoid(1.702 * x)


def save_bert(folder: Path, **differences: Any) -> Path:
    bert = PlainBert(**{"activations": [gelu, gelu]} | differences)
    return save(folder, lambda bert, inputs: bert.call(inputs), toy=bert)


@pytest.mark.parametrize(
    ("differences", "hidden_act", "epsilon"),
    [
        ({"activations": [gelu_tanh, gelu_tanh]}, "gelu_tanh", 1e-12),
        ({"activations": [gelu]}, "gelu", 1e-12),
        ({"epsilons": [1e-6]}, "gelu", 1e-6),
        ({"epsilons": [1e-3]}, "gelu", 1e-3),
        ({"epsilons": [1e-2], "fused": True}, "gelu", 1e-2),
        ({"heads": True}, "gelu", 1e-12),
    ],
    ids=["tanh", "erf", "1e-6", "1e-3", "fused", "heads"],
)
def test_plain_bert_is_told_by_its_graph(tmp_path, differences, hidden_act, epsilon):
    folder = save_bert(tmp_path / "bert", **differences)
    source = open_encoder(str(folder))
    assert (source.engine, source.engine_because) == ("native", "variables and graph are plain BERT's")
    blocks = len(differences.get("activations", "ab"))
    assert source.config is not None
    assert (source.config.hidden_act, source.config.layer_norm_eps) == (hidden_act, epsilon)
    assert (source.config.num_hidden_layers, source.config.num_attention_heads) == (blocks, 2)
    assert (source.config.vocab_size, source.config.max_position_embeddings) == (10, 32)
    assert_engines_agree(folder)


def test_plain_bert_without_pooler(tmp_path):
    folder = save_bert(tmp_path / "bert", pooler=None)
    source = open_encoder(str(folder))
    assert (source.engine, source.has_pooler) == ("native", False)
    assert_engines_agree(folder, pooler=False)


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        (
            {"activations": [tf.nn.relu] * 2},
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
        ({"pooler": tf.identity}, "its pooler has no tanh"),
        ({"pooler": tf.nn.relu}, "its pooler has no tanh"),
        ({"relative": True}, "the variable relative_attention_bias is none of plain BERT's"),
        ({"scale": 1.0}, "transformer/layer_0/self_attention does not show the scale 1/sqrt(8)"),
    ],
    ids=["relu", "quick gelu", "mixed", "norm first", "epsilons", "linear", "relu pooler", "relative", "scale"],
)
def test_near_berts_are_called_as_they_are(tmp_path, differences, reason):
    folder = save_bert(tmp_path / "bert", **differences)
    source = open_encoder(str(folder))
    assert (source.engine, source.engine_because, source.config) == ("savedmodel", reason, None)
    assert (source.layers, source.hidden_size, source.has_pooler) == ((1, 2), 16, True)
    assert source.max_position_embeddings == 32
    assert f"engine native runs plain BERT only, and {reason}; take engine savedmodel" in refused(
        folder, engine="native"
    )
    encoder = load_encoder(source, layers=[1, 2], pooler=True)
    inputs = batch([3, 8], longest=8, vocab_size=len(WORDS))
    layers, pooled = encoder(*inputs)
    bert = PlainBert(**{"activations": [gelu, gelu]} | differences)
    for row, (start, length) in enumerate(((0, 3), (3, 8))):
        token_ids, segment_ids = inputs[0][row : row + 1, :length], inputs[2][row : row + 1, :length]
        alone = bert.call(dict(zip(INPUTS, (token_ids, np.ones_like(token_ids), segment_ids), strict=True)))
        for layer in (1, 2):
            exact = np.asarray(alone["encoder_outputs"][layer - 1])[0]
            np.testing.assert_allclose(layers[layer][start : start + length], exact, rtol=0, atol=1e-5)
        np.testing.assert_allclose(pooled[row], np.asarray(alone["pooled_output"])[0], rtol=0, atol=1e-5)


def test_fewer_outputs_than_blocks(tmp_path):
    def call(bert: PlainBert, inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = bert.call(inputs)
        return outputs | {"encoder_outputs": outputs["encoder_outputs"][1:]}

    source = open_encoder(str(save(tmp_path / "bert", call, toy=PlainBert(activations=[gelu] * 3))))
    assert (source.engine, source.engine_because) == ("savedmodel", "it has 3 blocks and 2 encoder_outputs")


@pytest.mark.parametrize("stateless", [False, True])
def test_dropout_in_the_function_for_training(tmp_path, stateless):
    dropping = {"now": False}

    def drop(x: Any) -> Any:
        if not dropping["now"]:
            return gelu(x)
        dropped = tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2]) if stateless else tf.nn.dropout(x, 0.5)
        return tf.nn.relu(dropped)

    def call(self: PlainBert, inputs: dict[str, Any], training: bool = False) -> Any:
        dropping["now"] = training
        return self.call(inputs)

    bert = PlainBert(activations=[drop, drop])
    folder = save(tmp_path / "bert", call, toy=bert, traced_with=[{"training": True}, {"training": False}])
    source = open_encoder(str(folder))
    assert (source.engine, source.engine_because) == ("native", "variables and graph are plain BERT's")
    assert_engines_agree(folder)


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


@pytest.mark.parametrize("content", [b"\xff" * 100, b"not a model", "half", "all but one byte"])
def test_graph_that_is_none(folder, content):
    path = folder / "saved_model.pb"
    whole = path.read_bytes()
    if isinstance(content, str):
        content = whole[: len(whole) // 2 if content == "half" else -1]
    path.write_bytes(content)
    message = refused(folder)
    assert f"{path}: is not a SavedModel (" in message
    assert message.endswith("download it again")


def test_empty_graph(folder):
    (folder / "saved_model.pb").write_bytes(b"")
    assert f"{folder / 'saved_model.pb'}: holds no objects of TensorFlow 2; take a newer version" in refused(folder)


@pytest.mark.parametrize("keep", [None, 0, 1000, -1])
def test_index_that_is_not_whole(folder, keep):
    path = folder / "variables" / "variables.index"
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    message = refused(folder)
    assert f"{folder / 'variables' / 'variables'}.*: not a complete checkpoint (" in message
    assert message.endswith("download it again")


@pytest.mark.parametrize("keep", [None, 0, 1000, -1])
@pytest.mark.parametrize("engine", ["native", "savedmodel"])
def test_data_that_is_not_whole(folder, keep, engine):
    path = folder / "variables" / "variables.data-00000-of-00001"
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    message = refused(folder, engine=engine)
    assert (
        f"{folder / 'variables' / 'variables'}: the variable _CHECKPOINTABLE_OBJECT_GRAPH cannot be read (" in message
    )
    assert message.endswith("download it again")


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (0, "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"),
        (1000, "variables/0/.ATTRIBUTES/VARIABLE_VALUE"),
        (-50_000, r"variables/\d+/.ATTRIBUTES/VARIABLE_VALUE"),
        (-1, "_CHECKPOINTABLE_OBJECT_GRAPH"),
    ],
)
@pytest.mark.parametrize("engine", ["native", "savedmodel"])
def test_a_flipped_byte(folder, place, key, engine):
    flip(folder / "variables" / "variables.data-00000-of-00001", place)
    with pytest.raises(EncoderError, match=f"the variable {key} cannot be read .*[Cc]hecksum"):
        open_encoder(str(folder), engine=engine)


def test_variables_of_another_model(folder):
    shutil.copytree(CASED / "variables", folder / "variables", dirs_exist_ok=True)
    prefix = folder / "variables" / "variables"
    rest = "but saved_model.pb has one of [818, 64]; they do not belong together: download both again"
    assert refused(folder) == f"{folder}: {prefix}: word_embeddings/embeddings is [1445, 64], {rest}"
    shutil.copytree(save(folder.parent / "toy") / "variables", folder / "variables", dirs_exist_ok=True)
    assert refused(folder) == f"{folder}: {prefix}: no variable word_embeddings/embeddings, {rest}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "vocab.txt is missing; it holds the vocabulary"),
        (b"[PAD]\n[UNK]\n\xff", "vocab.txt: is not UTF-8 at byte 12"),
        (b"[PAD]\n[UNK]\n", "vocab.txt: no entry [CLS], [SEP] among 2"),
        (
            "\n".join([*WORDS, *map(str, range(809))]).encode(),
            "vocab.txt: has 819 entries, the word embedding (vocab_size) has 818 rows",
        ),
    ],
    ids=["missing", "not UTF-8", "not BERT's", "too long"],
)
def test_vocabularies_that_cannot_be_used(folder, content, message):
    path = folder / "assets" / "vocab.txt"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert f"{folder / 'assets'}/{message}" in refused(folder)


def test_embedding_longer_than_the_vocabulary(folder):
    (folder / "assets" / "vocab.txt").write_text("\n".join(WORDS))
    source = open_encoder(str(folder))
    assert (len(source.vocabulary), source.config.vocab_size) == (10, 818)
    assert_engines_agree(folder)


def damage(folder: Path, change: Callable[[Any], None]) -> None:
    """Change what saved_model.pb says, as bytes that got lost or somebody's hand would."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved = SavedModel()
    saved.ParseFromString((folder / "saved_model.pb").read_bytes())
    change(saved.meta_graphs[0])
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())


def lose_a_child(graph: Any) -> None:
    graph.object_graph_def.nodes[0].children[0].node_id = 1_000_000


def lose_an_asset(graph: Any) -> None:
    next(node for node in graph.object_graph_def.nodes if node.HasField("asset")).asset.asset_file_def_index = 77


def lose_inputs(graph: Any) -> None:
    for function in graph.object_graph_def.concrete_functions.values():
        if function.bound_inputs:
            function.bound_inputs[0] = 1_000_000


def lose_values(graph: Any) -> None:
    for function in graph.graph_def.library.function:
        for node in function.node_def:
            if node.op == "Const":
                node.attr["value"].Clear()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lose_a_child, "IndexError: "),
        (lose_an_asset, "IndexError: "),
        (lose_inputs, "IndexError: "),
        (lose_values, "TypeError: "),
    ],
)
def test_references_that_lead_nowhere(folder, change, said):
    damage(folder, change)
    error = refused(folder)
    assert error.startswith(f"{folder}: cannot be read ({said}")
    assert error.endswith("; download it again")
    assert "\n" not in error


def test_the_cause_of_what_cannot_be_read_is_kept(folder):
    damage(folder, lose_a_child)
    with pytest.raises(EncoderError) as caught:
        open_encoder(str(folder))
    assert isinstance(caught.value.__cause__, IndexError)


def test_our_own_mistakes_are_not_taken_for_damage(folder, monkeypatch):
    def mistaken(*arguments: Any, **named: Any) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr("layerbeam.transforms.encoders.formats.saved_model.open_folder", mistaken)
    with pytest.raises(AttributeError):
        open_encoder(str(folder))


def test_name_of_an_asset_that_is_too_long(folder):
    damage(folder, lambda graph: setattr(graph.asset_file_def[0], "filename", "n" * 400))
    assert refused(folder) == f"{folder}: {folder}/assets/{'n' * 400}: cannot be read: File name too long"


def test_identities_in_a_circle(folder):
    def tie(graph: Any) -> None:
        for function in graph.graph_def.library.function:
            for node in function.node_def:
                if node.op in ("Identity", "Reshape", "Cast") and node.input:
                    node.input[0] = f"{node.name}:output:0"

    damage(folder, tie)
    assert "does not read the output of" in open_encoder(str(folder)).engine_because


def test_graph_that_may_not_be_read(folder, monkeypatch):
    deny(monkeypatch, folder / "saved_model.pb")
    assert refused(folder) == f"{folder}: {folder}/saved_model.pb: cannot be read: Permission denied"
