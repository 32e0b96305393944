"""Which inputs and outputs of a SavedModel are understood."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from repository import DATA
from saved_models import INPUTS, KERNEL, WORDS, Toy, assert_runs, named, save, spec, tf
from weights import refused

from layerbeam.transforms.encoders import EncoderError, load_encoder, load_weights

pytestmark = pytest.mark.usefixtures("threads")


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


def test_one_trace_for_all_shapes(tmp_path, monkeypatch):
    def call(self: Toy, inputs: dict[str, Any], training: bool = False) -> Any:
        return named(self, inputs)

    real, loaded = tf.saved_model.load, []
    monkeypatch.setattr(tf.saved_model, "load", lambda path: loaded.append(real(path)) or loaded[-1])
    assert_runs(save(tmp_path / "model", call, traced_with=[{"training": False}]))
    assert [model.__call__.experimental_get_tracing_count() for model in loaded] == [1]


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


def test_one_unnamed_output(tmp_path):
    """The object's function gives no name; its signature does."""
    source = assert_runs(save(tmp_path / "toy", lambda toy, inputs: toy.layers(inputs)[-1]), layers=[1], pooler=False)
    assert source.engine_because == "the variable table is none of plain BERT's"


def test_inputs_one_after_the_other_go_by_their_names(tmp_path):
    def call(self: Toy, input_type_ids: Any, input_word_ids: Any, input_mask: Any) -> Any:
        return named(
            self, {"input_type_ids": input_type_ids, "input_word_ids": input_word_ids, "input_mask": input_mask}
        )

    assert_runs(save(tmp_path / "toy", call, [spec(None)] * 3))


def test_other_number_types(tmp_path):
    types = {"input_word_ids": "int64", "input_mask": "float32", "input_type_ids": "int64"}
    assert_runs(save(tmp_path / "toy", signature=[{name: spec(name, dtype) for name, dtype in types.items()}]))


@pytest.mark.parametrize(("order", "keyword_only"), [((True, False), False), ((False, True), True)])
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

    # The names of the variables give the number of blocks.
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


def of_shape(layer: Any, shape: Any) -> dict[str, Any]:
    return {"sequence_output": tf.raw_ops.PlaceholderWithDefault(input=layer, shape=shape)}


WHICH = "which of its outputs {} is which cannot be seen; name them"
NO_SIZE = "its output sequence_output has no fixed last dimension; export it with one"
NO_LAYERS = "its outputs are default; needed is sequence_output or encoder_outputs, [batch, tokens, size]"
NO_ORDER = (
    "the order of its outputs encoder_outputs.first, encoder_outputs.second, encoder_outputs.third is not to be seen; "
    "number them"
)
UNUSABLE: dict[str, tuple[Callable[[list[Any], Any], Any], str]] = {
    "list": (lambda layers, pooled: layers, WHICH.format("0, 1, 2")),
    "names": (lambda layers, pooled: {"one": layers[0], "other": layers[1]}, WHICH.format("one, other")),
    "unnumbered": (lambda layers, pooled: {"encoder_outputs": dict(zip(ORDINALS, layers, strict=True))}, NO_ORDER),
    "pooled only": (lambda layers, pooled: {"default": pooled}, NO_LAYERS),
    "unknown size": (lambda layers, pooled: of_shape(layers[0], [None, None, None]), NO_SIZE),
    "unknown rank": (lambda layers, pooled: of_shape(layers[0], tf.TensorShape(None)), NO_SIZE),
}
ORDINALS = ("first", "second", "third")


@pytest.mark.parametrize(("outputs", "message"), UNUSABLE.values(), ids=UNUSABLE)
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
